// Two measures of how evenly the rails of a node are used, over sliding windows of time.
#ifndef RAILSD_DAEMON_METRICS_BALANCE_H_
#define RAILSD_DAEMON_METRICS_BALANCE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/agent.h"

namespace railsd {

struct Balance {
  double max_over_mean = 1;  // 1: even; N rails: N if one rail carries all
  double jain = 1;           // Jain's index. 1: even; N rails: 1/N if one rail carries all
};

// The balance of `bytes` by rail, each divided by its rail's speed in `speeds` (any unit): a rail of half the speed is
// even with half the bytes. Rails with speed 0 do not count. Nullopt if no rail that counts carried bytes.
std::optional<Balance> BalanceOf(absl::Span<const uint64_t> bytes, absl::Span<const uint64_t> speeds);

// The balance of a node over windows that end now. A sampler adds samples, scrapes read. Any thread.
class BalanceMeter {
 public:
  static constexpr std::array<absl::Duration, 3> kWindows = {absl::Seconds(10), absl::Minutes(1), absl::Minutes(5)};
  static constexpr std::array<const char*, 3> kWindowNames = {"10s", "1m", "5m"};
  // Samples that come sooner than this after the last one are dropped.
  static constexpr absl::Duration kPace = absl::Seconds(2);

  // The balances over one window; nullopt if no bytes moved.
  struct Window {
    std::optional<Balance> sent, received, planned, planned_received;
  };

  // `now` does not go back. Rails that an operator has drained, here or at every peer, do not count.
  void Add(absl::Span<const RailView> rails, absl::Time now);
  // One entry for each of kWindows, empty until there are two samples. A window longer than the samples covers them
  // all.
  std::vector<Window> Read() const;

 private:
  struct Sample {
    absl::Time at;
    std::vector<uint64_t> tx_bytes, rx_bytes, planned_bytes, planned_rx_bytes;
  };

  mutable absl::Mutex mutex_;
  std::deque<Sample> samples_ ABSL_GUARDED_BY(mutex_);  // oldest first; bounded by the longest window over kPace
  std::vector<uint64_t> speeds_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_BALANCE_H_
