// Why a job took as long as it did, in sentences.
#ifndef RAILS_RAILSCTL_EXPLAIN_CAUSES_H_
#define RAILS_RAILSCTL_EXPLAIN_CAUSES_H_

#include <string>
#include <vector>

#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// Most important first; each is a full sentence. Empty only for a job that moved nothing and waited for nobody.
std::vector<std::string> Causes(const v1::ExplainJobResponse& job);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_CAUSES_H_
