#include "agent/transport/tcp/tcp_rail.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace railsd::tcp {
namespace {

// How much one connection moves before it is the next one's turn.
constexpr uint64_t kTurnBytes = 2 << 20;
constexpr size_t kScratchBytes = 64 << 10;

}  // namespace

Nanoseconds Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TcpRail::TcpRail(TcpOptions options, const SocketAddress& address, const SocketTuning& tuning, UniqueFd epoll,
                 WakeEvent wake)
    : options_(std::move(options)),
      tuning_(tuning),
      address_(address),
      context_(options_.max_posted_orders, options_.max_receive_events),
      wake_event_(std::move(wake)),
      epoll_(std::move(epoll)),
      stall_(absl::ToInt64Nanoseconds(options_.stall)) {
  context_.frame_bytes = options_.frame_bytes;
  if (options_.tls) context_.scratch.resize(kScratchBytes);
}

TcpRail::~TcpRail() = default;

void TcpRail::PushPeerEvent(RailEvent::Kind kind, const Peer& peer, int error_number) {
  RailEvent event;
  event.kind = kind;
  event.peer = peer.config.peer;
  event.error_number = error_number;
  event.cookie = peer.config.boot.value();
  context_.events.Push(event);
}

void TcpRail::BadPeer(const Peer& peer) {
  Context::Add(context_.counters.protocol_errors, 1);
  PushPeerEvent(RailEvent::Kind::kBadPeer, peer, EPROTO);
}

size_t TcpRail::Post(absl::Span<const SendOrder> orders) {
  size_t taken = 0;
  for (const SendOrder& order : orders) {
    if (!context_.events.CanHoldOrder()) break;
    ++taken;
    context_.events.HoldOrder();
    Context::Add(context_.counters.posted_bytes, order.length_bytes);
    const auto found = peers_.find(order.flow->peer);
    if (found == peers_.end() || !found->second->up) {
      context_.PushSendDone(order, SendResult::kReturned, ENOTCONN);
      continue;
    }
    found->second->sender.Add(order);
    ExpectProgress();
    Activate(*found->second);
  }
  return taken;
}

void TcpRail::StopSends(JobTag job) {
  for (auto& [index, peer] : peers_) {
    peer->sender.Stop(job);
    Activate(*peer);  // a half-sent frame must still be finished
  }
}

void TcpRail::OpenZones(std::shared_ptr<const ReceiveSet> zones) {
  std::shared_ptr<const ReceiveSet>& place = context_.zones[{zones->slot, zones->generation}];
  if (place != nullptr) {
    for (auto& [index, peer] : peers_) {
      if (peer->receiver != nullptr) peer->receiver->Close(place.get());
    }
  }
  place = std::move(zones);
}

void TcpRail::CloseZones(uint32_t slot, uint32_t generation, bool /*writers_stopped*/) {
  const auto found = context_.zones.find({slot, generation});
  if (found != context_.zones.end()) {
    // Receives happen on this thread only, inside Poll(): none is under way now.
    for (auto& [index, peer] : peers_) {
      if (peer->receiver != nullptr) peer->receiver->Close(found->second.get());
    }
    context_.zones.erase(found);
  }
  RailEvent event;
  event.kind = RailEvent::Kind::kZonesClosed;
  event.zone.slot = slot;
  event.zone.generation = generation;
  context_.events.Push(event);
}

void TcpRail::Wake() {
  woken_.exchange(true, std::memory_order_acq_rel);
  wake_event_.Wake();
}

void TcpRail::Activate(Peer& peer) {
  if (peer.active || !peer.up || !peer.writable || !peer.sender.HasWork()) return;
  peer.active = true;
  active_.push_back(&peer);
}

void TcpRail::SendActive() {
  // Peers that go down meanwhile only leave the list here.
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    Peer& peer = *active_[i];
    peer.active = false;
    if (!peer.up) continue;
    int error_number = 0;
    switch (peer.sender.Send(peer.bulk->fd.get(), kTurnBytes, &error_number)) {
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

// `all` false: only to those who wait for them, while there is more to receive; the fewer acknowledgements, the less
// processor time.
void TcpRail::SendAcks(bool all) {
  size_t kept = 0;
  for (Peer* peer : owing_) {
    if (!all && peer->receiver != nullptr && !peer->receiver->AcksAreDue()) {
      owing_[kept++] = peer;
      continue;
    }
    peer->owes_acks = false;
    if (peer->in_small == nullptr || peer->acks_blocked) continue;
    const int error = peer->receiver->SendAcks(peer->in_small->fd.get());
    peer->acks_under_way = true;
    ExpectProgress();
    if (error == EAGAIN) {
      peer->acks_blocked = true;
      Rearm(*peer->in_small, EPOLLIN | EPOLLOUT);
      Rearm(*peer->in_bulk, 0);  // whoever does not read acknowledgements sends no frames
    } else if (error != 0) {
      DropIncoming(*peer);
    }
  }
  owing_.resize(kept);
}

void TcpRail::OnInBulk(Connection& connection) {
  Peer& peer = *connection.peer;
  int error_number = 0;
  // Of half a pair only the end is listened for.
  const TcpReceiver::Outcome outcome = peer.in_small == nullptr
                                           ? TcpReceiver::Outcome::kClosed
                                           : peer.receiver->Receive(connection.fd.get(), kTurnBytes, &error_number);
  if (outcome == TcpReceiver::Outcome::kProtocol) {
    BadPeer(peer);
    DropIncoming(peer);
    return;
  }
  if (outcome == TcpReceiver::Outcome::kClosed) {
    CountBadRecord(error_number);
    DropIncoming(peer);
    return;
  }
  // What is left in the socket makes no edge by itself.
  if (options_.tls && outcome != TcpReceiver::Outcome::kDrained) Rearm(connection, ReadEvents());
  if (peer.receiver->HasAcks() && !peer.owes_acks) {
    peer.owes_acks = true;
    owing_.push_back(&peer);
  }
}

void TcpRail::OnInSmall(Connection& connection, uint32_t events) {
  Peer& peer = *connection.peer;
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
    std::byte unexpected;
    Context::Add(context_.counters.rx_system_calls, 1);
    const ssize_t got = ::recv(connection.fd.get(), &unexpected, 1, MSG_DONTWAIT);
    if (got > 0) BadPeer(peer);  // nothing is defined in this direction yet
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) {
      if (got < 0) CountBadRecord(errno);
      DropIncoming(peer);
      return;
    }
  }
  if ((events & EPOLLOUT) != 0 && peer.acks_blocked) {
    peer.acks_blocked = false;
    Rearm(connection, EPOLLIN);
    if (peer.in_bulk != nullptr) Rearm(*peer.in_bulk, ReadEvents());
    if (!peer.owes_acks) {
      peer.owes_acks = true;
      owing_.push_back(&peer);
    }
  }
}

