// How many bytes each rail carried, and how evenly. Pure.
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
  bool drained = false;  // by an operator, here or at every peer
};

struct NodeRails {
  std::string node;
  std::vector<RailBytes> rails;

  double SpeedSum() const;  // without drained rails
  uint64_t TxSum() const;
  uint64_t RxSum() const;
  // The fullest rail over the mean of the node's rails; 1 when nothing was carried. Drained rails that carried nothing
  // do not count.
  double TxMaxOverMean() const;
  double RxMaxOverMean() const;
};

// What was carried between two readings of the counters. Error: ABORTED when a counter fell or rails changed (the
// daemon was started again).
absl::StatusOr<std::vector<NodeRails>> Difference(const std::vector<NodeRails>& before,
                                                  const std::vector<NodeRails>& after);

// Max over mean, 1 when all are 0 or there are none.
double MaxOverMean(const std::vector<uint64_t>& values);

struct Balance {
  double tx_max_over_mean = 1, rx_max_over_mean = 1;
};
// The worst node.
Balance WorstBalance(const std::vector<NodeRails>& nodes);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_ACCOUNTING_H_
