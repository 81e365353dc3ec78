#include "agent/transport/tcp/tcp_rail.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "agent/transport/tcp/kernel_tls.h"

namespace railsd::tcp {
namespace {

// The most bytes that one connection moves before the next one has its turn.
constexpr uint64_t kTurnBytes = 2 << 20;
constexpr int kMaxAckReadsPerTurn = 16;
// Rounds of the poll loop after which acknowledgements are sent even if they are not due.
constexpr int kRoundsPerAck = 16;

}  // namespace

TcpRail::TcpRail(TcpOptions options, const SocketAddress& address, const SocketTuning& tuning, UniqueFd epoll,
                 WakeEvent wake)
    : tuning_(tuning),
      address_(address),
      context_(std::move(options)),
      wake_event_(std::move(wake)),
      poller_(std::move(epoll)),
      acceptor_(&context_, &poller_, &tuning_, &peers_,
                [this](Peer& peer, std::unique_ptr<Connection> connection, uint64_t generation) {
                  Attach(peer, std::move(connection), generation);
                }),
      stall_(absl::ToInt64Nanoseconds(context_.options.stall)) {}

TcpRail::~TcpRail() = default;

TransportInfo TcpRail::Info() { return {.address = address_.ToString(), .counters = &context_.counters}; }

void TcpRail::PushPeerEvent(RailEvent::Kind kind, const Peer& peer, int error_number) {
  context_.events.Push({.kind = kind,
                        .peer = peer.config.peer,
                        .error_number = error_number,
                        .cookie = peer.config.link,
                        .connection = peer.generation});
}

void TcpRail::BadPeer(const Peer& peer) {
  AddTo(context_.counters.protocol_errors, 1);
  PushPeerEvent(RailEvent::Kind::kBadPeer, peer, EPROTO);
}

size_t TcpRail::Post(absl::Span<const SendOrder> orders) {
  return TakeOrders(context_.events, context_.counters, orders, [this](const SendOrder& order) {
    const auto found = peers_.find(order.stream->peer);
    if (found == peers_.end() || !found->second->up() || found->second->generation != order.connection) return false;
    found->second->sender.Add(order);
    ExpectProgress();
    Activate(*found->second);
    return true;
  });
}

void TcpRail::StopSends(JobTag job) {
  for (auto& [index, peer] : peers_) {
    peer->sender.Stop(job);
    Activate(*peer);  // a half-sent frame must still be finished
  }
}

void TcpRail::Wake() {
  woken_.exchange(true, std::memory_order_acq_rel);
  wake_event_.Wake();
}

void TcpRail::Activate(Peer& peer) {
  if (peer.active || !peer.up() || !peer.writable || !peer.sender.HasWork()) return;
  peer.active = true;
  active_.push_back(&peer);
}

void TcpRail::SendActive() {
  // Peers that have gone down leave the list only here.
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    Peer& peer = *active_[i];
    peer.active = false;
    if (!peer.up()) continue;
    int error_number = 0;
    switch (peer.sender.Send(peer.out->fd.get(), kTurnBytes, &error_number)) {
      case TcpSender::Outcome::kIdle:
        break;
      case TcpSender::Outcome::kBlocked:
        peer.writable = false;
        break;
      case TcpSender::Outcome::kMore:
        peer.active = true;
        active_[kept++] = &peer;
        break;
      case TcpSender::Outcome::kFailed:
        PeerDown(peer, error_number);
        break;
    }
  }
  active_.resize(kept);
}

void TcpRail::Owe(Peer& peer) {
  if (peer.owes_acks) return;
  peer.owes_acks = true;
  owing_.push_back(&peer);
}

// `all` false: sends acknowledgements only to senders that may wait for them, because fewer acknowledgements cost less
// processor time.
void TcpRail::SendAcks(bool all) {
  size_t kept = 0;
  for (Peer* peer : owing_) {
    if (!all && peer->receiver != nullptr && !peer->receiver->AcksAreDue()) {
      owing_[kept++] = peer;
      continue;
    }
    peer->owes_acks = false;
    if (peer->in == nullptr || peer->acks_blocked) continue;
    const int error = peer->receiver->SendAcks(peer->in->fd.get());
    peer->acks_under_way = true;
    ExpectProgress();
    if (error == EAGAIN) {
      peer->acks_blocked = true;
      poller_.Rearm(*peer->in, EPOLLOUT);  // no frames are read from a peer that does not read acknowledgements
    } else if (error != 0) {
      DropIncoming(*peer);
    }
  }
  owing_.resize(kept);
}

// Events to wait for on connections on which frames come in. With TLS the kernel reports a socket as readable when only
// a part of a record is there, which cannot be read yet. A level-triggered wait would keep the thread spinning; an edge
// comes with the whole record.
uint32_t TcpRail::ReadEvents() const { return context_.options.tls ? EPOLLIN | EPOLLET : EPOLLIN; }

// Counts a changed TLS record, because networks do not change records. It ends its connection like any failure of the
// network.
void TcpRail::CountBadRecord(int error_number) {
  if (context_.options.tls && IsBadRecord(error_number)) AddTo(context_.counters.protocol_errors, 1);
}