void TcpRail::OnDialBulk(Connection& connection, uint32_t events) {
  Peer& peer = *connection.peer;
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0) {
    std::byte unexpected;
    Context::Add(context_.counters.rx_system_calls, 1);
    const ssize_t got = ::recv(connection.fd.get(), &unexpected, 1, MSG_DONTWAIT);
    const int error = got == 0 ? ECONNRESET : errno;
    if (got > 0) BadPeer(peer);
    if (got >= 0 || (error != EAGAIN && error != EINTR)) {
      if (got < 0) CountBadRecord(error);
      PeerDown(peer, got > 0 ? EPROTO : error);
      return;
    }
  }
  if ((events & EPOLLOUT) != 0) {
    peer.writable = true;
    Activate(peer);
  }
}

void TcpRail::OnDialSmall(Connection& connection) {
  Peer& peer = *connection.peer;
  std::array<std::byte, 4096> buffer;
  for (;;) {
    Context::Add(context_.counters.rx_system_calls, 1);
    const ssize_t got = ::recv(connection.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      const int error = got == 0 ? ECONNRESET : errno;
      CountBadRecord(error);
      PeerDown(peer, error);
      return;
    }
    if (!peer.sender.OnAckBytes({buffer.data(), static_cast<size_t>(got)})) {
      BadPeer(peer);
      PeerDown(peer, EPROTO);
      return;
    }
    Activate(peer);  // room for frames
    if (static_cast<size_t>(got) < buffer.size()) return;
  }
}

void TcpRail::Dispatch(Connection& connection, uint32_t events) {
  switch (connection.role) {
    case Connection::Role::kWake:
      return;  // WakeEvent::EndSleep() has emptied it
    case Connection::Role::kLink:
      return OnLinkMessages();
    case Connection::Role::kListener:
      return AcceptAll();
    case Connection::Role::kHalfOpen:
      return OnHalfOpen(connection);
    case Connection::Role::kInBulk:
      return OnInBulk(connection);
    case Connection::Role::kInSmall:
      return OnInSmall(connection, events);
    case Connection::Role::kDialBulk:
      return connection.ready ? OnDialBulk(connection, events) : OnDialling(connection, events);
    case Connection::Role::kDialSmall:
      return connection.ready ? OnDialSmall(connection) : OnDialling(connection, events);
  }
}

// One round: send, wait if allowed, receive, acknowledge.
void TcpRail::PollOnce(Nanoseconds deadline, bool may_wait) {
  graveyard_.clear();
  Nanoseconds now = Now();
  if (now >= next_timer_) RunTimers(now);
  SendActive();
  SendAcks(/*all=*/false);
  may_wait = may_wait && active_.empty() && context_.events.empty();
  int wait_ms = 0;
  if (may_wait) {
    const Nanoseconds until = std::min(deadline, next_timer_);
    wait_ms = until <= now ? 0 : static_cast<int>(std::min<Nanoseconds>((until - now + 999999) / 1000000, 60000));
    wake_event_.BeginSleep();
    if (woken_.load(std::memory_order_acquire)) wait_ms = 0;
  }
  const auto wait = [&](int ms) {
    return ::epoll_wait(epoll_.get(), ready_.data(), static_cast<int>(ready_.size()), ms);
  };
  int count = wait(owing_.empty() ? wait_ms : 0);
  if (count <= 0 && !owing_.empty()) {
    SendAcks(/*all=*/true);
    if (wait_ms > 0) count = wait(wait_ms);
  }
  if (may_wait) wake_event_.EndSleep();
  for (int i = 0; i < count; ++i) {
    auto& connection = *static_cast<Connection*>(ready_[static_cast<size_t>(i)].data.ptr);
    if (connection.fd.valid()) Dispatch(connection, ready_[static_cast<size_t>(i)].events);
  }
  SendAcks(/*all=*/false);
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
  Context::Add(context_.counters.polls, 1);
  if (out.empty()) {
    WaitForWake(max_wait);
    return 0;
  }
  ++context_.poll_number;
  context_.parked = false;
  const Nanoseconds deadline =
      max_wait <= absl::ZeroDuration() ? 0 : Now() + absl::ToInt64Nanoseconds(std::min(max_wait, absl::Hours(1)));
  for (;;) {
    PollOnce(deadline, deadline != 0);
    if (!context_.events.empty() || context_.parked) break;
    if (woken_.load(std::memory_order_relaxed) || deadline == 0 || Now() >= deadline) break;
  }
  woken_.exchange(false, std::memory_order_acq_rel);
  return context_.events.Take(out);
}

}  // namespace railsd::tcp
