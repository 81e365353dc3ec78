// Tells whether anybody is inside a receive for a set of zones, without waking anybody.
#ifndef RAILSD_AGENT_TRANSPORT_RECEIVE_GATE_H_
#define RAILSD_AGENT_TRANSPORT_RECEIVE_GATE_H_

#include <atomic>
#include <cstdint>

namespace railsd {

// Rails enter before each system call that writes into the zones and leave after it. Once closed the gate lets nobody
// in, so when Close() finds it empty nothing can touch the memory any more, whatever the rails still hold. All
// operations are sequentially consistent: of Enter() and Close() at least one sees the other.
class ReceiveGate {
 public:
  // False: closed, stay out. True: call Leave() afterwards.
  bool Enter() {
    inside_.fetch_add(1);
    if (!closed_.load()) return true;
    Leave();
    return false;
  }
  void Leave() { inside_.fetch_sub(1); }
  // True when nobody is inside. False: whoever was inside may still write for a moment.
  bool Close() {
    closed_.store(true);
    return inside_.load() == 0;
  }

 private:
  std::atomic<uint32_t> inside_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_RECEIVE_GATE_H_
