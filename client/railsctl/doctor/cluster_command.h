// doctor --cluster: finds what does not fit together in a cluster, and says what to do.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_COMMAND_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_COMMAND_H_

#include <string>
#include <vector>

#include "client/railsctl/command.h"

namespace rails::ctl {

// `where`: the values of --cluster. Returns the exit code.
int ExamineCluster(const Context& context, const std::vector<std::string>& where);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_COMMAND_H_
