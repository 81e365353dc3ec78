// What the parts of one TCP transport share. Everything here belongs to the rail's thread.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_CONTEXT_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_CONTEXT_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "agent/transport/event_queue.h"
#include "agent/transport/transport.h"

namespace railsd::tcp {

inline constexpr uint32_t kNoOrder = UINT32_MAX;
inline constexpr size_t kMaxIovecs = 1024;  // UIO_MAXIOV

// One posted order. Linked in the order of posting within its peer.
struct OrderSlot {
  SendOrder order;
  uint64_t cut_bytes = 0;    // handed to frames
  uint64_t acked_bytes = 0;  // of frames that have arrived
  uint32_t frames_in_flight = 0;
  uint32_t next = kNoOrder;
  uint32_t previous = kNoOrder;
  SendResult result = SendResult::kAcknowledged;
  bool dropped = false;  // the receiver refused a frame: no further ones
};

class OrderPool {
 public:
  explicit OrderPool(size_t capacity);
  uint32_t Take();  // kNoOrder when none is free
  void Free(uint32_t index);
  OrderSlot& operator[](uint32_t index) { return slots_[index]; }

 private:
  std::vector<OrderSlot> slots_;
  std::vector<uint32_t> free_;
};

using ZoneKey = std::pair<uint32_t, uint32_t>;  // slot, generation

struct Context {
  Context(size_t max_orders, size_t max_receives) : events(max_orders, max_receives), orders(max_orders) {}

  RailCounters counters;
  EventQueue events;
  OrderPool orders;
  absl::flat_hash_map<ZoneKey, std::shared_ptr<const ReceiveSet>> zones;
  uint64_t frame_bytes = 0;
  uint64_t poll_number = 0;
  bool parked = false;  // this Poll() met a frame for a zone that is not open
  std::array<iovec, kMaxIovecs> iovecs;
  // Takes what nobody wants where the kernel cannot drop it unseen, that is with TLS records; empty without.
  std::vector<std::byte> scratch;

  static void Add(RailCounters::Counter& counter, uint64_t n) { AddTo(counter, n); }
  static void Subtract(RailCounters::Counter& counter, uint64_t n) { SubtractFrom(counter, n); }

  // Ends an order; `slot` may be freed after it.
  void PushSendDone(const SendOrder& order, SendResult result, int error_number, uint64_t arrived_bytes = 0);
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_CONTEXT_H_
