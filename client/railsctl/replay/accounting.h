// Counts the bytes that each rail carried, and their balance. Pure.
#ifndef RAILS_RAILSCTL_REPLAY_ACCOUNTING_H_
#define RAILS_RAILSCTL_REPLAY_ACCOUNTING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rails::ctl {

struct RailBytes {
  std::string name;
  uint64_t speed_bytes_per_second = 0;
  uint64_t tx_bytes = 0, rx_bytes = 0;
  bool drained = false;  // drained by an operator, here or at every peer
};

struct NodeRails {
  std::string node;
  std::vector<RailBytes> rails;
  uint64_t eager_tx_bytes = 0, eager_rx_bytes = 0;  // of short exchanges: no rail carried them

  double SpeedSum() const;  // without drained rails
  // Sums over all rails, and eager bytes.
  uint64_t TxSum() const;
  uint64_t RxSum() const;
  // The busiest rail over the mean of the node's rails; 1 if no rail carried bytes. Drained rails without bytes do not
  // count.
  double TxMaxOverMean() const;
  double RxMaxOverMean() const;
};

// The bytes carried between two readings of the counters. ABORTED: a counter fell or the rails differ, because a daemon
// was restarted.
absl::StatusOr<std::vector<NodeRails>> Difference(const std::vector<NodeRails>& before,
                                                  const std::vector<NodeRails>& after);

// Maximum over mean; 1 if all values are 0 or there are none.
double MaxOverMean(const std::vector<uint64_t>& values);

struct Balance {
  double tx_max_over_mean = 1, rx_max_over_mean = 1;
};
// The balance of the worst node.
Balance WorstBalance(const std::vector<NodeRails>& nodes);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_ACCOUNTING_H_
