#include "agent/transport/tcp/tcp_context.h"

namespace railsd::tcp {

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

void Context::PushSendDone(const SendOrder& order, SendResult result, int error_number, uint64_t arrived_bytes) {
  FinishOrder(events, counters, order, result, error_number, arrived_bytes);
}

}  // namespace railsd::tcp
