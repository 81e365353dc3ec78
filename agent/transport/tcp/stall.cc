#include "agent/transport/tcp/stall.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace railsd::tcp {

Progress StallWatch::Judge(const ConnectionInfo& info, int64_t now, int64_t stall) {
  const bool unanswered = (info.unacknowledged_segments > 0 && info.retransmissions >= 1) || info.probes >= 2;
  if (!unanswered || moved_at_ == 0) {
    moved_at_ = now;
    return Progress::kMoving;
  }
  // On a connection that was idle, the last acknowledgement is old when the first segment is lost. The retransmission
  // gets time to be answered, too.
  const bool answered_since = info.since_acknowledged < stall || now - moved_at_ < stall / 2;
  if (!answered_since) return Progress::kBroken;
  return info.since_acknowledged < stall / 2 ? Progress::kMoving : Progress::kStalled;
}

bool ReadConnectionInfo(int fd, ConnectionInfo* info) {
  tcp_info raw{};
  socklen_t length = sizeof(raw);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &raw, &length) != 0) return false;
  info->unacknowledged_segments = raw.tcpi_unacked;
  info->retransmissions = raw.tcpi_retransmits;
  info->probes = raw.tcpi_probes;
  info->since_acknowledged = int64_t{raw.tcpi_last_ack_recv} * 1'000'000;
  return true;
}

}  // namespace railsd::tcp
