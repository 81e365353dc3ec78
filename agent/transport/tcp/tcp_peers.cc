// How the peers of a TcpRail come and go: dialling, timers, the rail's interface, networks that swallow packets.
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/kernel_tls.h"
#include "agent/transport/tcp/tcp_rail.h"

namespace railsd::tcp {
namespace {

constexpr Nanoseconds kLooksPerStall = 8;

}  // namespace

absl::Status TcpRail::Init(UniqueFd listener) {
  absl::StatusOr<SocketAddress> bound = LocalAddressOf(listener.get());
  if (!bound.ok()) return bound.status();
  address_ = *bound;
  wake_.role = Connection::Role::kWake;
  wake_.fd.Reset(::fcntl(wake_event_.fd(), F_DUPFD_CLOEXEC, 0));
  if (!wake_.fd.valid()) return absl::ErrnoToStatus(errno, "dup of the wake descriptor");
  if (!acceptor_.Listen(std::move(listener)) || !poller_.Watch(wake_, EPOLLIN)) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  WatchLink();
  return absl::OkStatus();
}

void TcpRail::SetPeer(const RailPeer& config) {
  std::unique_ptr<Peer>& peer = peers_[config.peer];
  if (peer != nullptr && peer->config.boot == config.boot && peer->config.address == config.address &&
      peer->config.node == config.node && peer->config.key == config.key) {
    if (peer->up() && peer->generation == config.ended) {
      PeerDown(*peer, EHOSTDOWN);
      DropIncoming(*peer);
    }
    return;
  }
  if (peer != nullptr) {  // ends the connections to and from the peer as it was known before
    PeerDown(*peer, ESTALE);
    DropIncoming(*peer);
    acceptor_.Drop(peer->config.node);
    if (peer->config.boot != config.boot) peer->in_generation = 0;
  } else {
    peer = std::make_unique<Peer>(&context_);
    active_.reserve(peers_.size());
    owing_.reserve(peers_.size());
  }
  peer->config = config;
  peer->failures = 0;
  peer->notice.clear();
  const absl::StatusOr<SocketAddress> address = ParseAddress(config.address);
  if (!address.ok()) {
    peer->timer = 0;  // nowhere to dial; the peer may still reach us
    context_.Notice(&peer->notice, absl::StrCat(": peer ", config.node, ": ", address.status().message()));
    return;
  }
  peer->address = *address;
  Dial(*peer);
}

void TcpRail::RemovePeer(PeerIndex index) {
  const auto found = peers_.find(index);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  poller_.Discard(peer.out);
  DropIncoming(peer);
  acceptor_.Drop(peer.config.node);
  peer.sender.StopAll();
  std::erase(active_, &peer);
  std::erase(owing_, &peer);
  peers_.erase(found);
}

// --- The connection that the peer dials ---

void TcpRail::Attach(Peer& peer, std::unique_ptr<Connection> connection, uint64_t generation) {
  DropIncoming(peer);
  peer.in_generation = generation;
  peer.receiver = std::make_unique<TcpReceiver>(&context_, peer.config.peer, generation);
  peer.in = std::move(connection);
  peer.in->role = Connection::Role::kIn;
  peer.in->peer = &peer;
  peer.in->greeting = {};
  poller_.Rearm(*peer.in, ReadEvents());
  // The peer knows us now, so dial at once: do not wait for the back-off, or for an attempt that is not connected yet.
  if (peer.timer != 0 && (peer.out == nullptr || peer.out->hello.empty())) {
    poller_.Discard(peer.out);
    Arm(peer.timer = Now());
  }
}

void TcpRail::DropIncoming(Peer& peer) {
  poller_.Discard(peer.in);
  peer.receiver.reset();
  peer.acks_blocked = peer.acks_under_way = false;
  peer.in_stall.Restart();
}

// --- The connection that we dial ---

void TcpRail::Dial(Peer& peer) {
  if (link_watch_ != nullptr && link_watch_->error() != 0) return RetryLater(peer);
  peer.generation = next_generation_++;
  Arm(peer.timer = Now() + absl::ToInt64Nanoseconds(context_.options.handshake_time));
  peer.out = std::make_unique<Connection>();
  peer.out->role = Connection::Role::kDialling;
  peer.out->peer = &peer;
  int error_number = 0;
  peer.out->fd = StartConnect(address_, peer.address, tuning_, &error_number);
  if (error_number == 0 && !poller_.Watch(*peer.out, kDialledEvents)) error_number = errno;
  if (error_number != 0) DialFailed(peer, error_number, std::strerror(error_number));
}

bool TcpRail::SayHello(Connection& connection) {
  const Peer& peer = *connection.peer;
  Hello hello;
  hello.rail = context_.options.rail.value();
  hello.boot = context_.options.boot.value();
  hello.expected_boot = peer.config.boot.value();
  hello.generation = peer.generation;
  hello.max_frame_bytes = kMaxFrameBytes;
  hello.features = context_.options.tls ? kTlsRecords : 0;
  hello.node = context_.options.node;
  hello.expected_node = peer.config.node;
  hello.nonce = connection.nonce = DrawNonce();
  connection.hello.resize(kHelloBytes);
  EncodeHello(hello, absl::MakeSpan(connection.hello));
  return SendGreeting(connection, connection.hello);
}

void TcpRail::OnDialling(Connection& connection, uint32_t events) {
  Peer& peer = *connection.peer;
  if (connection.hello.empty()) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    const int error = TakeSocketError(connection.fd.get());
    if (error != 0) return DialFailed(peer, error, std::strerror(error));
    if (!SayHello(connection)) return DialFailed(peer, errno, "HELLO could not be sent");
  }
  const int state = ReadGreeting(connection, kAnswerBytes);
  if (state < 0) return DialFailed(peer, errno, "the connection was closed without an answer to HELLO");
  if (state > 0) OnAnswer(connection);
}

