// The events of a transport between the work that makes them and the Poll() that takes them.
#ifndef RAILSD_AGENT_TRANSPORT_EVENT_QUEUE_H_
#define RAILSD_AGENT_TRANSPORT_EVENT_QUEUE_H_

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/transport/transport.h"

namespace railsd {

// Events that were not taken yet, in order. Orders and receives (fences, faults) are counted against limits, so the
// ring grows (and allocates) only for a burst of rare events.
class EventQueue {
 public:
  EventQueue(size_t max_orders, size_t max_receives);

  void Push(const RailEvent& event);
  size_t Take(absl::Span<RailEvent> out);
  bool empty() const { return head_ == tail_; }
  // Numbers of events ever pushed and ever taken. An event has been taken once taken() reaches the value that pushed()
  // had just after it.
  uint64_t pushed() const { return taken_ + (tail_ - head_); }
  uint64_t taken() const { return taken_; }

  // True if there is room for one more order. An order keeps its room until its kSendDone is taken.
  bool CanHoldOrder() const { return orders_ < max_orders_; }
  void HoldOrder() { ++orders_; }
  bool CanReceive() const { return receives_ < max_receives_; }

 private:
  const size_t max_orders_;
  const size_t max_receives_;
  size_t orders_ = 0;
  size_t receives_ = 0;
  std::vector<RailEvent> ring_;
  size_t head_ = 0;
  size_t tail_ = 0;
  uint64_t taken_ = 0;
};

// A counter has one writer, so a plain load and a plain store suffice.
inline void AddTo(RailCounters::Counter& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}
inline void SubtractFrom(RailCounters::Counter& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) - n, std::memory_order_relaxed);
}

using Nanoseconds = int64_t;  // of the monotonic clock
inline Nanoseconds Now() {
  return absl::ToInt64Nanoseconds(absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
}

inline constexpr uint32_t kNoOrder = UINT32_MAX;

// The posted orders of a transport. `Slot` begins with its order.
template <typename Slot>
class OrderPool {
 public:
  explicit OrderPool(size_t capacity) : slots_(capacity), free_(capacity) {
    std::iota(free_.rbegin(), free_.rend(), 0);
  }
  // A slot is free, because the event queue limits the orders.
  uint32_t Take(const SendOrder& order) {
    const uint32_t index = free_.back();
    free_.pop_back();
    slots_[index] = Slot{order};
    return index;
  }
  void Free(uint32_t index) { free_.push_back(index); }
  Slot& operator[](uint32_t index) { return slots_[index]; }

 private:
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

// The kSendDone of an order.
RailEvent DoneEvent(const SendOrder& order, SendResult result, int error_number);
// Ends a posted order: pushes its kSendDone and updates the counters.
void FinishOrder(EventQueue& events, RailCounters& counters, const SendOrder& order, SendResult result,
                 int error_number);

// RailTransport::Post(): takes orders while there is room. `add` begins an order; it returns false if the peer is not
// up on the order's connection.
template <typename Add>
size_t TakeOrders(EventQueue& events, RailCounters& counters, absl::Span<const SendOrder> orders, Add add) {
  size_t taken = 0;
  for (; taken < orders.size() && events.CanHoldOrder(); ++taken) {
    const SendOrder& order = orders[taken];
    events.HoldOrder();
    AddTo(counters.posted_bytes, order.length_bytes);
    if (!add(order)) FinishOrder(events, counters, order, SendResult::kNotSent, ENOTCONN);
  }
  return taken;
}

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_EVENT_QUEUE_H_
