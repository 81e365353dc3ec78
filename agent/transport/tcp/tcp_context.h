// Shared by the parts of one TCP transport. Everything here belongs to the rail's thread.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_CONTEXT_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_CONTEXT_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/transport/event_queue.h"
#include "agent/transport/tcp/tcp_transport.h"
#include "agent/transport/transport.h"

namespace railsd::tcp {

inline constexpr size_t kMaxIovecs = 1024;  // UIO_MAXIOV
// The least that a frame or a system call is charged to a turn's budget: even a short one costs time.
inline constexpr uint64_t kLeastCharge = 4 << 10;

// One posted order. Linked in the order of posting within its peer.
struct OrderSlot {
  SendOrder order;
  uint64_t cut_bytes = 0;  // handed to frames
  uint32_t frames_in_flight = 0;
  uint32_t next = kNoOrder;
  uint32_t previous = kNoOrder;
  bool fence_cut = false;
  bool refused = false;  // the receiver refused a frame; the order sends no more frames

  // A byte of it was handed to the socket.
  bool begun() const { return cut_bytes > 0 || fence_cut; }
  bool wholly_cut() const { return cut_bytes == order.length_bytes && (order.weight == 0 || fence_cut); }
};

struct Context {
  explicit Context(TcpOptions options);

  // Passes `text`, after the names of rail and node, to TcpOptions::on_notice, unless `*last` is the same text.
  void Notice(std::string* last, const std::string& text) const;

  const TcpOptions options;
  RailCounters counters;
  EventQueue events;
  OrderPool<OrderSlot> orders;
  std::array<iovec, kMaxIovecs> iovecs;
  // Buffer for bytes that are discarded from TLS records, which the kernel cannot drop without a copy. Empty without
  // TLS.
  std::vector<std::byte> scratch;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_CONTEXT_H_