void TcpRail::OnAnswer(Connection& connection) {
  Peer& peer = *connection.peer;
  Answer answer;
  if (!DecodeAnswer(connection.greeting, &answer) || answer.version != kProtocolVersion) {
    AddTo(context_.counters.protocol_errors, 1);
    return DialFailed(peer, EPROTO, "the other end is no railsd of this version");
  }
  const std::string who = absl::StrCat(answer.node, " (boot ", absl::Hex(answer.boot, absl::kZeroPad16));
  if (answer.refusal != Refusal::kNone) {
    return DialFailed(peer, ECONNREFUSED,
                      absl::StrCat("refused by ", who, ", rail ", answer.rail, "): ", RefusalText(answer.refusal)));
  }
  if (answer.node != peer.config.node || answer.boot != peer.config.boot.value()) {
    return DialFailed(peer, EPROTO, absl::StrCat("answered as ", who, ")"));
  }
  if (!SameMac(answer.mac, AnswerMac(peer.config.key, connection.hello, connection.greeting))) {
    AddTo(context_.counters.protocol_errors, 1);
    return DialFailed(peer, EACCES, "the other end did not prove that it is that node");
  }
  if (((answer.features & kTlsRecords) != 0) != context_.options.tls) {
    return DialFailed(peer, EPROTO, RefusalText(Refusal::kUnlikeTls));
  }
  if (answer.max_frame_bytes < kLeastMaxFrameBytes) {
    AddTo(context_.counters.protocol_errors, 1);
    return DialFailed(peer, EPROTO,
                      absl::StrCat("it takes frames of ", answer.max_frame_bytes, " bytes at most, fewer than ",
                                   kLeastMaxFrameBytes));
  }
  std::array<std::byte, kProofBytes> proof;
  EncodeProof({ProofMac(peer.config.key, connection.hello, connection.greeting)}, absl::MakeSpan(proof));
  if (!SendGreeting(connection, proof)) return DialFailed(peer, errno, "the proof could not be sent");
  if (context_.options.tls) {
    const int error =
        StartKernelTls(connection.fd.get(), peer.config.key, connection.nonce, answer.nonce, /*dialled=*/true);
    if (error != 0) return DialFailed(peer, error, absl::StrCat(kNoKernelTls, ": ", std::strerror(error)));
  }
  PeerUp(peer, answer.max_frame_bytes);
}

void TcpRail::PeerUp(Peer& peer, uint32_t max_frame_bytes) {
  peer.out->role = Connection::Role::kOut;
  poller_.Rearm(*peer.out, kDialledEvents);  // bytes, or an end, that came with the answer make an edge again
  peer.out->greeting = {};
  peer.out->hello = {};
  peer.writable = true;
  peer.failures = 0;
  peer.timer = 0;
  peer.notice.clear();
  peer.stall.Restart();
  peer.stalled = false;
  peer.sender.Start(peer.generation, max_frame_bytes);
  AddTo(context_.counters.connects, 1);
  PushPeerEvent(RailEvent::Kind::kPeerUp, peer, 0);
}

void TcpRail::DialFailed(Peer& peer, int error_number, const std::string& why) {
  context_.Notice(&peer.notice, absl::StrCat(" (", address_.ToString(), ") cannot reach ", peer.config.node, " at ",
                                             peer.config.address, ": ", why));
  PeerDown(peer, error_number);
}

// Closes the dialled connection, gives its orders back and schedules another attempt.
void TcpRail::PeerDown(Peer& peer, int error_number) {
  const bool was_up = peer.up();
  poller_.Discard(peer.out);
  peer.writable = false;
  peer.sender.Break(error_number);
  AddTo(was_up ? context_.counters.disconnects : context_.counters.connect_failures, 1);
  if (was_up) PushPeerEvent(RailEvent::Kind::kPeerDown, peer, error_number);
  RetryLater(peer);
}

