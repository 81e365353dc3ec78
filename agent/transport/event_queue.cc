#include "agent/transport/event_queue.h"

#include <bit>

namespace railsd {
namespace {

// Room for rare events, such as peers going up and down, before the ring grows.
constexpr size_t kRareEvents = 256;

bool IsReceive(const RailEvent& event) {
  return event.kind == RailEvent::Kind::kReceiveFault || event.kind == RailEvent::Kind::kFence;
}

}  // namespace

EventQueue::EventQueue(size_t max_orders, size_t max_receives)
    : max_orders_(max_orders),
      max_receives_(max_receives),
      ring_(std::bit_ceil(max_orders + max_receives + kRareEvents)) {}

void EventQueue::Push(const RailEvent& event) {
  if (tail_ - head_ == ring_.size()) {
    std::vector<RailEvent> larger(ring_.size() * 2);
    for (size_t i = head_; i != tail_; ++i) larger[i - head_] = ring_[i & (ring_.size() - 1)];
    tail_ -= head_;
    head_ = 0;
    ring_.swap(larger);
  }
  if (IsReceive(event)) ++receives_;
  ring_[tail_++ & (ring_.size() - 1)] = event;
}

size_t EventQueue::Take(absl::Span<RailEvent> out) {
  size_t count = 0;
  for (; count < out.size() && head_ != tail_; ++count) {
    const RailEvent& event = ring_[head_++ & (ring_.size() - 1)];
    if (event.kind == RailEvent::Kind::kSendDone) --orders_;
    if (IsReceive(event)) --receives_;
    out[count] = event;
  }
  taken_ += count;
  return count;
}

RailEvent DoneEvent(const SendOrder& order, SendResult result, int error_number) {
  return {.kind = RailEvent::Kind::kSendDone,
          .result = result,
          .peer = order.stream->peer,
          .error_number = error_number,
          .zone = order.stream->zone,
          .job = order.stream->job,
          .cookie = order.cookie,
          .offset_bytes = order.offset_bytes,
          .length_bytes = order.length_bytes,
          .weight = order.weight,
          .round = order.round};
}

void FinishOrder(EventQueue& events, RailCounters& counters, const SendOrder& order, SendResult result,
                 int error_number) {
  SubtractFrom(counters.posted_bytes, order.length_bytes);
  if (result == SendResult::kAcknowledged) {
    AddTo(counters.tx_payload_bytes, order.length_bytes);
    if (order.length_bytes > 0) AddTo(counters.tx_chunks, 1);
    if (order.weight > 0) AddTo(counters.tx_fences, 1);
  }
  events.Push(DoneEvent(order, result, error_number));
}

}  // namespace railsd
