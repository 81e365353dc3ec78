#include "daemon/service/connection_gate.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/logger.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/base/wake_event.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/service/beginning.h"
#include "daemon/service/connection_ledger.h"

namespace railsd {
namespace {

constexpr int kMaxAcceptsPerTurn = 64;
constexpr absl::Duration kGateAcceptPause = absl::Milliseconds(100);  // when no descriptor is left
constexpr absl::Duration kSweepPeriod = absl::Seconds(1);             // while there are connections
constexpr absl::Duration kMeterPeriod = absl::Milliseconds(100);      // while there are connections to meter
constexpr absl::Duration kLeastSweepPause = absl::Milliseconds(50);   // whatever the flood
constexpr uint64_t kWakeKey = 0;                                      // of epoll; then the listeners, then connections

struct HalfOpen {
  uint64_t key = 0;
  UniqueFd fd;
  Caller caller;
  absl::Time deadline;
};

class Gate final : public ConnectionGate {
 public:
  Gate(Listeners listeners, bool tls, GateOptions options, ConnectionLedger* ledger, HandOver hand_over, UniqueFd epoll,
       WakeEvent wake)
      : listeners_(std::move(listeners)),
        tls_(tls),
        options_(std::move(options)),
        ledger_(*ledger),
        hand_over_(std::move(hand_over)),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)),
        next_key_(1 + listeners_.sockets.size()),
        buffer_(tls ? kMaxBeginning : 128) {}

  ~Gate() override {
    stop_ = true;
    wake_.Wake();
    if (thread_.joinable()) thread_.join();
    options_.counters->open -= counted_open_;
    options_.counters->half_open -= half_open_.size();
    if (!listeners_.path.empty()) ::unlink(listeners_.path.c_str());
  }

