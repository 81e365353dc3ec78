#include "agent/transport/tcp/tcp_acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/kernel_tls.h"

namespace railsd::tcp {
namespace {

constexpr int kMaxAcceptsPerTurn = 16;
constexpr Nanoseconds kAcceptPause = 100'000'000;  // when no descriptor is left

std::string AddressOfPeer(const Connection& connection) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (::getpeername(connection.fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return "(gone)";
  }
  return address.ToString();
}

auto Find(std::deque<std::unique_ptr<Connection>>& connections, const Connection* wanted) {
  return std::find_if(connections.begin(), connections.end(),
                      [&](const auto& connection) { return connection.get() == wanted; });
}

}  // namespace

bool TcpAcceptor::Listen(UniqueFd listener) {
  listener_.role = Connection::Role::kListener;
  listener_.fd = std::move(listener);
  return poller_->Watch(listener_, EPOLLIN);
}

void TcpAcceptor::Refuse(const std::string& why) {
  AddTo(context_->counters.refused_connections, 1);
  context_->Notice(&notice_, why);
}

// Closes the oldest half-open connection whose HELLO has not come, or else the oldest one. Bytes that have arrived are
// read first, so that strangers that only connect do not push out peers. There is room for two connections of every
// peer.
void TcpAcceptor::MakeRoom() {
  const size_t most = std::max(context_->options.max_half_open, 2 * peers_->size());
  while (half_open_.size() >= most) {
    auto victim = std::find_if(half_open_.begin(), half_open_.end(),
                               [](const auto& connection) { return connection->greeted == nullptr; });
    if (victim != half_open_.end()) {
      Connection* const silent = victim->get();
      OnHalfOpen(*silent);
      victim = Find(half_open_, silent);
      if (victim == half_open_.end() || silent->greeted != nullptr) continue;
    } else {
      victim = half_open_.begin();
    }
    context_->options.refused->Count(Limit::kHalfOpen);
    AddTo(context_->counters.refused_connections, 1);
    poller_->Discard(*victim);
    half_open_.erase(victim);
  }
}

void TcpAcceptor::AcceptAll() {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    UniqueFd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      context_->Notice(&notice_, absl::StrCat(": cannot accept: ", std::strerror(errno), " (raise LimitNOFILE)"));
      accepting_ = false;  // else the listener would keep the thread spinning
      poller_->Rearm(listener_, 0);
      Arm(Now() + kAcceptPause);
      return;
    }
    MakeRoom();
    TuneAccepted(fd.get(), *tuning_);
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->deadline = Now() + absl::ToInt64Nanoseconds(context_->options.handshake_time);
    if (!poller_->Watch(*connection, EPOLLIN)) continue;
    Arm(connection->deadline);
    half_open_.push_back(std::move(connection));
  }
}

void TcpAcceptor::RunTimers(Nanoseconds now) {
  deadline_ = INT64_MAX;
  if (!std::exchange(accepting_, true)) poller_->Rearm(listener_, EPOLLIN);
  while (!half_open_.empty() && half_open_.front()->deadline <= now) {
    context_->options.refused->Count(Limit::kRailHandshake);
    AddTo(context_->counters.refused_connections, 1);
    poller_->Discard(half_open_.front());
    half_open_.pop_front();
  }
  if (!half_open_.empty()) Arm(half_open_.front()->deadline);
}

void TcpAcceptor::Drop(const std::string& node) {
  std::erase_if(half_open_, [&](std::unique_ptr<Connection>& connection) {
    if (connection->greeted == nullptr || connection->greeted->hello.node != node) return false;
    poller_->Discard(connection);
    return true;
  });
}

void TcpAcceptor::OnHalfOpen(Connection& connection) {
  const auto place = Find(half_open_, &connection);
  for (;;) {
    const bool greeted = connection.greeted != nullptr;
    const int state = ReadGreeting(connection, greeted ? kProofBytes : kHelloBytes);
    if (state == 0) return;
    if (state > 0 && !greeted && OnHello(connection)) continue;  // the proof may be there already
    std::unique_ptr<Connection> owned = std::move(*place);
    half_open_.erase(place);
    if (state > 0 && greeted) return OnProof(std::move(owned));
    return poller_->Discard(owned);
  }
}

