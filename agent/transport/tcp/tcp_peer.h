// One peer of a TCP rail: the connection to it and the one from it.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_PEER_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_PEER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "agent/transport/tcp/stall.h"
#include "agent/transport/tcp/tcp_connection.h"
#include "agent/transport/tcp/tcp_context.h"
#include "agent/transport/tcp/tcp_receiver.h"
#include "agent/transport/tcp/tcp_sender.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd::tcp {

struct Peer {
  explicit Peer(Context* context) : sender(context) {}
  bool up() const { return out != nullptr && out->role == Connection::Role::kOut; }

  RailPeer config;
  SocketAddress address;
  std::string notice;  // the last one, so as not to repeat it

  // Out: dialled by us.
  TcpSender sender;
  std::unique_ptr<Connection> out;
  uint64_t generation = 0;  // of `out`, or of the last one
  bool writable = false;
  bool active = false;  // in TcpRail::active_
  uint32_t failures = 0;
  Nanoseconds timer = 0;  // next attempt, or time-out of the one under way; 0: neither
  StallWatch stall;
  bool stalled = false;  // as the engine was told

  // In: dialled by the peer.
  std::unique_ptr<Connection> in;
  std::unique_ptr<TcpReceiver> receiver;  // of `in`
  uint64_t in_generation = 0;             // of `in`, or of the last one; older ones are refused
  bool owes_acks = false;                 // in TcpRail::owing_
  bool acks_blocked = false;              // until `in` is writable
  bool acks_under_way = false;            // the network may not have acknowledged them yet
  StallWatch in_stall;
};

using Peers = absl::flat_hash_map<PeerIndex, std::unique_ptr<Peer>>;

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_PEER_H_
