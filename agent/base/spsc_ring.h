// A bounded queue between two threads: one pushes, the other pops.
#ifndef RAILSD_AGENT_BASE_SPSC_RING_H_
#define RAILSD_AGENT_BASE_SPSC_RING_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace railsd {

// Allocates only when built, never holds more than asked for, and needs no fences, so that ThreadSanitizer checks it
// (the libraries at hand order their elements by fences, which it cannot follow, and admit more than their capacity).
// T is default-constructible and movable; a popped slot is left moved-from.
template <typename T>
class SpscRing {
 public:
  explicit SpscRing(size_t capacity) : capacity_(capacity), mask_(std::bit_ceil(capacity) - 1), slots_(mask_ + 1) {}
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // The pushing thread. False when full: `value` is untouched.
  bool TryPush(T&& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_seen_ >= capacity_) {
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail - head_seen_ >= capacity_) return false;
    }
    slots_[tail & mask_] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }
  // The pushing thread: how many pushes will surely succeed.
  size_t Free() {
    head_seen_ = head_.load(std::memory_order_acquire);
    return capacity_ - (tail_.load(std::memory_order_relaxed) - head_seen_);
  }

  // The popping thread. False when empty.
  bool TryPop(T* value) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_seen_) {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head == tail_seen_) return false;
    }
    *value = std::move(slots_[head & mask_]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Any thread; approximate while the others move.
  size_t Depth() const {
    const size_t head = head_.load(std::memory_order_relaxed);
    const size_t tail = tail_.load(std::memory_order_relaxed);
    return tail - head <= capacity_ ? tail - head : capacity_;
  }
  size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  const size_t mask_;
  std::vector<T> slots_;
  alignas(64) std::atomic<size_t> head_{0};
  size_t tail_seen_ = 0;  // of the popping thread
  alignas(64) std::atomic<size_t> tail_{0};
  size_t head_seen_ = 0;  // of the pushing thread
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_SPSC_RING_H_
