// How the connections of a TcpRail come and go: accepting, dialling, HELLO, timers.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/tcp_rail.h"

namespace railsd::tcp {
namespace {

constexpr int kMaxAcceptsPerTurn = 16;
constexpr Nanoseconds kAcceptPause = 100'000'000;  // when no descriptor is left

// Reads towards a full greeting. 1: complete, 0: more to come, -1: the connection is gone (errno).
int ReadGreeting(Connection& connection, size_t size) {
  connection.greeting.resize(size);
  while (connection.greeting_have < size) {
    const ssize_t got = ::recv(connection.fd.get(), connection.greeting.data() + connection.greeting_have,
                               size - connection.greeting_have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (got == 0) errno = ECONNRESET;
    if (got <= 0) return -1;
    connection.greeting_have += static_cast<size_t>(got);
  }
  return 1;
}

std::string PeerName(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return "(gone)";
  return address.ToString();
}

}  // namespace

absl::Status TcpRail::Init(UniqueFd listener) {
  absl::StatusOr<SocketAddress> bound = LocalAddressOf(listener.get());
  if (!bound.ok()) return bound.status();
  address_ = *bound;
  listener_.role = Connection::Role::kListener;
  listener_.fd = std::move(listener);
  wake_.role = Connection::Role::kWake;
  wake_.fd.Reset(::dup(wake_event_.fd()));
  if (!wake_.fd.valid()) return absl::ErrnoToStatus(errno, "dup of the wake descriptor");
  if (!Watch(listener_, EPOLLIN) || !Watch(wake_, EPOLLIN)) return absl::ErrnoToStatus(errno, "epoll_ctl");
  WatchLink();
  return absl::OkStatus();
}

void TcpRail::Notice(std::string* last, const std::string& text) {
  if (!options_.on_notice || *last == text) return;
  *last = text;
  options_.on_notice(text);
}

bool TcpRail::Watch(Connection& connection, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &connection;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.fd.get(), &event) == 0;
}

void TcpRail::Rearm(Connection& connection, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &connection;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), &event);
}

// Closes at once; events of this round may still point to the object.
void TcpRail::Discard(std::unique_ptr<Connection>& connection) {
  if (connection == nullptr) return;
  connection->fd.Reset();
  graveyard_.push_back(std::move(connection));
}

// --- Connections that others dial ---

// The oldest gives way that has not said who it is, although what it has sent was looked at first: strangers who only
// connect must not push out peers. There is room for both connections of every peer at both ends of a bad moment.
void TcpRail::MakeRoomForHalfOpen() {
  const size_t most = std::max(options_.max_half_open, 4 * peers_.size());
  while (half_open_.size() >= most) {
    auto victim = std::find_if(half_open_.begin(), half_open_.end(),
                               [](const auto& connection) { return connection->greeted == nullptr; });
    if (victim != half_open_.end()) {
      Connection* const silent = victim->get();
      OnHalfOpen(*silent);
      victim = std::find_if(half_open_.begin(), half_open_.end(),
                            [&](const auto& connection) { return connection.get() == silent; });
      if (victim == half_open_.end() || silent->greeted != nullptr) continue;
    } else {
      victim = half_open_.begin();
    }
    options_.refused->Count(Limit::kHalfOpen);
    Context::Add(context_.counters.refused_connections, 1);
    Discard(*victim);
    half_open_.erase(victim);
  }
}

void TcpRail::AcceptAll() {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    UniqueFd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      Notice(&inbound_notice_, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node,
                                            ": cannot accept: ", std::strerror(errno), " (raise LimitNOFILE)"));
      accepting_ = false;  // else the listener would keep the thread spinning
      Rearm(listener_, 0);
      Arm(Now() + kAcceptPause);
      return;
    }
    MakeRoomForHalfOpen();
    TuneAccepted(fd.get(), tuning_);
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->deadline = Now() + absl::ToInt64Nanoseconds(options_.handshake_time);
    if (!Watch(*connection, EPOLLIN)) continue;
    Arm(connection->deadline);
    half_open_.push_back(std::move(connection));
  }
}

