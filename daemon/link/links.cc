#include "daemon/link/links.h"

#include <pthread.h>
#include <spdlog/logger.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "agent/base/steady_now.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "daemon/link/listen.h"
#include "daemon/link/socket_connection.h"
#include "daemon/tls/tls_files.h"

namespace railsd {
namespace {

using SocketPtr = std::shared_ptr<SocketConnection>;

constexpr uint64_t kFirstConnection = 1 << 16;  // smaller keys are listening sockets
constexpr int kEvents = 64;
// Reads of one connection before the other connections get their turn.
constexpr int kReadsPerTurn = 4;

class LinksImpl final : public Links {
 public:
  LinksImpl(LinksOptions options, ConnectionHandler* handler, Listeners listeners, UniqueFd epoll)
      : options_(std::move(options)), handler_(*handler), listeners_(std::move(listeners)), epoll_(std::move(epoll)) {
    tuning_.peer_silence = options_.silence;
  }

  ~LinksImpl() override {
    stop_.store(true, std::memory_order_release);  // seen at the next tick
    if (thread_.joinable()) thread_.join();
  }

  void Run() {
    WatchListeners(EPOLLIN);
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "links");
      Loop();
    });
  }

  int port() const override { return listeners_.port; }

  ConnectionPtr Dial(const std::string& address) override {
    int error = 0;
    UniqueFd fd;
    const absl::StatusOr<tcp::SocketAddress> to = tcp::ParseAddress(address);
    if (to.ok()) fd = tcp::StartConnect({}, *to, tuning_, &error);
    const SocketPtr connection = Add({std::move(fd), address, true, SteadyNow() + options_.handshake});
    if (!to.ok() || error != 0) {
      failed_.emplace_back(connection->key(),
                           absl::UnavailableError(to.ok() ? strerror(error) : to.status().message()));
    }
    return connection;
  }

 private:
  void Watch(int fd, uint64_t key, uint32_t events, int how = EPOLL_CTL_ADD) const {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = key;
    ::epoll_ctl(epoll_.get(), how, fd, &event);
  }

  void WatchListeners(uint32_t events, int how = EPOLL_CTL_ADD) {
    for (size_t i = 0; i < listeners_.sockets.size(); ++i) Watch(listeners_.sockets[i].get(), i + 1, events, how);
    accepting_ = events != 0;
  }

  SocketPtr Add(SocketConnection::Origin origin) {
    const uint64_t key = next_key_++;
    const int fd = origin.fd.get();
    const bool dialled = origin.dialled;
    auto connection = std::make_shared<SocketConnection>(
        std::move(origin), options_.tls == nullptr ? nullptr : options_.tls->context(), epoll_.get(), key);
    connections_[key] = connection;
    if (fd >= 0) Watch(fd, key, dialled ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return connection;
  }

  void Accept(int listener) {
    tcp::SocketAddress from;
    from.length = sizeof(from.storage);
    UniqueFd fd(
        ::accept4(listener, reinterpret_cast<sockaddr*>(&from.storage), &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Without descriptors the listener stays readable and keeps the loop spinning. The next tick watches it again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) WatchListeners(0, EPOLL_CTL_MOD);
      return;
    }
    const std::string source = SourceOf(from);
    if (accepted_ >= options_.max_connections) return Refuse(Limit::kControlConnections, from.ToString());
    const auto half_open = half_open_of_.find(source);
    if (half_open != half_open_of_.end() && half_open->second >= options_.max_per_address) {
      return Refuse(Limit::kControlConnectionsPerAddress, from.ToString());
    }
    if (half_open_.size() >= options_.max_half_open) EndOldestHalfOpen();
    tcp::TuneAccepted(fd.get(), tuning_);
    const SocketPtr connection = Add({std::move(fd), from.ToString(), false, SteadyNow() + options_.handshake});
    ++accepted_;
    ++half_open_of_[source];
    half_open_[connection->key()] = source;
    Publish();
    if (options_.tls == nullptr) Begin(connection);
  }

  void Refuse(Limit limit, const std::string& address) {
    options_.refused->Count(limit);
    options_.log->warn("connection_refused address={} limit={}", address, LimitKey(limit));
  }

  // The connection is greeted now, or has ended.
  void RemoveHalfOpen(uint64_t key) {
    const auto found = half_open_.find(key);
    if (found == half_open_.end()) return;
    const auto of_source = half_open_of_.find(found->second);
    if (--of_source->second == 0) half_open_of_.erase(of_source);
    half_open_.erase(found);
    Publish();
  }

  void EndOldestHalfOpen() {
    const SocketPtr connection = connections_.at(half_open_.begin()->first);
    Refuse(Limit::kHalfOpen, connection->address());
    End(connection, absl::ResourceExhaustedError("limits.max_half_open: others came after it"));
  }

  void Publish() const { options_.counters->half_open.store(half_open_.size(), std::memory_order_relaxed); }

  void End(const SocketPtr& connection, const absl::Status& why) {
    if (connections_.erase(connection->key()) == 0) return;
    accepted_ -= !connection->dialled_here();
    RemoveHalfOpen(connection->key());
    if (connection->fd() >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->fd(), nullptr);
    connection->Close();  // other owners may keep the object and its descriptor alive
    const bool tls = options_.tls != nullptr && !connection->greeted() &&
                     (absl::IsUnauthenticated(why) || (!connection->open() && absl::IsFailedPrecondition(why)));
    if (tls) options_.counters->failed_handshakes.fetch_add(1, std::memory_order_relaxed);
    handler_.OnEnd(connection, why);
  }

  // False: the connection has ended.
  bool Begin(const SocketPtr& connection) {
    const absl::StatusOr<bool> open = connection->Open();
    if (!open.ok()) {
      End(connection, open.status());
    } else if (*open) {
      handler_.OnOpen(connection);
    }
    return open.ok();
  }

  void ReadFrom(const SocketPtr& connection) {
    ReadFrames(connection);
    if (connection->greeted()) RemoveHalfOpen(connection->key());
    // A TLS write may have waited for these bytes.
    if (connections_.contains(connection->key()) && connection->write_wants_read()) {
      const absl::StatusOr<bool> flushed = connection->Flush();
      if (flushed.ok() && *flushed) handler_.OnWritable(connection);
    }
  }

  void ReadFrames(const SocketPtr& connection) {
    for (int reads = 0; reads < kReadsPerTurn; ++reads) {
      const absl::StatusOr<bool> more = connection->Read();
      if (!more.ok())
        return End(connection, connection->closed() ? absl::CancelledError("closed here") : more.status());
      if (!*more) return;
      while (true) {
        if (connection->closed()) return End(connection, absl::CancelledError("closed here"));
        const absl::StatusOr<std::optional<Frame>> frame = connection->reader().Next();
        if (!frame.ok()) {
          const std::string why(frame.status().message());
          connection->Write(std::make_shared<const std::string>(FrameOf(FrameKind::kEnd, 0, why)));
          return End(connection, frame.status());
        }
        if (!*frame) break;
        handler_.OnFrame(connection, **frame);
      }
      if (!connection->pending()) return;
    }
    more_.insert(connection->key());  // the other connections come first
  }

  void Serve(uint64_t key, uint32_t events) {
    const auto found = connections_.find(key);
    if (found == connections_.end()) return;
    const SocketPtr connection = found->second;
    if (!connection->open()) {
      if (!Begin(connection) || !connection->open()) return;
    }
    if ((events & EPOLLOUT) != 0) {
      const absl::StatusOr<bool> flushed = connection->Flush();
      // Reads the bytes that came before the reset. Reading then returns the error, too.
      if (!flushed.ok()) events |= EPOLLIN;
      if (flushed.ok() && *flushed) handler_.OnWritable(connection);
    }
    // The handshake may already have read the first frames.
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 || connection->pending()) ReadFrom(connection);
  }

  void Tick(absl::Time now) {
    if (!accepting_) WatchListeners(EPOLLIN, EPOLL_CTL_MOD);
    std::vector<SocketPtr> late;
    uint64_t open = 0;
    for (const auto& [key, connection] : connections_) {
      open += connection->greeted();
      if (connection->greeted()) RemoveHalfOpen(key);
      if (!connection->greeted() && now >= connection->give_up()) late.push_back(connection);
    }
    options_.counters->open.store(open, std::memory_order_relaxed);
    for (const SocketPtr& connection : late) {
      if (!connection->dialled_here()) Refuse(Limit::kHandshake, connection->address());
      End(connection, absl::DeadlineExceededError(
                          absl::StrCat(connection->open() ? "no hello came within " : "not connected within ",
                                       absl::FormatDuration(options_.handshake))));
    }
    handler_.OnTick(now);
  }

  void EndFailed() {
    for (const auto& [key, why] : std::exchange(failed_, {})) {
      if (const auto found = connections_.find(key); found != connections_.end()) End(SocketPtr(found->second), why);
    }
  }

  void Loop() {
    absl::Time next_tick = absl::InfinitePast();
    epoll_event events[kEvents];
    while (!stop_.load(std::memory_order_acquire)) {
      const absl::Time now = SteadyNow();
      if (now >= next_tick) {
        next_tick = now + options_.tick;
        Tick(now);
      }
      EndFailed();
      const int64_t wait = absl::ToInt64Milliseconds(absl::Ceil(next_tick - SteadyNow(), absl::Milliseconds(1)));
      const int most = more_.empty() ? static_cast<int>(std::clamp<int64_t>(wait, 0, 1000)) : 0;
      const int count = ::epoll_wait(epoll_.get(), events, kEvents, most);
      std::set<uint64_t> more = std::exchange(more_, {});  // one turn each, whether the socket is readable or not
      for (int i = 0; i < count && !stop_.load(std::memory_order_acquire); ++i) {
        const uint64_t key = events[i].data.u64;
        if (key < kFirstConnection) {
          Accept(listeners_.sockets[key - 1].get());
        } else {
          Serve(key, events[i].events | (more.erase(key) > 0 ? EPOLLIN : 0u));
        }
      }
      for (const uint64_t key : more) {
        if (const auto found = connections_.find(key); found != connections_.end()) ReadFrom(SocketPtr(found->second));
      }
    }
    for (const auto& [key, connection] : connections_) connection->Close();
  }

  const LinksOptions options_;
  ConnectionHandler& handler_;
  const Listeners listeners_;
  const UniqueFd epoll_;
  tcp::SocketTuning tuning_;
  std::atomic<bool> stop_{false};
  // The thread's own.
  bool accepting_ = false;
  uint64_t next_key_ = kFirstConnection;
  absl::flat_hash_map<uint64_t, SocketPtr> connections_;
  size_t accepted_ = 0;                                    // of connections_
  std::map<uint64_t, std::string> half_open_;              // of those, not greeted: key (oldest first) to SourceOf()
  absl::flat_hash_map<std::string, size_t> half_open_of_;  // the same, counted by SourceOf()
  std::vector<std::pair<uint64_t, absl::Status>> failed_;  // EndFailed() ends these, outside the handler's calls
  std::set<uint64_t> more_;                                // connections with more to read after their turn
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Links>> Links::Start(LinksOptions options, ConnectionHandler* handler) {
  absl::StatusOr<Listeners> listeners = ListenOn(options.listen);
  if (!listeners.ok()) return listeners.status();
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return absl::ErrnoToStatus(errno, "epoll_create1");
  auto links = std::make_unique<LinksImpl>(std::move(options), handler, *std::move(listeners), std::move(epoll));
  links->Run();
  return links;
}

}  // namespace railsd