void TcpRail::OnIn(Connection& connection) {
  Peer& peer = *connection.peer;
  if (peer.acks_blocked) {  // until now
    peer.acks_blocked = false;
    poller_.Rearm(connection, ReadEvents());
    return Owe(peer);
  }
  // Without room for events the connection has no turn. It keeps its older number, so the next round puts it before
  // connections that have used the room.
  if (context_.events.CanReceive()) connection.last_turn = ++turns_;
  int error_number = 0;
  const TcpReceiver::Outcome outcome = peer.receiver->Receive(connection.fd.get(), kTurnBytes, &error_number);
  if (outcome == TcpReceiver::Outcome::kProtocol) {
    BadPeer(peer);
    return DropIncoming(peer);
  }
  if (outcome == TcpReceiver::Outcome::kClosed) {
    CountBadRecord(error_number);
    return DropIncoming(peer);
  }
  // Bytes that are left in the socket make no edge by themselves.
  if (context_.options.tls && outcome != TcpReceiver::Outcome::kDrained) poller_.Rearm(connection, ReadEvents());
  if (peer.receiver->HasAcks()) Owe(peer);
}

void TcpRail::OnOut(Connection& connection, uint32_t events) {
  Peer& peer = *connection.peer;
  constexpr uint32_t kEnds = EPOLLRDHUP | EPOLLERR | EPOLLHUP;
  if ((events & EPOLLOUT) != 0) peer.writable = true;
  if ((events & (EPOLLIN | kEnds)) != 0) {
    if (const int error = ReadAcks(peer, (events & kEnds) != 0); error != 0) return PeerDown(peer, error);
  }
  Activate(peer);  // room in the socket, or for frames
}

// `to_the_end`: no further edge will come. Returns 0, or why the connection is of no use any more.
int TcpRail::ReadAcks(Peer& peer, bool to_the_end) {
  std::array<std::byte, 4096> buffer;
  for (int i = 0; i < kMaxAckReadsPerTurn; ++i) {
    AddTo(context_.counters.rx_system_calls, 1);
    const ssize_t got = ::recv(peer.out->fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (got <= 0) {
      const int error = got == 0 ? ECONNRESET : errno;
      CountBadRecord(error);
      return error;
    }
    if (!peer.sender.OnAckBytes({buffer.data(), static_cast<size_t>(got)})) {
      BadPeer(peer);
      return EPROTO;
    }
    // A short read has emptied the socket. Records are read one by one.
    if (static_cast<size_t>(got) < buffer.size() && !to_the_end && !context_.options.tls) return 0;
  }
  poller_.Rearm(*peer.out, kDialledEvents);  // for another edge
  return 0;
}

void TcpRail::Dispatch(Connection& connection, uint32_t events) {
  switch (connection.role) {
    case Connection::Role::kWake:
      return;  // WakeEvent::EndSleep() has emptied it
    case Connection::Role::kLink:
      return OnLinkMessages();
    case Connection::Role::kListener:
      return acceptor_.AcceptAll();
    case Connection::Role::kHalfOpen:
      return acceptor_.OnHalfOpen(connection);
    case Connection::Role::kDialling:
      return OnDialling(connection, events);
    case Connection::Role::kOut:
      return OnOut(connection, events);
    case Connection::Role::kIn:
      return OnIn(connection);
  }
}

// One round: send, wait if allowed, receive, acknowledge.
void TcpRail::PollOnce(Nanoseconds deadline, bool may_wait) {
  const Nanoseconds now = Now();
  if (now >= next_timer_) RunTimers(now);
  if (now >= acceptor_.deadline()) acceptor_.RunTimers(now);
  SendActive();
  SendAcks(/*all=*/false);
  may_wait = may_wait && active_.empty() && context_.events.empty();
  if (may_wait) wake_event_.BeginSleep();
  const auto wait_ms = [&] {
    if (!may_wait || woken_.load(std::memory_order_acquire)) return 0;
    const Nanoseconds until = std::min({deadline, next_timer_, acceptor_.deadline()});
    return until <= now ? 0 : static_cast<int>(std::min<Nanoseconds>((until - now + 999999) / 1000000, 60000));
  };
  absl::Span<const epoll_event> ready = poller_.Wait(owing_.empty() ? wait_ms() : 0);
  if (ready.empty() && !owing_.empty()) {
    SendAcks(/*all=*/true);
    // Computed again, because SendAcks() may have scheduled a check for stalls that is due earlier.
    if (const int left_ms = wait_ms(); left_ms > 0) ready = poller_.Wait(left_ms);
  }
  if (may_wait) wake_event_.EndSleep();
  for (const epoll_event& event : ready) {
    auto& connection = *static_cast<Connection*>(event.data.ptr);
    if (connection.fd.valid()) Dispatch(connection, event.events);
  }
  // A sender with a small window may wait for acknowledgements that are not due, and other peers may keep this thread
  // from ever being idle.
  rounds_owing_ = owing_.empty() ? 0 : rounds_owing_ + 1;
  SendAcks(/*all=*/rounds_owing_ >= kRoundsPerAck);
}

void TcpRail::WaitForWake(absl::Duration max_wait) {
  wake_event_.BeginSleep();
  if (!woken_.load(std::memory_order_acquire)) {
    pollfd wake{wake_event_.fd(), POLLIN, 0};
    ::poll(&wake, 1, static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(max_wait), 0, 60000)));
  }
  wake_event_.EndSleep();
  woken_.exchange(false, std::memory_order_acq_rel);
}

size_t TcpRail::Poll(absl::Duration max_wait, absl::Span<RailEvent> out) {
  AddTo(context_.counters.polls, 1);
  if (out.empty()) {
    WaitForWake(max_wait);
    return 0;
  }
  const Nanoseconds deadline =
      max_wait <= absl::ZeroDuration() ? 0 : Now() + absl::ToInt64Nanoseconds(std::min(max_wait, absl::Hours(1)));
  for (;;) {
    PollOnce(deadline, deadline != 0);
    if (!context_.events.empty()) break;
    if (woken_.load(std::memory_order_relaxed) || deadline == 0 || Now() >= deadline) break;
  }
  woken_.exchange(false, std::memory_order_acq_rel);
  return context_.events.Take(out);
}

}  // namespace railsd::tcp
