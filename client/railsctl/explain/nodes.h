// One job as several nodes tell of it, on one timeline.
#ifndef RAILS_RAILSCTL_EXPLAIN_NODES_H_
#define RAILS_RAILSCTL_EXPLAIN_NODES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

using JobParts = absl::Span<const v1::ExplainJobResponse>;

// INVALID_ARGUMENT: they are not of one job, or two are of one node.
absl::Status CheckOneJob(JobParts jobs);

// A node's clock against the first node's.
struct NodeClock {
  double ahead_seconds = 0;
  double within_seconds = 0;  // the error of `ahead_seconds`, at most
  bool known = false;         // false: no messages both ways join it to the first node; its clock is taken as it is
};

// From pairs of messages (READY, grants): none arrives before it was sent. The error is half of what a message there
// and one back took, as in NTP (RFC 5905). Nodes without messages to the first one are compared over other nodes.
std::vector<NodeClock> AlignClocks(JobParts jobs);

// When each node's first rank submitted, in seconds from the first such moment of all nodes, by aligned clocks.
std::vector<double> Beginnings(JobParts jobs, absl::Span<const NodeClock> clocks);

// Text for people: who began and ended when, a timeline of the nodes' phases, and who was last.
std::string RenderNodes(JobParts jobs, absl::Span<const NodeClock> clocks, bool color);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_NODES_H_