Refusal TcpRail::Judge(const Hello& hello, Peer** peer) {
  if (hello.version_min > kProtocolVersion || hello.version_max < kProtocolVersion) return Refusal::kWrongVersion;
  if (hello.expected_node != options_.node || hello.expected_boot != options_.boot.value()) return Refusal::kNotMe;
  if (hello.rail != options_.rail.value()) return Refusal::kWrongRail;
  const auto found = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const auto& entry) { return entry.second->config.node == hello.node; });
  if (found == peers_.end()) return Refusal::kUnknownNode;
  if (found->second->config.boot.value() != hello.boot) return Refusal::kWrongBoot;
  if ((hello.features & kTlsRecords) != Features()) return Refusal::kUnlikeTls;
  *peer = found->second.get();
  const Peer& known = **peer;
  if (hello.generation <= known.ended_generation) return Refusal::kStale;  // what arrived over it was told for good
  if (known.receiver == nullptr || hello.generation > known.in_generation) return Refusal::kNone;
  const auto& place = hello.kind == ConnectionKind::kBulk ? known.in_bulk : known.in_small;
  return hello.generation < known.in_generation || place != nullptr ? Refusal::kStale : Refusal::kNone;
}

void TcpRail::OnHalfOpen(Connection& connection) {
  const auto place = std::find_if(half_open_.begin(), half_open_.end(),
                                  [&](const auto& candidate) { return candidate.get() == &connection; });
  for (;;) {
    const bool greeted = connection.greeted != nullptr;
    const int state = ReadGreeting(connection, greeted ? kProofBytes : kHelloBytes);
    if (state == 0) return;
    if (state > 0 && !greeted && OnHello(connection)) continue;  // the proof may be there already
    std::unique_ptr<Connection> owned = std::move(*place);
    half_open_.erase(place);
    if (state > 0 && greeted) return OnProof(std::move(owned));
    return Discard(owned);
  }
}

// False: the connection is of no use.
bool TcpRail::OnHello(Connection& connection) {
  Hello hello;
  if (!DecodeHello(connection.greeting, &hello)) {
    Context::Add(context_.counters.protocol_errors, 1);
    Notice(&inbound_notice_, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node, ": what ",
                                          PeerName(connection.fd.get()), " sent is no HELLO"));
    return false;
  }
  Peer* peer = nullptr;
  const Refusal refusal = Judge(hello, &peer);
  if (refusal != Refusal::kNone) TellRefusal(connection, hello, refusal);
  const bool welcome = Welcome(connection, hello, peer, refusal);
  connection.greeting.clear();
  connection.greeting_have = 0;
  return welcome;
}

void TcpRail::TellRefusal(const Connection& connection, const Hello& hello, Refusal refusal) {
  Context::Add(context_.counters.refused_connections, 1);
  // A peer that learnt of us a moment before we learn of it comes here on every start: that is no news.
  if (refusal == Refusal::kUnknownNode) return;
  Notice(&inbound_notice_, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node, " (boot ",
                                        absl::Hex(options_.boot.value(), absl::kZeroPad16), ") refused ", hello.node,
                                        " (boot ", absl::Hex(hello.boot, absl::kZeroPad16), ", rail ", hello.rail,
                                        ", versions ", hello.version_min, " to ", hello.version_max, ", for ",
                                        hello.expected_node, " boot ", absl::Hex(hello.expected_boot, absl::kZeroPad16),
                                        ") from ", PeerName(connection.fd.get()), ": ", RefusalText(refusal)));
}

// Answers the HELLO. True: the caller was accepted and is to prove who it is.
bool TcpRail::Welcome(Connection& connection, const Hello& hello, const Peer* peer, Refusal refusal) {
  Answer answer;
  answer.refusal = refusal;
  answer.boot = options_.boot.value();
  answer.max_frame_bytes = kMaxFrameBytes;
  answer.rail = options_.rail.value();
  answer.features = Features();
  answer.node = options_.node;
  const bool accepted = refusal == Refusal::kNone && peer != nullptr;
  if (accepted) answer.nonce = DrawNonce();
  std::array<std::byte, kAnswerBytes> bytes;
  EncodeAnswer(answer, absl::MakeSpan(bytes));
  if (accepted) {
    answer.mac = AnswerMac(peer->config.key, connection.greeting, bytes);
    EncodeAnswer(answer, absl::MakeSpan(bytes));
    connection.greeted =
        std::make_unique<Greeted>(Greeted{hello, ProofMac(peer->config.key, connection.greeting, bytes), answer.nonce});
  }
  // A fresh socket has room for so little; if not, it is not worth keeping.
  const bool told = ::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(bytes.size());
  return accepted && told;
}