// False: the connection is of no use.
bool TcpAcceptor::OnHello(Connection& connection) {
  Hello hello;
  if (!DecodeHello(connection.greeting, &hello)) {
    AddTo(context_->counters.protocol_errors, 1);
    context_->Notice(&notice_, absl::StrCat(": ", AddressOfPeer(connection), " sent no HELLO"));
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

Refusal TcpAcceptor::Judge(const Hello& hello, Peer** peer) const {
  const TcpOptions& options = context_->options;
  if (hello.version_min > kProtocolVersion || hello.version_max < kProtocolVersion) return Refusal::kWrongVersion;
  if (hello.expected_node != options.node || hello.expected_boot != options.boot.value()) return Refusal::kNotMe;
  if (hello.rail != options.rail.value()) return Refusal::kWrongRail;
  const auto found = std::find_if(peers_->begin(), peers_->end(),
                                  [&](const auto& entry) { return entry.second->config.node == hello.node; });
  if (found == peers_->end()) return Refusal::kUnknownNode;
  *peer = found->second.get();
  if ((*peer)->config.boot.value() != hello.boot) return Refusal::kWrongBoot;
  if (((hello.features & kTlsRecords) != 0) != options.tls) return Refusal::kUnlikeTls;
  return hello.generation <= (*peer)->in_generation ? Refusal::kStale : Refusal::kNone;
}

void TcpAcceptor::TellRefusal(const Connection& connection, const Hello& hello, Refusal refusal) {
  // On every start, a peer may learn of us before we learn of it, and dial: give no notice.
  if (refusal == Refusal::kUnknownNode) return AddTo(context_->counters.refused_connections, 1);
  Refuse(absl::StrCat(" (boot ", absl::Hex(context_->options.boot.value(), absl::kZeroPad16), ") refused ", hello.node,
                      " (boot ", absl::Hex(hello.boot, absl::kZeroPad16), ", rail ", hello.rail, ", versions ",
                      hello.version_min, " to ", hello.version_max, ", for ", hello.expected_node, " boot ",
                      absl::Hex(hello.expected_boot, absl::kZeroPad16), ") from ", AddressOfPeer(connection), ": ",
                      RefusalText(refusal)));
}

// Answers the HELLO. True: the caller was accepted and is to prove who it is.
bool TcpAcceptor::Welcome(Connection& connection, const Hello& hello, const Peer* peer, Refusal refusal) {
  Answer answer;
  answer.refusal = refusal;
  answer.boot = context_->options.boot.value();
  answer.max_frame_bytes = kMaxFrameBytes;
  answer.rail = context_->options.rail.value();
  answer.features = context_->options.tls ? kTlsRecords : 0;
  answer.node = context_->options.node;
  const bool accepted = refusal == Refusal::kNone;
  if (accepted) answer.nonce = DrawNonce();
  std::array<std::byte, kAnswerBytes> bytes;
  EncodeAnswer(answer, absl::MakeSpan(bytes));
  if (accepted) {
    answer.mac = AnswerMac(peer->config.key, connection.greeting, bytes);
    EncodeAnswer(answer, absl::MakeSpan(bytes));
    connection.greeted =
        std::make_unique<Greeted>(Greeted{hello, ProofMac(peer->config.key, connection.greeting, bytes), answer.nonce});
  }
  return SendGreeting(connection, bytes) && accepted;
}

void TcpAcceptor::OnProof(std::unique_ptr<Connection> connection) {
  const std::unique_ptr<Greeted> greeted = std::move(connection->greeted);
  const Hello& hello = greeted->hello;
  Proof proof;
  if (!DecodeProof(connection->greeting, &proof) || !SameMac(proof.mac, greeted->proof)) {
    AddTo(context_->counters.protocol_errors, 1);
    Refuse(absl::StrCat(": ", AddressOfPeer(*connection), " says that it is ", hello.node, " and did not prove it"));
    return poller_->Discard(connection);
  }
  // Judge the HELLO again: the peers may have changed since.
  Peer* peer = nullptr;
  if (const Refusal refusal = Judge(hello, &peer); refusal != Refusal::kNone) {
    TellRefusal(*connection, hello, refusal);
    return poller_->Discard(connection);
  }
  if (context_->options.tls) {
    // Only the proof's own bytes have been read. All bytes after it are records.
    const int error =
        StartKernelTls(connection->fd.get(), peer->config.key, hello.nonce, greeted->nonce, /*dialled=*/false);
    if (error != 0) {
      Refuse(
          absl::StrCat(": a connection of ", hello.node, " was given up: ", kNoKernelTls, ": ", std::strerror(error)));
      return poller_->Discard(connection);
    }
  }
  attach_(*peer, std::move(connection), hello.generation);
}

}  // namespace railsd::tcp
