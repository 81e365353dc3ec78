// How evenly the rails of a node are used: two measures, and both over sliding windows of time.
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
  double max_over_mean = 1;  // 1: even; as many as there are rails: one carries all
  double jain = 1;           // Jain's index: 1: even; one over the number of rails: one carries all
};

// Of `bytes` by rail, each over its rail's speed in `speeds` (any unit), so that a rail of half the speed is even with
// half the bytes. Rails whose speed is 0 do not count. Nothing when nothing was carried, or there is no rail.
std::optional<Balance> BalanceOf(absl::Span<const uint64_t> bytes, absl::Span<const uint64_t> speeds);

// The balance of a node over windows that end now. Samples are taken at a steady pace, scrapes read; any thread.
class BalanceMeter {
 public:
  static constexpr std::array<absl::Duration, 3> kWindows = {absl::Seconds(10), absl::Minutes(1), absl::Minutes(5)};
  static constexpr std::array<const char*, 3> kWindowNames = {"10s", "1m", "5m"};
  // Samples that come sooner after the last one than this are left out.
  static constexpr absl::Duration kPace = absl::Seconds(2);

  // Of one direction over one window; nothing where nothing moved.
  struct Window {
    std::optional<Balance> sent, received, planned, planned_received;
  };

  // `now` does not go back. Rails that are drained, here or by every peer, do not count: an operator wants them idle.
  void Add(absl::Span<const RailView> rails, absl::Time now);
  // By window. Empty until there are two samples; a window that is longer than what is known covers that.
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