void TcpRail::NoticeUnproven(const std::string& who, int fd) {
  Context::Add(context_.counters.refused_connections, 1);
  Context::Add(context_.counters.protocol_errors, 1);
  Notice(&inbound_notice_, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node, ": ", PeerName(fd),
                                        " says that it is ", who, " and did not prove it"));
}

void TcpRail::OnProof(std::unique_ptr<Connection> connection) {
  const std::unique_ptr<Greeted> greeted = std::move(connection->greeted);
  Proof proof;
  Peer* peer = nullptr;
  if (!DecodeProof(connection->greeting, &proof) || !SameMac(proof.mac, greeted->proof)) {
    NoticeUnproven(greeted->hello.node, connection->fd.get());
    return Discard(connection);
  }
  // What was right at its HELLO may not be any more.
  if (const Refusal refusal = Judge(greeted->hello, &peer); refusal != Refusal::kNone) {
    TellRefusal(*connection, greeted->hello, refusal);
    return Discard(connection);
  }
  if (!StartRecords(*connection, *peer, greeted->hello.nonce, greeted->nonce, /*dialled=*/false)) {
    NoticeNoRecords(greeted->hello.node, errno);
    return Discard(connection);
  }
  Attach(std::move(connection), greeted->hello, *peer);
}

void TcpRail::Attach(std::unique_ptr<Connection> connection, const Hello& hello, Peer& peer) {
  if (peer.receiver == nullptr || hello.generation > peer.in_generation) {
    DropIncoming(peer);
    peer.in_generation = hello.generation;
    peer.receiver = std::make_unique<TcpReceiver>(&context_, peer.config.peer, hello.generation);
    peer.in_deadline = connection->deadline;
  }
  connection->peer = &peer;
  connection->ready = true;
  connection->greeting = {};
  const bool bulk = hello.kind == ConnectionKind::kBulk;
  connection->role = bulk ? Connection::Role::kInBulk : Connection::Role::kInSmall;
  (bulk ? peer.in_bulk : peer.in_small) = std::move(connection);
  // Frames may be there before the proof on the other connection: they wait for it, because acknowledgements need it.
  if (peer.in_bulk != nullptr) Rearm(*peer.in_bulk, peer.in_small == nullptr ? uint32_t{EPOLLRDHUP} : ReadEvents());
  if (peer.in_bulk != nullptr && peer.in_small != nullptr) peer.in_deadline = 0;
  // The peer knows us now, so our own attempts have better prospects than the back-off thinks.
  if (!peer.up && peer.bulk == nullptr && peer.timer != 0 && !peer.sender.InDoubt()) {
    peer.timer = Now();
    Arm(peer.timer);
  }
}

// --- Connections that we dial ---

std::unique_ptr<Connection> TcpRail::DialOne(Peer& peer, Connection::Role role, int* error_number) {
  auto connection = std::make_unique<Connection>();
  connection->role = role;
  connection->peer = &peer;
  connection->fd = StartConnect(address_, peer.address, tuning_, error_number);
  if (!connection->fd.valid()) return nullptr;
  if (!Watch(*connection, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)) {
    *error_number = errno;
    connection->fd.Reset();
    return nullptr;
  }
  return connection;
}

