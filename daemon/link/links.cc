#include "daemon/link/links.h"

#include <pthread.h>
#include <spdlog/logger.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/base/steady_now.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "daemon/link/connection_loop.h"
#include "daemon/link/listen.h"
#include "daemon/link/socket_connection.h"
#include "daemon/tls/tls_files.h"

namespace railsd {
namespace {

// Most connections that the engine's thread reads. Their messages wake no other thread. The links' thread reads further
// connections: with many peers messages come together, and it parses them while the engine works. It also reads a
// connection from the first part of a long message to the last, because parsing 16 MiB takes 0.2 s.
constexpr size_t kPolled = 16;
// Reads of one connection in its turn, on the links' thread. The engine's thread reads once, because rails wait for
// that thread, too.
constexpr int kReadsPerTurn = 4;

class LinksImpl final : public Links, private ConnectionOwner {
 public:
  LinksImpl(LinksOptions options, ConnectionHandler* handler, EventHost* engine, Listeners listeners, UniqueFd epoll,
            UniqueFd polled_epoll)
      : options_(std::move(options)),
        handler_(*handler),
        engine_(*engine),
        listeners_(std::move(listeners)),
        own_(std::move(epoll), kReadsPerTurn, handler, this),
        polled_(std::move(polled_epoll), handler, this) {
    tuning_.peer_silence = options_.silence;
  }

  ~LinksImpl() override {
    engine_.RemoveSource(&polled_);
    stop_.store(true, std::memory_order_release);  // seen at the next tick
    if (thread_.joinable()) thread_.join();
    polled_.CloseAll();
  }

