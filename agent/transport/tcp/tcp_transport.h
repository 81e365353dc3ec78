// A rail over TCP. Per ordered pair of nodes and rail, the sender dials one connection from its rail's address: frames
// go one way, acknowledgements the other. See frame.h.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/ids.h"
#include "agent/base/limit.h"
#include "agent/transport/transport.h"

namespace railsd {

struct TcpOptions {
  RailIndex rail;
  std::string node;  // this one; at most 255 bytes
  BootId boot;
  ZoneTable* zones = nullptr;        // this node's; outlives the transport
  std::string listen_address;        // "ip", "ip:port", "[ip6]:port"; port 0 or absent: any
  std::string interface;             // SO_BINDTODEVICE when not empty; needs CAP_NET_RAW
  uint64_t frame_bytes = 0;          // 0: about 1 ms of the rail's speed, 64 KiB to 1 MiB
  uint64_t speed_bytes_per_s = 0;    // 0: unknown, take it for fast
  size_t max_posted_orders = 1024;   // posted, or done with the event not taken
  size_t max_receive_events = 1024;  // receiving pauses while so many were not taken
  size_t max_half_open = 64;         // accepted connections without a proof; see TcpAcceptor::MakeRoom()
  int send_buffer_bytes = 0;         // of a connection; 0: the kernel's own tuning
  int receive_buffer_bytes = 0;      // of a connection; 0: the kernel's own tuning
  absl::Duration min_back_off = absl::Milliseconds(5);  // between attempts to connect; doubles
  absl::Duration max_back_off = absl::Seconds(1);
  absl::Duration handshake_time = absl::Seconds(3);  // from connecting to the answer, or to the proof
  absl::Duration peer_silence = absl::Seconds(10);   // a peer that answers nothing for so long is gone
  // Data that the network (not the peer's process) has not acknowledged for so long, in spite of retransmissions, ends
  // its connection; 0: only `peer_silence` does.
  absl::Duration stall = absl::Milliseconds(400);
  // Half-open connections that `max_half_open` or `handshake_time` has ended.
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();
  // The kernel makes TLS records on every connection, each with keys of its own. CheckKernelTls() says whether the
  // kernel can. The other end must have the same setting.
  bool tls = false;
  // Called with the reason when a connection fails or is refused. Runs on the rail's thread, never for an order or a
  // frame, and not again while the reason stays the same. May be empty.
  std::function<void(const std::string&)> on_notice;
};

// Binds and listens. Errors name the rail, the address and the interface.
absl::StatusOr<std::unique_ptr<RailTransport>> CreateTcpTransport(TcpOptions options);

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_TRANSPORT_H_
