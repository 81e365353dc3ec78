// Events of the packet model in the order of their times. Events of the same time keep the order in which they were
// added.
#ifndef RAILSD_SIM_NETWORK_EVENT_HEAP_H_
#define RAILSD_SIM_NETWORK_EVENT_HEAP_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace railsd::sim {

struct Packet {
  uint32_t connection = 0;
  uint32_t bytes = 0;
  uint8_t hop = 0;       // place in Connection::ports
  bool marked = false;   // met a long queue
  bool stopped = false;  // waited for room in a queue
};

enum class EventKind : uint8_t {
  kSent,          // `id`, a port, has sent the packet
  kArrived,       // the packet has reached the port `id`
  kDelivered,     // the packet has reached its NIC
  kAcknowledged,  // the sender hears of the packet
  kLost,          // the sender knows that the packet is lost
  kRetry,         // the connection `id` may send again
  kAsk,           // the scheduler of the NIC `id` may choose again
  kLeave,         // the node `id` has bytes on dead paths
  kIdle,          // the NIC `id` has no bytes left that can move
  kPeriod,        // the policy's period is over
  kChange,        // speeds change
};

struct Event {
  double at = 0;  // seconds
  uint64_t order = 0;
  uint32_t id = 0;
  EventKind kind = EventKind::kSent;
  Packet packet = {};
};

class EventHeap {
 public:
  void Add(double at, EventKind kind, uint32_t id, Packet packet = {}) {
    events_.push_back({at, added_++, id, kind, packet});
    std::push_heap(events_.begin(), events_.end(), After);
  }
  bool empty() const { return events_.empty(); }
  size_t size() const { return events_.size(); }
  Event Take() {
    std::pop_heap(events_.begin(), events_.end(), After);
    const Event event = events_.back();
    events_.pop_back();
    return event;
  }

 private:
  static bool After(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  std::vector<Event> events_;
  uint64_t added_ = 0;
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_EVENT_HEAP_H_
