#include "agent/transport/tcp/tcp_context.h"

#include <bit>

namespace railsd::tcp {
namespace {

// Peers going up and down, zones closing: what may be pending besides orders and receives before the ring grows.
constexpr size_t kRareEvents = 256;

bool IsReceive(const RailEvent& event) {
  return event.kind == RailEvent::Kind::kReceived || event.kind == RailEvent::Kind::kReceiveFault;
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
  return count;
}

OrderPool::OrderPool(size_t capacity) : slots_(capacity) {
  free_.reserve(capacity);
  for (size_t i = capacity; i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
}

uint32_t OrderPool::Take() {
  if (free_.empty()) return kNoOrder;
  const uint32_t index = free_.back();
  free_.pop_back();
  slots_[index] = OrderSlot();
  return index;
}

void OrderPool::Free(uint32_t index) { free_.push_back(index); }

void Context::PushSendDone(const SendOrder& order, SendResult result, int error_number) {
  RailEvent event;
  event.kind = RailEvent::Kind::kSendDone;
  event.result = result;
  event.peer = order.flow->peer;
  event.error_number = error_number;
  event.zone = order.zone;
  event.job = order.flow->job;
  event.cookie = order.cookie;
  event.offset_bytes = order.offset_bytes;
  event.length_bytes = order.length_bytes;
  Subtract(counters.posted_bytes, order.length_bytes);
  if (result == SendResult::kAcknowledged) {
    Add(counters.tx_payload_bytes, order.length_bytes);
    Add(counters.tx_chunks, 1);
  }
  events.Push(event);
}

}  // namespace railsd::tcp
