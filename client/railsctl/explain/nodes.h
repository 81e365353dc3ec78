// One job as several nodes report it, on one timeline.
#ifndef RAILS_RAILSCTL_EXPLAIN_NODES_H_
#define RAILS_RAILSCTL_EXPLAIN_NODES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

using JobParts = absl::Span<const v1::ExplainJobResponse>;

// INVALID_ARGUMENT: the reports are of different jobs, or two are of one node.
absl::Status CheckOneJob(JobParts jobs);

// A node's clock against the first node's.
struct NodeClock {
  double ahead_seconds = 0;
  double within_seconds = 0;  // the error of `ahead_seconds`, at most
  bool known = false;         // false: no messages both ways join it to the first node, so its clock is used unchanged
};

// Compares clocks by the times of messages (READY, grants), because no message arrives before it was sent. The error is
// half of the time that a message there and one back took, as in NTP (RFC 5905). A node that exchanged no messages with
// the first node is compared by way of other nodes.
std::vector<NodeClock> AlignClocks(JobParts jobs);

// The time when each node's first rank submitted, by aligned clocks, in seconds since the earliest such time.
std::vector<double> Beginnings(JobParts jobs, absl::Span<const NodeClock> clocks);

// Text for people: when each node began and ended, a timeline of the nodes' phases, and which node was last.
std::string RenderNodes(JobParts jobs, absl::Span<const NodeClock> clocks, bool color);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_NODES_H_
