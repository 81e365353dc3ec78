// Explains in sentences why a job took so long.
#ifndef RAILS_RAILSCTL_EXPLAIN_CAUSES_H_
#define RAILS_RAILSCTL_EXPLAIN_CAUSES_H_

#include <string>
#include <vector>

#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// Full sentences, most important first. Empty only for a job that moved nothing and did not wait.
std::vector<std::string> Causes(const v1::ExplainJobResponse& job);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_CAUSES_H_
