#include "agent/transport/tcp/tcp_context.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd::tcp {
namespace {

constexpr size_t kScratchBytes = 64 << 10;

}  // namespace

Nanoseconds Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
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

Context::Context(TcpOptions wanted)
    : options(std::move(wanted)),
      events(options.max_posted_orders, options.max_receive_events),
      orders(options.max_posted_orders) {
  if (options.tls) scratch.resize(kScratchBytes);
}

void Context::Notice(std::string* last, const std::string& text) const {
  if (!options.on_notice || *last == text) return;
  *last = text;
  options.on_notice(absl::StrCat("rail ", options.rail.value(), " of ", options.node, text));
}

}  // namespace railsd::tcp
