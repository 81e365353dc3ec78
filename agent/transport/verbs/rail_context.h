// Shared by the parts of one verbs rail. Everything here belongs to the rail's thread.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_RAIL_CONTEXT_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_RAIL_CONTEXT_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "agent/transport/event_queue.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs/handles.h"
#include "agent/transport/verbs/send_queue.h"
#include "agent/transport/verbs/verbs_transport.h"
#include "agent/transport/verbs/zone_plan.h"

namespace railsd::verbs {

class Endpoint;
class PeerQueuePair;
struct FlushPlan;

// Work requests of one ibv_post_send.
inline constexpr size_t kMaxChain = 64;
// Local pieces of one work request; a device may have fewer.
inline constexpr uint32_t kMaxPieces = 16;

// A zone with its keys on this rail. Ends with its connection.
struct BoundZone {
  enum class State { kOpening, kOpen, kClosing };
  std::shared_ptr<const ReceiveZone> zone;
  Endpoint* endpoint = nullptr;
  PeerQueuePair* queue_pair = nullptr;
  ZonePlan plan;
  std::shared_ptr<const FlushPlan> flush;  // null: a fence is reported at once
  std::vector<WindowHandle> windows;       // by plan.windows; none when weak: the key opens the whole segment
  State state = State::kOpening;
  uint32_t pending = 0;     // binds or invalidates that are not done
  bool close_soon = false;  // Unbind() came while opening
};

// One posted order. Linked, in the order of posting, within its queue pair.
struct OrderSlot {
  SendOrder order;
  uint64_t cut_bytes = 0;      // in work requests
  uint32_t last_sequence = 0;  // of its work requests
  uint32_t next = kNoOrder;
  bool begun = false;  // has work requests
  SendResult result = SendResult::kAcknowledged;
  int error_number = 0;
};

using OrderPool = railsd::OrderPool<OrderSlot>;

// A first-in, first-out list of orders.
class OrderList {
 public:
  bool empty() const { return head_ == kNoOrder; }
  uint32_t front() const { return head_; }
  void Push(OrderPool& pool, uint32_t index) {
    pool[index].next = kNoOrder;
    (head_ == kNoOrder ? head_ : pool[tail_].next) = index;
    tail_ = index;
  }
  uint32_t Pop(OrderPool& pool) {
    const uint32_t index = head_;
    head_ = pool[index].next;
    return index;
  }

 private:
  uint32_t head_ = kNoOrder;
  uint32_t tail_ = kNoOrder;
};

struct RailContext {
  RailContext(const VerbsOptions& options, std::shared_ptr<RdmaDevice> rail_device)
      : rail(options.rail),
        tuning(options.tuning),
        device(std::move(rail_device)),
        events(options.max_posted_orders, options.max_receive_events),
        orders(options.max_posted_orders),
        // Every receive may have a completion in the queue, at any time.
        room(tuning.completion_queue_depth - tuning.fence_queue_depth),
        max_pieces(static_cast<uint32_t>(std::clamp<int>(device->attributes().max_sge, 1, kMaxPieces))),
        inlined(kMaxChain * tuning.inline_bytes) {}

  void Finish(uint32_t index, SendResult result, int error_number) {
    FinishOrder(events, counters, orders[index].order, result, error_number);
    orders.Free(index);
  }

  const RailIndex rail;
  const VerbsTuning tuning;  // cut to the device's limits
  const std::shared_ptr<RdmaDevice> device;
  ChannelHandle channel;
  CompletionQueueHandle completions;
  SharedReceiveHandle receives;
  RailCounters counters;
  EventQueue events;
  OrderPool orders;
  CompletionRoom room;
  const uint32_t max_pieces;
  uint64_t max_message_bytes = 0;

  // The chain that is being built.
  std::array<ibv_send_wr, kMaxChain> requests;
  std::array<std::array<ibv_sge, kMaxPieces>, kMaxChain> pieces;
  std::vector<std::byte> inlined;  // kMaxChain times tuning.inline_bytes
  // Queue pairs with something to post, each once, so that queue pairs of idle peers cost no time. Has room for all of
  // them.
  std::vector<PeerQueuePair*> busy;
  size_t queue_pairs = 0;
  // Zones whose binds or invalidates have all been done since the last look.
  std::vector<BoundZone*> settled;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_RAIL_CONTEXT_H_
