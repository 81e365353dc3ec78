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
    uint64_t begin = 0, end = 0;
  };

  // Bytes [begin, begin + length) of the stream are in memory. The rail's thread.
  void Add(uint64_t begin, uint64_t length) {
    const uint64_t end = begin + length;
    bytes_.store(bytes() + length, std::memory_order_relaxed);
    const size_t count = runs();
    for (size_t i = count; i > 0; --i) {
      Slot& slot = slots_[i - 1];
      if (slot.end.load(std::memory_order_relaxed) == begin) return slot.end.store(end, std::memory_order_relaxed);
      if (slot.begin.load(std::memory_order_relaxed) == end) return slot.begin.store(begin, std::memory_order_relaxed);
    }
    if (count == kMaxRuns) return;
    slots_[count].begin.store(begin, std::memory_order_relaxed);
    slots_[count].end.store(end, std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);
  }

  // Bytes that landed twice count twice.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  size_t runs() const { return count_.load(std::memory_order_acquire); }
  // `i` is below runs().
  Run run(size_t i) const {
    return {slots_[i].begin.load(std::memory_order_relaxed), slots_[i].end.load(std::memory_order_relaxed)};
  }

 private:
  struct Slot {
    std::atomic<uint64_t> begin{0}, end{0};
  };
  std::array<Slot, kMaxRuns> slots_;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_LANDING_H_
