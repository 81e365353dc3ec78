// Accepts connections that peers dial, and keeps each until the peer has proven who it is.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_ACCEPTOR_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_ACCEPTOR_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "agent/transport/tcp/tcp_peer.h"

namespace railsd::tcp {

// Owned by the rail's thread. Trusts nothing that it reads.
class TcpAcceptor {
 public:
  // Takes a connection whose peer has proven who it is, and its generation.
  using Attach = std::function<void(Peer& peer, std::unique_ptr<Connection> connection, uint64_t generation)>;

  // The arguments' targets must outlive it.
  TcpAcceptor(Context* context, Poller* poller, const SocketTuning* tuning, const Peers* peers, Attach attach)
      : context_(context), poller_(poller), tuning_(tuning), peers_(peers), attach_(std::move(attach)) {}

  // False, with errno, when the listener cannot be watched.
  bool Listen(UniqueFd listener);
  // The listener is readable.
  void AcceptAll();
  // `connection` is half open, and readable.
  void OnHalfOpen(Connection& connection);

  // Ends half-open connections whose HELLO from `node` was answered, because the answer uses a key that is no longer
  // valid.
  void Drop(const std::string& node);

  // When RunTimers() is to be called.
  Nanoseconds deadline() const { return deadline_; }
  void RunTimers(Nanoseconds now);

 private:
  void MakeRoom();
  bool OnHello(Connection& connection);
  Refusal Judge(const Hello& hello, Peer** peer) const;
  bool Welcome(Connection& connection, const Hello& hello, const Peer* peer, Refusal refusal);
  void OnProof(std::unique_ptr<Connection> connection);
  void TellRefusal(const Connection& connection, const Hello& hello, Refusal refusal);
  // Counts a connection that was refused, and says why once.
  void Refuse(const std::string& why);
  void Arm(Nanoseconds when) { deadline_ = std::min(deadline_, when); }

  Context* const context_;
  Poller* const poller_;
  const SocketTuning* const tuning_;
  const Peers* const peers_;
  const Attach attach_;
  Connection listener_;
  bool accepting_ = true;                              // false while no descriptor is left
  std::deque<std::unique_ptr<Connection>> half_open_;  // oldest first
  Nanoseconds deadline_ = INT64_MAX;
  std::string notice_;  // the last one
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_ACCEPTOR_H_
