// Tells a network that swallows packets from a receiver that is merely slow, by what the kernel knows of a connection.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_STALL_H_
#define RAILSD_AGENT_TRANSPORT_TCP_STALL_H_

#include <cstdint>

namespace railsd::tcp {

enum class Progress : uint8_t { kMoving, kStalled, kBroken };

// The parts of TCP_INFO that matter.
struct ConnectionInfo {
  uint32_t unacknowledged_segments = 0;
  uint32_t retransmissions = 0;    // of the oldest segment, by time-out, since the last acknowledgement
  uint32_t probes = 0;             // of a closed window, since the last acknowledgement
  int64_t since_acknowledged = 0;  // nanoseconds
};

// One connection. A receiver's kernel acknowledges data and probes although its process sleeps or its buffer is full,
// so when neither has been answered for `stall`, in spite of retransmissions, it is the network.
class StallWatch {
 public:
  // Times in nanoseconds of one monotonic clock. Call it now and then while anything may be unacknowledged.
  Progress Judge(const ConnectionInfo& info, int64_t now, int64_t stall);
  // The next look is the first one.
  void Restart() { moved_at_ = 0; }

 private:
  int64_t moved_at_ = 0;  // when nothing was wrong last
};

// False when the kernel does not tell.
bool ReadConnectionInfo(int fd, ConnectionInfo* info);

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_STALL_H_
