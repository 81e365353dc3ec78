// Bytes of an exchange that have landed over one rail, as far as the rail's thread sees it.
#ifndef RAILSD_AGENT_TRANSPORT_LANDING_H_
#define RAILSD_AGENT_TRANSPORT_LANDING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace railsd {

// Stretches of the stream. A rail's pieces arrive in order, so there are few; beyond kMaxRuns only the bytes are
// counted. The rail's thread writes; any thread reads, and sees a consistent state once the zone is quiet.
class Landing {
 public:
  static constexpr size_t kMaxRuns = 16;
  struct Run {
    uint64_t begin, end;
  };

  Landing() {}  // not defaulted, which would have arrays of it set to zero

  // Bytes [begin, begin + length) of the stream are in memory. The rail's thread.
  void Add(uint64_t begin, uint64_t length) {
    const uint64_t end = begin + length;
    bytes_.store(bytes() + length, std::memory_order_relaxed);
    const size_t count = runs();
    for (size_t i = count; i > 0; --i) {
      Run& last = runs_[i - 1];
      if (last.end == begin) return Store(&last.end, end);
      if (last.begin == end) return Store(&last.begin, begin);
    }
    if (count == kMaxRuns) return;
    Store(&runs_[count].begin, begin);
    Store(&runs_[count].end, end);
    count_.store(count + 1, std::memory_order_release);
  }

  // Bytes that landed twice count twice.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  size_t runs() const { return count_.load(std::memory_order_acquire); }
  // `i` is below runs().
  Run run(size_t i) const { return {Load(&runs_[i].begin), Load(&runs_[i].end)}; }

 private:
  static void Store(uint64_t* to, uint64_t value) { std::atomic_ref(*to).store(value, std::memory_order_relaxed); }
  static uint64_t Load(uint64_t* from) { return std::atomic_ref(*from).load(std::memory_order_relaxed); }

  // Elements from count_ on are not set: an exchange has this array for each rail, and most rails carry nothing of it.
  mutable std::array<Run, kMaxRuns> runs_;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_LANDING_H_