void TcpRail::RetryLater(Peer& peer) {
  const int64_t least = absl::ToInt64Nanoseconds(context_.options.min_back_off);
  const int64_t most = absl::ToInt64Nanoseconds(context_.options.max_back_off);
  Arm(peer.timer = Now() + std::min(most, least << std::min(peer.failures, 20u)));
  ++peer.failures;
}

void TcpRail::RunTimers(Nanoseconds now) {
  next_timer_ = INT64_MAX;
  if (stall_check_ != 0 && stall_check_ <= now) CheckStalls(now);
  if (stall_check_ != 0) Arm(stall_check_);
  for (auto& [index, peer] : peers_) {
    if (peer->timer == 0) continue;
    if (peer->timer > now) {
      Arm(peer->timer);
    } else if (peer->out != nullptr) {
      DialFailed(*peer, ETIMEDOUT, "no answer in time");
    } else {
      Dial(*peer);
    }
  }
}

// --- The rail's interface: its connections end at once when it goes down, and are dialled at once when it is up ---

// Without the watch the rail works, and detects a dead link later.
void TcpRail::WatchLink() {
  auto watch = std::make_unique<LinkWatch>(address_, context_.options.interface);
  absl::Status status = watch->Open();
  if (status.ok()) {
    link_.role = Connection::Role::kLink;
    link_.fd.Reset(::fcntl(watch->fd(), F_DUPFD_CLOEXEC, 0));
    if (!link_.fd.valid() || !poller_.Watch(link_, EPOLLIN)) status = absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  if (!status.ok()) {
    link_.fd.Reset();
    context_.Notice(&link_notice_,
                    absl::StrCat(": the kernel's messages about its link cannot be read: ", status.message()));
    return;
  }
  link_watch_ = std::move(watch);
}

void TcpRail::OnLinkMessages() {
  if (!link_watch_->Read()) return;
  const bool down = link_watch_->error() != 0;
  context_.events.Push(
      {.kind = down ? RailEvent::Kind::kLinkDown : RailEvent::Kind::kLinkUp, .error_number = link_watch_->error()});
  for (auto& [index, peer] : peers_) {
    if (down) {
      if (peer->out != nullptr) PeerDown(*peer, link_watch_->error());
      DropIncoming(*peer);
    } else {
      peer->failures = 0;
      if (peer->up() || peer->timer == 0) continue;
      poller_.Discard(peer->out);
      Arm(peer->timer = Now());
    }
  }
}

// --- Networks that swallow packets: the kernel is asked about connections while bytes are unacknowledged ---

// Schedules a check, because bytes were sent that must be acknowledged.
void TcpRail::ExpectProgress() {
  if (stall_check_ != 0 || stall_ <= 0) return;
  Arm(stall_check_ = Now() + stall_ / kLooksPerStall);
}

void TcpRail::CheckStalls(Nanoseconds now) {
  bool any = false;
  for (auto& [index, peer] : peers_) {
    if (peer->up() && peer->sender.HasOrders()) {
      any = true;
      CheckOutgoing(*peer, now);
    } else if (peer->stalled) {
      TellStall(*peer, false);
    }
    any = CheckIncoming(*peer, now) || any;
  }
  stall_check_ = any ? now + stall_ / kLooksPerStall : 0;
}

void TcpRail::CheckOutgoing(Peer& peer, Nanoseconds now) {
  ConnectionInfo info;
  if (!ReadConnectionInfo(peer.out->fd.get(), &info)) return;
  const Progress progress = peer.stall.Judge(info, now, stall_);
  if (progress == Progress::kBroken) return PeerDown(peer, ETIMEDOUT);
  if ((progress == Progress::kStalled) != peer.stalled) TellStall(peer, progress == Progress::kStalled);
}

// True while the network has not acknowledged all acknowledgements that were sent to the peer.
bool TcpRail::CheckIncoming(Peer& peer, Nanoseconds now) {
  ConnectionInfo info;
  if (!peer.acks_under_way || !ReadConnectionInfo(peer.in->fd.get(), &info)) return false;
  if (peer.in_stall.Judge(info, now, stall_) == Progress::kBroken) {
    DropIncoming(peer);
    return false;
  }
  peer.acks_under_way = info.unacknowledged_segments > 0 || info.probes > 0;
  return peer.acks_under_way;
}

void TcpRail::TellStall(Peer& peer, bool stalled) {
  peer.stalled = stalled;
  PushPeerEvent(RailEvent::Kind::kPeerStalled, peer, stalled ? ETIMEDOUT : 0);
}

}  // namespace railsd::tcp
