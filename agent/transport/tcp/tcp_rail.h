// The TCP transport itself: peers, connections, timers and the poll loop. Everything but Wake() is the rail's thread's.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_RAIL_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_RAIL_H_

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "agent/base/unique_fd.h"
#include "agent/base/wake_event.h"
#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/link_watch.h"
#include "agent/transport/tcp/recount.h"
#include "agent/transport/tcp/stall.h"
#include "agent/transport/tcp/tcp_context.h"
#include "agent/transport/tcp/tcp_receiver.h"
#include "agent/transport/tcp/tcp_sender.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "agent/transport/tcp/tcp_transport.h"

namespace railsd::tcp {

using Nanoseconds = int64_t;  // of the monotonic clock

struct Peer;

// A half-open connection whose HELLO was accepted: what must come next.
struct Greeted {
  Hello hello;
  Mac proof;
  std::array<std::byte, 32> nonce{};  // of the answer
};

// Why a connection whose proof was good is given up nevertheless.
inline constexpr char kNoRecords[] = "the kernel's TLS could not be turned on";

struct Connection {
  enum class Role { kListener, kWake, kLink, kHalfOpen, kDialBulk, kDialSmall, kInBulk, kInSmall };
  Role role = Role::kHalfOpen;
  UniqueFd fd;           // invalid once closed; the object lives on until the poll round is over
  Peer* peer = nullptr;  // once known
  Nanoseconds deadline = 0;
  bool connected = false;           // dialled: HELLO was sent
  bool ready = false;               // the handshake is over
  std::vector<std::byte> greeting;  // HELLO, its answer or the proof while it arrives
  size_t greeting_have = 0;
  std::vector<std::byte> hello;       // dialled: as it was sent
  std::array<std::byte, 32> nonce{};  // dialled: of that
  std::unique_ptr<Greeted> greeted;   // half open: since the answer
};

struct Peer {
  explicit Peer(Context* context) : sender(context) {}
  RailPeer config;
  SocketAddress address;
  std::string notice;  // the last one, so as not to repeat it

  // Out: dialled by us.
  TcpSender sender;
  std::unique_ptr<Connection> bulk, small;
  uint64_t generation = 0;
  uint32_t max_frame_bytes = 0;
  bool up = false;
  bool writable = false;
  bool active = false;  // in TcpRail::active_
  uint32_t failures = 0;
  Nanoseconds timer = 0;  // next attempt, the end of the one under way, or when to ask again what arrived
  StallWatch stall;
  bool stalled = false;  // as the engine was told
  // While `sender` is in doubt:
  int doubt_error = 0;
  Nanoseconds doubt_deadline = 0;

  // In: dialled by the peer.
  std::unique_ptr<Connection> in_bulk, in_small;
  std::unique_ptr<TcpReceiver> receiver;
  uint64_t in_generation = 0;
  Nanoseconds in_deadline = 0;  // for the other half of the pair; 0 when complete
  bool owes_acks = false;       // in TcpRail::owing_
  bool acks_blocked = false;    // waiting for in_small to be writable
  StallWatch in_stall;
  bool acks_under_way = false;  // perhaps not acknowledged by the network yet
  // Of the last pair that was closed: what its sender may ask for.
  uint64_t ended_generation = 0, ended_frames = 0;
};

class TcpRail final : public RailTransport {
 public:
  TcpRail(TcpOptions options, const SocketAddress& address, const SocketTuning& tuning, UniqueFd epoll, WakeEvent wake);
  ~TcpRail() override;

  absl::Status Init(UniqueFd listener);

  std::string LocalAddress() const override { return address_.ToString(); }
  void SetPeer(const RailPeer& peer) override;
  void RemovePeer(PeerIndex peer) override;
  size_t Post(absl::Span<const SendOrder> orders) override;
  void StopSends(JobTag job) override;
  void OpenZones(std::shared_ptr<const ReceiveSet> zones) override;
  void CloseZones(uint32_t slot, uint32_t generation, bool writers_stopped) override;
  void OnSignal(PeerIndex peer, const std::string& bytes) override;
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override;
  void Wake() override;
  const RailCounters& counters() const override { return context_.counters; }

 private:
  // tcp_rail.cc: orders, frames, the poll loop.
  void WaitForWake(absl::Duration max_wait);
  void PollOnce(Nanoseconds deadline, bool may_wait);
  void Dispatch(Connection& connection, uint32_t events);
  void Activate(Peer& peer);
  void SendActive();
  void SendAcks(bool all);
  void OnInBulk(Connection& connection);
  void OnInSmall(Connection& connection, uint32_t events);
  void OnDialBulk(Connection& connection, uint32_t events);
  void OnDialSmall(Connection& connection);
  void PushPeerEvent(RailEvent::Kind kind, const Peer& peer, int error_number);
  void BadPeer(const Peer& peer);

