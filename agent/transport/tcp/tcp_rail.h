// The TCP transport itself: peers, timers and the poll loop. Everything but Wake() and Info() is the rail's thread's.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_RAIL_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_RAIL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/base/unique_fd.h"
#include "agent/base/wake_event.h"
#include "agent/transport/tcp/link_watch.h"
#include "agent/transport/tcp/tcp_acceptor.h"
#include "agent/transport/tcp/tcp_peer.h"
#include "agent/transport/tcp/tcp_transport.h"

namespace railsd::tcp {

class TcpRail final : public RailTransport {
 public:
  TcpRail(TcpOptions options, const SocketAddress& address, const SocketTuning& tuning, UniqueFd epoll, WakeEvent wake);
  ~TcpRail() override;

  absl::Status Init(UniqueFd listener);

  TransportInfo Info() override;
  void SetPeer(const RailPeer& peer) override;
  void RemovePeer(PeerIndex peer) override;
  size_t Post(absl::Span<const SendOrder> orders) override;
  void StopSends(JobTag job) override;
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override;
  void Wake() override;

 private:
  // tcp_rail.cc: orders, frames, the poll loop.
  void WaitForWake(absl::Duration max_wait);
  void PollOnce(Nanoseconds deadline, bool may_wait);
  void Dispatch(Connection& connection, uint32_t events);
  void Activate(Peer& peer);
  void SendActive();
  void Owe(Peer& peer);
  void SendAcks(bool all);
  void OnIn(Connection& connection);
  void OnOut(Connection& connection, uint32_t events);
  int ReadAcks(Peer& peer, bool to_the_end);
  uint32_t ReadEvents() const;
  void CountBadRecord(int error_number);
  void PushPeerEvent(RailEvent::Kind kind, const Peer& peer, int error_number);
  void BadPeer(const Peer& peer);

  // tcp_peers.cc: how peers come and go, and what the network does to them.
  void Attach(Peer& peer, std::unique_ptr<Connection> connection, uint64_t generation);
  void DropIncoming(Peer& peer);
  void Dial(Peer& peer);
  void OnDialling(Connection& connection, uint32_t events);
  bool SayHello(Connection& connection);
  void OnAnswer(Connection& connection);
  void PeerUp(Peer& peer, uint32_t max_frame_bytes);
  void DialFailed(Peer& peer, int error_number, const std::string& why);
  void PeerDown(Peer& peer, int error_number);
  void RetryLater(Peer& peer);
  void RunTimers(Nanoseconds now);
  void Arm(Nanoseconds when) { next_timer_ = std::min(next_timer_, when); }
  void WatchLink();
  void OnLinkMessages();
  void ExpectProgress();
  void CheckStalls(Nanoseconds now);
  void CheckOutgoing(Peer& peer, Nanoseconds now);
  bool CheckIncoming(Peer& peer, Nanoseconds now);
  void TellStall(Peer& peer, bool stalled);

  const SocketTuning tuning_;
  SocketAddress address_;
  Context context_;
  WakeEvent wake_event_;
  std::atomic<bool> woken_{false};
  Poller poller_;
  Peers peers_;
  TcpAcceptor acceptor_;
  Connection wake_;
  std::unique_ptr<LinkWatch> link_watch_;  // null if the kernel gives no messages about links
  Connection link_;
  std::string link_notice_;
  std::vector<Peer*> active_;    // up, writable, with something to send
  std::vector<Peer*> owing_;     // with acknowledgements to send
  int rounds_owing_ = 0;         // since owing_ was last empty
  const Nanoseconds stall_;      // unacknowledged for so long: broken; 0: never
  Nanoseconds stall_check_ = 0;  // the next look; 0: nothing is under way
  uint64_t next_generation_ = 1;
  uint64_t turns_ = 0;  // to receive frames, of all connections
  Nanoseconds next_timer_ = INT64_MAX;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_RAIL_H_
