// Distinguishes a network that swallows packets from a slow receiver, by what the kernel knows of a connection.
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

// Watches one connection. A receiver's kernel acknowledges data and probes even while its process sleeps or its buffer
// is full. If neither is acknowledged for `stall`, in spite of retransmissions, the network has failed.
class StallWatch {
 public:
  // Times in nanoseconds of one monotonic clock. Call it now and then while anything may be unacknowledged.
  Progress Judge(const ConnectionInfo& info, int64_t now, int64_t stall);
  // Makes the next Judge() count as the first one.
  void Restart() { moved_at_ = 0; }

 private:
  int64_t moved_at_ = 0;  // when Judge() last found nothing unanswered; 0: not called yet
};

// False when the kernel does not tell.
bool ReadConnectionInfo(int fd, ConnectionInfo* info);

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_STALL_H_
