// Output ports of the packet model: NICs that send, and ports of switches with a finite queue.
#ifndef RAILSD_SIM_NETWORK_PORTS_H_
#define RAILSD_SIM_NETWORK_PORTS_H_

#include <algorithm>
#include <cstdint>
#include <deque>

#include "sim/network/event_heap.h"

namespace railsd::sim {

struct Port {
  double speed = 0;  // bytes per second; 0: dead
  bool busy = false;
  // Empty at a NIC, which makes packets when it sends them.
  std::deque<Packet> queue = {};
  uint64_t queued_bytes = 0;  // with the packet that is being sent, and room that is taken for packets on their way
  uint64_t peak_bytes = 0;
  // PFC: ports that wait for room in this queue, and whether this port waits.
  std::deque<uint32_t> waiting = {};
  bool stopped = false;
  double stopped_since = -1;  // never

  void Take(uint64_t bytes) {
    queued_bytes += bytes;
    peak_bytes = std::max(peak_bytes, queued_bytes);
  }
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_PORTS_H_