void TcpRail::Dial(Peer& peer) {
  if (link_watch_ != nullptr && link_watch_->error() != 0) return RetryLater(peer);
  peer.generation = next_generation_++;
  peer.max_frame_bytes = kMaxFrameBytes;
  peer.timer = Now() + absl::ToInt64Nanoseconds(options_.handshake_time);
  Arm(peer.timer);
  int error_number = 0;
  peer.bulk = DialOne(peer, Connection::Role::kDialBulk, &error_number);
  if (peer.bulk != nullptr) peer.small = DialOne(peer, Connection::Role::kDialSmall, &error_number);
  if (peer.small == nullptr) DialFailed(peer, error_number, std::strerror(error_number));
}

bool TcpRail::SayHello(Connection& connection) {
  const Peer& peer = *connection.peer;
  Hello hello;
  hello.kind = connection.role == Connection::Role::kDialBulk ? ConnectionKind::kBulk : ConnectionKind::kSmall;
  hello.rail = options_.rail.value();
  hello.boot = options_.boot.value();
  hello.expected_boot = peer.config.boot.value();
  hello.generation = peer.generation;
  hello.max_frame_bytes = kMaxFrameBytes;
  hello.features = Features();
  hello.node = options_.node;
  hello.expected_node = peer.config.node;
  hello.nonce = DrawNonce();
  connection.nonce = hello.nonce;
  connection.hello.resize(kHelloBytes);
  EncodeHello(hello, absl::MakeSpan(connection.hello));
  return ::send(connection.fd.get(), connection.hello.data(), kHelloBytes, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(kHelloBytes);
}

bool TcpRail::SayProof(Connection& connection, absl::Span<const std::byte> answer) {
  std::array<std::byte, kProofBytes> bytes;
  EncodeProof({ProofMac(connection.peer->config.key, connection.hello, answer)}, absl::MakeSpan(bytes));
  return ::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

void TcpRail::OnDialling(Connection& connection, uint32_t events) {
  Peer& peer = *connection.peer;
  if (!connection.connected) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    const int error = TakeSocketError(connection.fd.get());
    if (error != 0) return DialFailed(peer, error, std::strerror(error));
    if (!SayHello(connection)) return DialFailed(peer, errno, "HELLO could not be sent");
    connection.connected = true;
  }
  const int state = ReadGreeting(connection, kAnswerBytes);
  if (state < 0) return DialFailed(peer, errno, "the connection was closed without an answer to HELLO");
  if (state > 0) OnAnswer(connection);
}

void TcpRail::OnAnswer(Connection& connection) {
  Peer& peer = *connection.peer;
  Answer answer;
  if (!DecodeAnswer(connection.greeting, &answer) || answer.version != kProtocolVersion) {
    Context::Add(context_.counters.protocol_errors, 1);
    return DialFailed(peer, EPROTO, "what answers there is no railsd of this version");
  }
  if (answer.refusal != Refusal::kNone) {
    return DialFailed(peer, ECONNREFUSED,
                      absl::StrCat("refused by ", answer.node, " (boot ", absl::Hex(answer.boot, absl::kZeroPad16),
                                   ", rail ", answer.rail, "): ", RefusalText(answer.refusal)));
  }
  if (answer.node != peer.config.node || answer.boot != peer.config.boot.value() || answer.max_frame_bytes == 0) {
    return DialFailed(
        peer, EPROTO,
        absl::StrCat("answered as ", answer.node, " (boot ", absl::Hex(answer.boot, absl::kZeroPad16), ")"));
  }
  if (!SameMac(answer.mac, AnswerMac(peer.config.key, connection.hello, connection.greeting))) {
    Context::Add(context_.counters.protocol_errors, 1);
    return DialFailed(peer, EACCES, "what answers there did not prove that it is that node");
  }
  if ((answer.features & kTlsRecords) != Features()) {
    return DialFailed(peer, EPROTO, RefusalText(Refusal::kUnlikeTls));
  }
  if (!SayProof(connection, connection.greeting)) return DialFailed(peer, errno, "the proof could not be sent");
  if (!StartRecords(connection, peer, connection.nonce, answer.nonce, /*dialled=*/true)) {
    return DialFailed(peer, errno, absl::StrCat(kNoRecords, ": ", std::strerror(errno)));
  }
  connection.ready = true;
  connection.greeting = {};
  connection.hello = {};
  peer.max_frame_bytes = std::min(peer.max_frame_bytes, answer.max_frame_bytes);
  if (!peer.bulk->ready || !peer.small->ready) return;
  Rearm(*peer.small, ReadEvents());
  peer.up = true;
  peer.writable = true;
  peer.failures = 0;
  peer.timer = 0;
  peer.notice.clear();
  peer.stall.Restart();
  peer.stalled = false;
  peer.sender.Start(peer.generation, peer.max_frame_bytes);
  Context::Add(context_.counters.connects, 1);
  PushPeerEvent(RailEvent::Kind::kPeerUp, peer, 0);
}

void TcpRail::DialFailed(Peer& peer, int error_number, const std::string& why) {
  Notice(&peer.notice, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node, " (", LocalAddress(),
                                    ") cannot reach ", peer.config.node, " at ", peer.config.address, ": ", why));
  PeerDown(peer, error_number);
}