  // tcp_handshake.cc: how connections come and go.
  bool Watch(Connection& connection, uint32_t events);
  void Rearm(Connection& connection, uint32_t events);
  void Discard(std::unique_ptr<Connection>& connection);
  void AcceptAll();
  void MakeRoomForHalfOpen();
  void OnHalfOpen(Connection& connection);
  bool OnHello(Connection& connection);
  bool Welcome(Connection& connection, const Hello& hello, const Peer* peer, Refusal refusal);
  void TellRefusal(const Connection& connection, const Hello& hello, Refusal refusal);
  void OnProof(std::unique_ptr<Connection> connection);
  void NoticeUnproven(const std::string& who, int fd);
  Refusal Judge(const Hello& hello, Peer** peer);
  void Attach(std::unique_ptr<Connection> connection, const Hello& hello, Peer& peer);
  void Dial(Peer& peer);
  std::unique_ptr<Connection> DialOne(Peer& peer, Connection::Role role, int* error_number);
  void OnDialling(Connection& connection, uint32_t events);
  bool SayHello(Connection& connection);
  void OnAnswer(Connection& connection);
  bool SayProof(Connection& connection, absl::Span<const std::byte> answer);
  void DialFailed(Peer& peer, int error_number, const std::string& why);
  void HangUp(Peer& peer);
  void RetryLater(Peer& peer);
  void RunTimers(Nanoseconds now);
  void Arm(Nanoseconds when) { next_timer_ = std::min(next_timer_, when); }
  void Notice(std::string* last, const std::string& text);

  // tcp_records.cc: TLS by the kernel.
  uint64_t Features() const { return options_.tls ? kTlsRecords : 0; }
  bool StartRecords(const Connection& connection, const Peer& peer, absl::Span<const std::byte> dialler,
                    absl::Span<const std::byte> acceptor, bool dialled);
  uint32_t ReadEvents() const;
  void NoticeNoRecords(const std::string& who, int error_number);
  void CountBadRecord(int error_number);

  // tcp_link.cc: what the kernel says of the rail's interface.
  void WatchLink();
  void OnLinkMessages();
  void CutOff(Peer& peer);
  void DialNow(Peer& peer);

  // tcp_stall.cc: networks that swallow packets.
  void ExpectProgress();
  void CheckStalls(Nanoseconds now);
  void CheckOutgoing(Peer& peer, Nanoseconds now);
  bool CheckIncoming(Peer& peer, Nanoseconds now);
  void TellStall(Peer& peer, bool stalled);

  // tcp_recount.cc: what arrived before a connection broke.
  void PeerDown(Peer& peer, int error_number);
  void AskWhatArrived(Peer& peer);
  void SendRecount(const Peer& peer, Recount recount);
  void GiveUpDoubt(Peer& peer);
  void OnDoubtTimer(Peer& peer, Nanoseconds now);
  void OnAsked(Peer& peer, uint64_t generation);
  void DropIncoming(Peer& peer);

  TcpOptions options_;
  SocketTuning tuning_;
  SocketAddress address_;
  Context context_;
  WakeEvent wake_event_;
  std::atomic<bool> woken_{false};
  UniqueFd epoll_;
  Connection listener_;
  Connection wake_;
  std::unique_ptr<LinkWatch> link_watch_;  // null where the kernel gives none
  Connection link_;
  bool accepting_ = true;  // false while no descriptor is left
  absl::flat_hash_map<PeerIndex, std::unique_ptr<Peer>> peers_;
  std::deque<std::unique_ptr<Connection>> half_open_;  // oldest first
  std::vector<std::unique_ptr<Connection>> graveyard_;
  std::vector<Peer*> active_;    // up, writable, with something to send
  std::vector<Peer*> owing_;     // with acknowledgements to send
  const Nanoseconds stall_;      // unacknowledged for so long: broken; 0: never
  Nanoseconds stall_check_ = 0;  // the next look; 0: nothing is under way
  uint64_t next_generation_ = 1;
  Nanoseconds next_timer_ = INT64_MAX;
  std::string inbound_notice_;
  std::array<epoll_event, 64> ready_;
};

Nanoseconds Now();

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_RAIL_H_