  void Run() {
    WatchListeners(EPOLLIN);
    engine_.AddSource(&polled_);
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
  // Greeted connections that the engine's thread reads.
  class Polled final : public EventSource, private ConnectionOwner {
   public:
    Polled(UniqueFd epoll, ConnectionHandler* handler, LinksImpl* links)
        : links_(*links), loop_(std::move(epoll), 1, handler, this) {}

    // Called on the links' thread. False: this loop has kPolled connections already, or epoll takes no more.
    bool Take(const SocketPtr& connection) {
      if (count_.load(std::memory_order_relaxed) >= kPolled || !connection->MoveTo(loop_.epoll())) return false;
      count_.fetch_add(1, std::memory_order_relaxed);
      // Until the engine's thread takes the connection from here, it ignores its events, and epoll reports them again.
      absl::MutexLock lock(&mutex_);
      handed_.push_back(connection);
      return true;
    }
    size_t count() const { return count_.load(std::memory_order_relaxed); }
    // Called when the engine's thread no longer serves this source.
    void CloseAll() {
      TakeHanded();
      for (const auto& [key, connection] : loop_.all()) connection->Close();
    }

    int fd() const override { return loop_.epoll(); }
    bool Serve() override {
      TakeHanded();
      loop_.Turn(0);
      return loop_.more();
    }

   private:
    void TakeHanded() {
      absl::MutexLock lock(&mutex_);
      for (const SocketPtr& connection : handed_) loop_.Add(connection);
      handed_.clear();
    }
    void OnServed(const SocketPtr& connection) override {
      if (!connection->in_parts() || !links_.TakeBack(connection)) return;
      loop_.Release(connection);
      count_.fetch_sub(1, std::memory_order_relaxed);
    }
    void OnGone(const SocketPtr& connection, const absl::Status&) override {
      count_.fetch_sub(1, std::memory_order_relaxed);
      links_.accepted_.fetch_sub(!connection->dialled_here(), std::memory_order_relaxed);
    }
    void OnListener(uint64_t) override {}

    LinksImpl& links_;
    std::atomic<size_t> count_{0};
    absl::Mutex mutex_;  // a leaf
    std::vector<SocketPtr> handed_ ABSL_GUARDED_BY(mutex_);
    ConnectionLoop loop_;
  };

  void Watch(int fd, uint64_t key, uint32_t events, int how = EPOLL_CTL_ADD) const {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = key;
    ::epoll_ctl(own_.epoll(), how, fd, &event);
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
        std::move(origin), options_.tls == nullptr ? nullptr : options_.tls->context(), own_.epoll(), key);
    own_.Add(connection);
    if (fd >= 0) Watch(fd, key, dialled ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return connection;
  }

  void OnListener(uint64_t key) override {
    tcp::SocketAddress from;
    from.length = sizeof(from.storage);
    UniqueFd fd(::accept4(listeners_.sockets[key - 1].get(), reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
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
    if (options_.tls == nullptr) own_.Begin(connection);
  }

  void Refuse(Limit limit, const std::string& address) {
    options_.refused->Count(limit);
    options_.log->warn("connection_refused address={} limit={}", address, LimitKey(limit));
  }

  // Called when the connection has been greeted, or has ended.
  void RemoveHalfOpen(uint64_t key) {
    const auto found = half_open_.find(key);
    if (found == half_open_.end()) return;
    const auto of_source = half_open_of_.find(found->second);
    if (--of_source->second == 0) half_open_of_.erase(of_source);
    half_open_.erase(found);
    Publish();
  }

  void EndOldestHalfOpen() {
    const SocketPtr connection = own_.all().at(half_open_.begin()->first);
    Refuse(Limit::kHalfOpen, connection->address());
    own_.End(connection, absl::ResourceExhaustedError("limits.max_half_open: a newer connection took its place"));
  }

  void Publish() const { options_.counters->half_open.store(half_open_.size(), std::memory_order_relaxed); }

  void OnServed(const SocketPtr& connection) override {
    if (!connection->greeted()) return;
    RemoveHalfOpen(connection->key());
    if (!connection->in_parts() && polled_.Take(connection)) own_.Release(connection);
  }

  // Called on the engine's thread. False: epoll takes no more.
  bool TakeBack(const SocketPtr& connection) {
    if (!connection->MoveTo(own_.epoll())) return false;
    absl::MutexLock lock(&mutex_);
    returned_.push_back(connection);
    return true;
  }

  void TakeReturned() {
    absl::MutexLock lock(&mutex_);
    for (const SocketPtr& connection : returned_) own_.Add(connection);
    returned_.clear();
  }

  void OnGone(const SocketPtr& connection, const absl::Status& why) override {
    accepted_.fetch_sub(!connection->dialled_here(), std::memory_order_relaxed);
    RemoveHalfOpen(connection->key());
    const bool tls = options_.tls != nullptr && !connection->greeted() &&
                     (absl::IsUnauthenticated(why) || (!connection->open() && absl::IsFailedPrecondition(why)));
    if (tls) options_.counters->failed_handshakes.fetch_add(1, std::memory_order_relaxed);
  }

  void Tick(absl::Time now) {
    if (!accepting_) WatchListeners(EPOLLIN, EPOLL_CTL_MOD);
    std::vector<SocketPtr> late;
    uint64_t open = polled_.count();
    for (const auto& [key, connection] : own_.all()) {
      open += connection->greeted();
      if (connection->greeted()) RemoveHalfOpen(key);
      if (!connection->greeted() && now >= connection->give_up()) late.push_back(connection);
    }
    options_.counters->open.store(open, std::memory_order_relaxed);
    for (const SocketPtr& connection : late) {
      if (!connection->dialled_here()) Refuse(Limit::kHandshake, connection->address());
      own_.End(connection, absl::DeadlineExceededError(
                               absl::StrCat(connection->open() ? "no hello came within " : "not connected within ",
                                            absl::FormatDuration(options_.handshake))));
    }
    handler_.OnTick(now);
  }

  void EndFailed() {
    for (const auto& [key, why] : std::exchange(failed_, {})) {
      const auto found = own_.all().find(key);
      if (found != own_.all().end()) own_.End(SocketPtr(found->second), why);
    }
  }

  void Loop() {
    absl::Time next_tick = absl::InfinitePast();
    while (!stop_.load(std::memory_order_acquire)) {
      const absl::Time now = SteadyNow();
      if (now >= next_tick) {
        next_tick = now + options_.tick;
        Tick(now);
      }
      EndFailed();
      TakeReturned();
      const int64_t wait = absl::ToInt64Milliseconds(absl::Ceil(next_tick - SteadyNow(), absl::Milliseconds(1)));
      own_.Turn(static_cast<int>(std::clamp<int64_t>(wait, 0, 1000)));
    }
    TakeReturned();
    for (const auto& [key, connection] : own_.all()) connection->Close();
  }

  const LinksOptions options_;
  ConnectionHandler& handler_;
  EventHost& engine_;
  const Listeners listeners_;
  tcp::SocketTuning tuning_;
  std::atomic<bool> stop_{false};
  std::atomic<size_t> accepted_{0};                          // open connections that the other end dialled
  absl::Mutex mutex_;                                        // a leaf
  std::vector<SocketPtr> returned_ ABSL_GUARDED_BY(mutex_);  // by the engine's thread
  // Used by the links' thread only.
  bool accepting_ = false;
  uint64_t next_key_ = ConnectionLoop::kFirstConnection;
  ConnectionLoop own_;
  std::map<uint64_t, std::string> half_open_;              // accepted, not greeted: key (oldest first) to SourceOf()
  absl::flat_hash_map<std::string, size_t> half_open_of_;  // the same, counted by SourceOf()
  std::vector<std::pair<uint64_t, absl::Status>> failed_;  // EndFailed() ends these, outside the handler's calls
  Polled polled_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Links>> Links::Start(LinksOptions options, ConnectionHandler* handler,
                                                    EventHost* engine) {
  absl::StatusOr<Listeners> listeners = ListenOn(options.listen);
  if (!listeners.ok()) return listeners.status();
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC)), polled(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid() || !polled.valid()) return absl::ErrnoToStatus(errno, "epoll_create1");
  auto links = std::make_unique<LinksImpl>(std::move(options), handler, engine, *std::move(listeners), std::move(epoll),
                                           std::move(polled));
  links->Run();
  return links;
}

}  // namespace railsd