void TcpRail::HangUp(Peer& peer) {
  Discard(peer.bulk);
  Discard(peer.small);
  peer.writable = false;
}

void TcpRail::RetryLater(Peer& peer) {
  const int64_t least = absl::ToInt64Nanoseconds(options_.min_back_off);
  const int64_t most = absl::ToInt64Nanoseconds(options_.max_back_off);
  const int64_t pause = std::min(most, least << std::min(peer.failures, 20u));
  ++peer.failures;
  peer.timer = Now() + pause;
  Arm(peer.timer);
}

void TcpRail::SetPeer(const RailPeer& config) {
  std::unique_ptr<Peer>& peer = peers_[config.peer];
  if (peer != nullptr && peer->config.boot == config.boot && peer->config.address == config.address &&
      peer->config.node == config.node && peer->config.key == config.key) {
    return;
  }
  if (peer != nullptr) {
    // The old daemon's connections, both ways, end with it, and nobody is left who could say what arrived.
    const bool another = peer->config.boot != config.boot;
    if (another) peer->sender.Fail(SendResult::kRailFailed, ESTALE);
    if (!peer->sender.InDoubt() || peer->up) PeerDown(*peer, ESTALE);
    DropIncoming(*peer);
    if (another) peer->ended_generation = 0;
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
    Notice(&peer->notice, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node, ": peer ", config.node,
                                       ": ", std::string(address.status().message())));
    return;
  }
  peer->address = *address;
  if (!peer->sender.InDoubt()) Dial(*peer);
}

void TcpRail::RemovePeer(PeerIndex index) {
  const auto found = peers_.find(index);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  HangUp(peer);
  DropIncoming(peer);
  peer.sender.Fail(SendResult::kStopped, 0);
  std::erase(active_, &peer);
  std::erase(owing_, &peer);
  peers_.erase(found);
}

// --- Time ---

void TcpRail::RunTimers(Nanoseconds now) {
  next_timer_ = INT64_MAX;
  if (!std::exchange(accepting_, true)) Rearm(listener_, EPOLLIN);
  while (!half_open_.empty() && half_open_.front()->deadline <= now) {
    options_.refused->Count(Limit::kRailHandshake);
    Context::Add(context_.counters.refused_connections, 1);
    Discard(half_open_.front());
    half_open_.pop_front();
  }
  if (!half_open_.empty()) Arm(half_open_.front()->deadline);
  if (stall_check_ != 0 && stall_check_ <= now) CheckStalls(now);
  if (stall_check_ != 0) Arm(stall_check_);
  for (auto& [index, owned] : peers_) {
    Peer& peer = *owned;
    if (peer.in_deadline != 0 && peer.in_deadline <= now) DropIncoming(peer);
    if (peer.in_deadline != 0) Arm(peer.in_deadline);
    if (peer.up || peer.timer == 0) continue;
    if (peer.timer <= now) {
      if (peer.sender.InDoubt()) {
        OnDoubtTimer(peer, now);
      } else if (peer.bulk != nullptr) {
        DialFailed(peer, ETIMEDOUT, "no answer in time");  // arms the next attempt
      } else {
        Dial(peer);
      }
    }
    Arm(peer.timer);
  }
}

}  // namespace railsd::tcp
