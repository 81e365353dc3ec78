// Rates and jobs of a node, computed from two of its overviews.
#ifndef RAILS_RAILSCTL_TOP_RATES_H_
#define RAILS_RAILSCTL_TOP_RATES_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "client/railsctl/table.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// Bytes per second.
struct Rates {
  double tx = 0;
  double rx = 0;
};

struct NodeRates {
  double seconds = 0;  // between the two overviews; 0: not comparable, all rates are 0
  std::vector<Rates> rails;
  std::vector<std::vector<Rates>> peers;  // by peer and rail of `after`

  Rates Sum() const;
};

// Rates for the rails and peers of `after`. 0 if a counter is not in `before`, or has fallen (the daemon was
// restarted).
NodeRates RatesBetween(const v1::GetOverviewResponse& before, const v1::GetOverviewResponse& after);

// One line that says whether all rails work, and how evenly they are used.
struct Verdict {
  std::string text;  // "4 of 4 rails up, evenly used: busiest 1.02 x mean (10s)"
  Mark mark = Mark::kNone;
};
Verdict Judge(const v1::GetOverviewResponse& overview);

// A job of a node, summed over its ranks.
struct NodeJob {
  std::string group;
  uint64_t seq = 0;
  uint32_t ranks = 0;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  bool replayable = false;                         // failed, and its ranks submit it again
  std::string why;                                 // of a failed job: "UNAVAILABLE: node n2 is lost"
  uint64_t bytes = 0, bytes_done = 0;              // sent and received
  double elapsed_seconds = 0, ratio_to_bound = 0;  // of the slowest rank
};
struct NodeJobs {
  std::vector<NodeJob> running;   // at least one rank is not done
  std::vector<NodeJob> finished;  // latest first
};
NodeJobs JobsOf(const v1::GetOverviewResponse& overview);

// MessageJson of `after`, with "verdict" and with "rates": {"seconds", "rails": [{"name", "tx_bytes_per_second",
// "rx_bytes_per_second"}], "peers": [{"node", "rail_tx_bytes_per_second": [], "rail_rx_bytes_per_second": []}]}.
nlohmann::ordered_json TopJson(const v1::GetOverviewResponse& before, const v1::GetOverviewResponse& after);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_RATES_H_
