// Runs an exchange step by step on a fleet and measures it.
#ifndef RAILS_RAILSCTL_REPLAY_RUN_H_
#define RAILS_RAILSCTL_REPLAY_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/railsctl/replay/coordinator.h"
#include "client/railsctl/replay/exchange.h"
#include "client/railsctl/replay/report.h"

namespace rails::ctl {

struct RunOptions {
  uint32_t warmup = 1;  // first steps of the exchange, run and checked but not counted
  uint32_t ranges_per_flow = 1;
  bool verify = true;
  bool barrier = true;
  bool prepared = false;
  std::vector<double> node_speeds;  // bytes per second, by node; for the bound
  // Reads the rails' counters.
  std::function<absl::StatusOr<std::vector<NodeRails>>()> read_rails;
  // Called before each phase; may be empty.
  std::function<void(const std::string& text)> progress;
};

// Fills in steps, rails and wrong bytes of `report`. Stops after a phase with wrong bytes, which is no error here.
// Errors of Coordinator and `read_rails`.
absl::Status RunExchange(const Exchange& exchange, const RunOptions& options, Coordinator* coordinator,
                         ReplayReport* report);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_RUN_H_