  absl::Status Run() {
    if (!Watch(wake_.fd(), kWakeKey, EPOLLIN) || !WatchListeners()) return absl::ErrnoToStatus(errno, "epoll_ctl");
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "gate");
      Loop();
    });
    return absl::OkStatus();
  }

 private:
  using Place = std::list<HalfOpen>::iterator;

  bool Watch(int fd, uint64_t key, uint32_t events) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = key;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }
  bool WatchListeners() {
    bool all = true;
    for (size_t i = 0; i < listeners_.sockets.size(); ++i) {
      all = Watch(listeners_.sockets[i].get(), 1 + i, EPOLLIN) && all;
    }
    return all;
  }

  void Loop() {
    std::array<epoll_event, 64> events;
    while (true) {
      wake_.BeginSleep();
      if (stop_) return;
      const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), NextTimeoutMilliseconds());
      wake_.EndSleep();
      for (int i = 0; i < count; ++i) Handle(events[i].data.u64);
      RunTimers(absl::Now());
    }
  }

  int NextTimeoutMilliseconds() const {
    absl::Time next = accept_paused_until_;
    if (!half_open_.empty()) next = std::min(next, half_open_.front().deadline);
    if (ledger_.size() != 0) next = std::min({next, last_sweep_ + kSweepPeriod, NextMeter()});
    if (next == absl::InfiniteFuture()) return -1;
    return static_cast<int>(absl::ToInt64Milliseconds(std::max(next - absl::Now(), absl::ZeroDuration()))) + 1;
  }

  void RunTimers(absl::Time now) {
    if (now >= accept_paused_until_) {
      accept_paused_until_ = absl::InfiniteFuture();
      WatchListeners();
    }
    while (!half_open_.empty() && half_open_.front().deadline <= now) {
      Refuse(Limit::kHandshake, half_open_.front().caller, "it did not begin in time");
      Close(half_open_.begin());
    }
    if (ledger_.size() != 0 && now >= NextMeter()) Meter(now);
    if (ledger_.size() != 0 && now - last_sweep_ >= kSweepPeriod) Sweep(now);
  }

  bool Meters() const { return options_.max_untaken_bytes != std::numeric_limits<uint64_t>::max(); }
  absl::Time NextMeter() const { return Meters() ? last_meter_ + kMeterPeriod : absl::InfiniteFuture(); }

  void Meter(absl::Time now) {
    last_meter_ = now;
    const size_t greedy = ledger_.Meter(now, options_.max_untaken_bytes);
    for (size_t i = 0; i < greedy; ++i) Refuse(Limit::kConnectionMemory, {}, "it brought more than anybody took");
  }

  void Sweep(absl::Time now) {
    last_sweep_ = now;
    const size_t late = ledger_.Sweep(now);
    for (size_t i = 0; i < late; ++i) Refuse(Limit::kHandshake, {}, "no call came in time");
    CountOpen();
    if (options_.look) options_.look();
  }

  void CountOpen() {
    const size_t open = ledger_.size();
    options_.counters->open += open - counted_open_;  // modulo 2^64, like the sum
    counted_open_ = open;
  }

  void Handle(uint64_t key) {
    if (key == kWakeKey) return;  // to stop
    if (key <= listeners_.sockets.size()) return AcceptSome(listeners_.sockets[key - 1].get());
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) Look(found->second);
  }

  void AcceptSome(int listener) {
    for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
      UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd.valid()) {
        Admit(std::move(fd));
        continue;
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      // Out of descriptors or memory: look again later instead of spinning.
      if (options_.log) options_.log->error("accept_failed socket={} errno={}", options_.name, errno);
      for (const UniqueFd& any : listeners_.sockets) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, any.get(), nullptr);
      accept_paused_until_ = absl::Now() + kGateAcceptPause;
      return;
    }
  }

  void Admit(UniqueFd fd) {
    HalfOpen connection;
    connection.key = next_key_++;
    connection.caller = CallerOfSocket(fd.get());
    connection.deadline = absl::Now() + options_.handshake;
    // Also told of the end, and of each arrival once: what has come is looked at and left where it is.
    if (!Watch(fd.get(), connection.key, EPOLLIN | EPOLLRDHUP | EPOLLET)) return;
    connection.fd = std::move(fd);
    MakeRoom();
    ++options_.counters->half_open;
    const uint64_t key = connection.key;
    by_key_[key] = half_open_.insert(half_open_.end(), std::move(connection));
  }

  // The oldest gives way, although what it has sent is looked at first: strangers who only connect must not push out
  // those who have come with something.
  void MakeRoom() {
    while (half_open_.size() >= options_.max_half_open) {
      const uint64_t oldest = half_open_.front().key;
      Look(half_open_.begin());
      if (half_open_.empty() || half_open_.front().key != oldest) continue;
      Refuse(Limit::kHalfOpen, half_open_.front().caller, "further ones came before it began");
      Close(half_open_.begin());
    }
  }

  void Look(Place place) {
    const ssize_t got = ::recv(place->fd.get(), buffer_.data(), buffer_.size(), MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Close(place);
    const absl::string_view beginning(buffer_.data(), static_cast<size_t>(got));
    switch (LookAtBeginning(beginning, tls_, options_.take_lane != nullptr)) {
      case Beginning::kMore:
        if (HasEnded(place->fd.get())) Close(place);
        return;
      case Beginning::kWrong:
        // gRPC says it to the other end, and closes the connection.
        ++options_.counters->protocol_errors;
        [[fallthrough]];
      case Beginning::kWhole:
        return Enter(place);
      case Beginning::kLane:
        return EnterLane(place);
    }
  }

  // After what has arrived nothing more will come.
  static bool HasEnded(int fd) {
    pollfd about = {fd, POLLRDHUP, 0};
    return ::poll(&about, 1, 0) == 1;
  }

  void Enter(Place place) {
    HalfOpen connection = std::move(*place);
    Close(place);
    const bool tcp = !connection.caller.address.empty();
    const absl::Time now = absl::Now();
    if (IsFull(connection.caller) && now - last_sweep_ >= kLeastSweepPause) Sweep(now);
    if (ledger_.size() >= options_.max_connections) {
      return Refuse(options_.connections_limit, connection.caller, "too many connections");
    }
    if (tcp && ledger_.CountFrom(connection.caller.address) >= options_.max_per_address) {
      return Refuse(Limit::kControlConnectionsPerAddress, connection.caller, "too many connections of its address");
    }
    // gRPC will own it: no descriptor of ours may belong to the same socket, not even in epoll.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd.get(), nullptr);
    if (tcp) TuneTcp(connection.fd.get());
    ledger_.Add(connection.fd.get(), connection.caller, tcp ? connection.deadline : absl::InfiniteFuture());
    CountOpen();
    hand_over_(std::move(connection.fd));
  }

  // Who takes it sees at once whether it is one that he waits for: each peer has one, and more need not be counted.
  void EnterLane(Place place) {
    UniqueFd fd = std::move(place->fd);
    Close(place);
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
    TuneTcp(fd.get());
    options_.take_lane(std::move(fd));
  }

  bool IsFull(const Caller& caller) const {
    return ledger_.size() >= options_.max_connections ||
           (!caller.address.empty() && ledger_.CountFrom(caller.address) >= options_.max_per_address);
  }

  // As gRPC sets its own connections up; and those of machines that are gone must not count for ever.
  static void TuneTcp(int fd) {
    const int on = 1, idle_seconds = 60, interval_seconds = 15, probes = 4;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof(interval_seconds));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  }

  void Refuse(Limit limit, const Caller& caller, absl::string_view why) {
    options_.refused->Count(limit);
    if (!options_.log) return;
    options_.log->warn("connection_refused socket={} limit={} from={} reason={}", options_.name, LimitKey(limit),
                       LogValue(caller.name), LogValue(std::string(why)));
  }

  void Close(Place place) {
    --options_.counters->half_open;
    by_key_.erase(place->key);
    half_open_.erase(place);
  }

  Listeners listeners_;
  const bool tls_;
  const GateOptions options_;
  ConnectionLedger& ledger_;
  const HandOver hand_over_;
  const UniqueFd epoll_;
  WakeEvent wake_;
  std::atomic<bool> stop_{false};
  // The thread's own.
  uint64_t next_key_;
  std::vector<char> buffer_;
  std::list<HalfOpen> half_open_;  // oldest first
  absl::flat_hash_map<uint64_t, Place> by_key_;
  absl::Time last_sweep_ = absl::InfinitePast();
  absl::Time last_meter_ = absl::InfinitePast();
  absl::Time accept_paused_until_ = absl::InfiniteFuture();
  size_t counted_open_ = 0;  // in the counters
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Start(Listeners listeners, bool tls,
                                                                      GateOptions options, ConnectionLedger* ledger,
                                                                      HandOver hand_over) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return absl::ErrnoToStatus(errno, "epoll_create1");
  absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
  if (!wake.ok()) return wake.status();
  auto gate = std::make_unique<Gate>(std::move(listeners), tls, std::move(options), ledger, std::move(hand_over),
                                     std::move(epoll), *std::move(wake));
  if (absl::Status status = gate->Run(); !status.ok()) return status;
  return gate;
}

}  // namespace railsd
