#include "daemon/peer/lanes.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "agent/base/wake_event.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd {
namespace {

constexpr LaneId kWakeKey = 0;  // of epoll

// `state`, `unsent` and `sealer` belong to the lock, `opener` to the thread.
struct Lane {
  enum class State { kExpected, kConnecting, kOpen };
  Lane(const LaneKeys& k, absl::Time until) : keys(k), deadline(until) {}

  const LaneKeys keys;
  const absl::Time deadline;  // to be open
  State state = State::kExpected;
  bool dialled = false;
  UniqueFd fd;
  bool busy = false;   // Write() was refused since the last OnLaneWritable()
  std::string unsent;  // greeting, frames
  std::unique_ptr<LaneSealer> sealer;
  std::unique_ptr<LaneOpener> opener;
  std::string answer;  // as far as it has come
};
using LanePtr = std::shared_ptr<Lane>;

class LaneSet final : public Lanes {
 public:
  LaneSet(absl::Duration handshake, absl::Duration silence, LaneHandler* handler, UniqueFd epoll, WakeEvent wake)
      : handshake_(handshake),
        silence_(silence),
        handler_(*handler),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)) {}

  ~LaneSet() override {
    stop_ = true;
    wake_.Wake();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Run() {
    if (!Watch(wake_.fd(), kWakeKey, EPOLLIN)) return absl::ErrnoToStatus(errno, "epoll_ctl");
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "lanes");
      Loop();
    });
    return absl::OkStatus();
  }

  LaneId Dial(const std::string& address, const LaneKeys& keys) override {
    auto lane = std::make_shared<Lane>(keys, absl::Now() + handshake_);
    lane->dialled = true;
    lane->state = Lane::State::kConnecting;
    lane->unsent = keys.Greeting();
    lane->fd = Connect(address);
    absl::MutexLock lock(&mutex_);
    const LaneId id = next_id_++;
    lanes_[id] = lane;
    ++connecting_;
    // Whatever is wrong with it is told by the thread.
    if (!lane->fd.valid() || !Watch(lane->fd.get(), id, EPOLLIN | EPOLLOUT | EPOLLET)) failed_.push_back(id);
    wake_.Wake();  // for the deadline
    return id;
  }

  LaneId Expect(const LaneKeys& keys) override {
    absl::MutexLock lock(&mutex_);
    const LaneId id = next_id_++;
    lanes_[id] = std::make_shared<Lane>(keys, absl::InfiniteFuture());
    expected_[keys.dialler] = id;
    return id;
  }

  bool Take(UniqueFd connection) override {
    char greeting[kLaneGreetingBytes];
    const ssize_t got = ::recv(connection.get(), greeting, sizeof(greeting), MSG_DONTWAIT);
    return got > 0 && Enter(std::move(connection), absl::string_view(greeting, static_cast<size_t>(got)));
  }

  Written Write(LaneId id, size_t size, Fill fill) override {
    absl::MutexLock lock(&mutex_);
    const auto found = lanes_.find(id);
    if (found == lanes_.end() || found->second->state != Lane::State::kOpen) return Written::kGone;
    Lane& lane = *found->second;
    if (!lane.unsent.empty()) {
      lane.busy = true;
      return Written::kBusy;
    }
    lane.sealer->Append(size, fill, &lane.unsent);
    if (!Flush(lane)) {
      failed_.push_back(id);
      wake_.Wake();
    }
    return Written::kTaken;
  }

  void Close(LaneId id) override {
    absl::MutexLock lock(&mutex_);
    Forget(id);
  }

 private:
  bool Watch(int fd, LaneId key, uint32_t events) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = key;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  void Tune(int fd) const {
    const int on = 1, milliseconds = static_cast<int>(absl::ToInt64Milliseconds(silence_));
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
  }

  UniqueFd Connect(const std::string& address) const {
    const absl::StatusOr<tcp::SocketAddress> to = tcp::ParseAddress(address);
    if (!to.ok()) return UniqueFd();
    UniqueFd fd(::socket(to->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return fd;
    Tune(fd.get());
    if (::connect(fd.get(), to->get(), to->length) != 0 && errno != EINPROGRESS) return UniqueFd();
    return fd;
  }

  // A lane that was expected has come, with an HMAC that holds for its stream alone.
  bool Enter(UniqueFd fd, absl::string_view greeting) {
    const std::optional<PublicShare> share = ShareOfGreeting(greeting);
    if (!share) return false;
    LaneId id = 0;
    LanePtr lane;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = expected_.find(*share);
      if (found == expected_.end()) return false;
      id = found->second;
      lane = lanes_.at(id);
      if (!SameSecret(lane->keys.Greeting(), greeting)) return false;
      expected_.erase(found);
      lane->fd = std::move(fd);
      lane->opener = std::make_unique<LaneOpener>(lane->keys);
      lane->state = Lane::State::kOpen;
    }
    // Before the answer, and before anything can be read from it: else what comes over the stream could be ahead.
    handler_.OnLaneOpen(id);
    absl::MutexLock lock(&mutex_);
    lane->unsent = lane->keys.Answer();
    if (!Flush(*lane) || !lane->unsent.empty() || !Watch(lane->fd.get(), id, EPOLLIN)) {
      failed_.push_back(id);
      wake_.Wake();
    }
    return true;
  }

  static bool SameSecret(absl::string_view a, absl::string_view b) {
    Mac x{}, y{};
    if (a.size() != b.size() || a.size() < x.size() || a.substr(0, a.size() - 32) != b.substr(0, b.size() - 32)) {
      return false;
    }
    std::memcpy(x.data(), a.data() + a.size() - x.size(), x.size());
    std::memcpy(y.data(), b.data() + b.size() - y.size(), y.size());
    return SameMac(x, y);
  }

  // False: the connection is gone.
  static bool Flush(Lane& lane) {
    size_t sent = 0;
    while (sent < lane.unsent.size()) {
      const ssize_t now =
          ::send(lane.fd.get(), lane.unsent.data() + sent, lane.unsent.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0 && errno == EAGAIN) break;
      if (now < 0) return false;
      sent += static_cast<size_t>(now);
    }
    lane.unsent.erase(0, sent);
    return true;
  }

  void Forget(LaneId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = lanes_.find(id);
    if (found == lanes_.end()) return;
    const auto expected = expected_.find(found->second->keys.dialler);
    if (expected != expected_.end() && expected->second == id) expected_.erase(expected);
    // The thread may be reading from it: it is closed with the last who has it.
    if (found->second->fd.valid()) ::shutdown(found->second->fd.get(), SHUT_RDWR);
    connecting_ -= found->second->state == Lane::State::kConnecting;
    lanes_.erase(found);
  }

  void Loop() {
    std::array<epoll_event, 64> events;
    while (true) {
      wake_.BeginSleep();
      if (stop_) return;
      const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), NextTimeoutMilliseconds());
      wake_.EndSleep();
      for (int i = 0; i < count; ++i) Handle(events[i].data.u64, events[i].events);
      EndFailed();
    }
  }

  int NextTimeoutMilliseconds() {
    absl::MutexLock lock(&mutex_);
    if (!failed_.empty()) return 0;
    if (connecting_ == 0) return -1;
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [id, lane] : lanes_) {
      if (lane->state == Lane::State::kConnecting) next = std::min(next, lane->deadline);
    }
    if (next == absl::InfiniteFuture()) return -1;
    return static_cast<int>(absl::ToInt64Milliseconds(std::max(next - absl::Now(), absl::ZeroDuration()))) + 1;
  }

  // Those that could not be dialled or written to, and those that took too long.
  void EndFailed() {
    std::vector<LaneId> ended;
    {
      absl::MutexLock lock(&mutex_);
      if (failed_.empty() && connecting_ == 0) return;
      ended.swap(failed_);
      const absl::Time now = absl::Now();
      for (const auto& [id, lane] : lanes_) {
        if (lane->state == Lane::State::kConnecting && lane->deadline <= now) ended.push_back(id);
      }
    }
    for (const LaneId id : ended) End(id, "it cannot be reached, or does not take what is sent");
  }

  void End(LaneId id, const std::string& why, bool malformed = false) {
    {
      absl::MutexLock lock(&mutex_);
      if (!lanes_.contains(id)) return;
      Forget(id);
    }
    handler_.OnLaneEnd(id, why, malformed);
  }

  void Handle(LaneId id, uint32_t events) {
    if (id == kWakeKey) return;
    LanePtr lane;
    bool writable = false, flushed = true;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = lanes_.find(id);
      if (found == lanes_.end()) return;
      lane = found->second;
      if ((events & EPOLLOUT) != 0 && (events & (EPOLLERR | EPOLLHUP)) == 0) {
        flushed = Flush(*lane);
        writable = lane->unsent.empty() && std::exchange(lane->busy, false);
      }
    }
    if (!flushed) return End(id, absl::StrCat("write: ", std::strerror(errno)));
    if (writable) handler_.OnLaneWritable(id);
    if (lane->dialled) return ReadAnswer(id, *lane);
    ReadMessages(id, *lane);
  }

  // What the dialler hears: the answer, and then nothing but the end.
  void ReadAnswer(LaneId id, Lane& lane) {
    while (true) {
      char bytes[kLaneAnswerBytes];
      const ssize_t got = ::recv(lane.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return End(id, got == 0 ? "it was closed" : absl::StrCat("read: ", std::strerror(errno)));
      lane.answer.append(bytes, static_cast<size_t>(got));
      if (lane.answer.size() < kLaneAnswerBytes) continue;
      if (!SameSecret(lane.answer, lane.keys.Answer())) return End(id, "the other end has not the key of this lane");
      {
        absl::MutexLock lock(&mutex_);
        if (!lanes_.contains(id)) return;  // closed meanwhile
        --connecting_;
        lane.sealer = std::make_unique<LaneSealer>(lane.keys);
        lane.state = Lane::State::kOpen;
      }
      handler_.OnLaneOpen(id);
    }
  }

  void ReadMessages(LaneId id, Lane& lane) {
    if (!lane.opener) return;
    // Once round for each wake: others wait, too.
    size_t room = 0;
    char* const space = lane.opener->Space(&room);
    const ssize_t got = ::recv(lane.fd.get(), space, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return End(id, got == 0 ? "it was closed" : absl::StrCat("read: ", std::strerror(errno)));
    lane.opener->Arrived(static_cast<size_t>(got));
    while (true) {
      const absl::StatusOr<std::optional<absl::string_view>> message = lane.opener->Next();
      if (!message.ok()) return End(id, std::string(message.status().message()), true);
      if (!message->has_value()) return;
      handler_.OnLaneMessage(id, **message);
    }
  }

  const absl::Duration handshake_, silence_;
  LaneHandler& handler_;
  const UniqueFd epoll_;
  WakeEvent wake_;
  std::atomic<bool> stop_{false};
  absl::Mutex mutex_;
  LaneId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<LaneId, LanePtr> lanes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<PublicShare, LaneId> expected_ ABSL_GUARDED_BY(mutex_);
  std::vector<LaneId> failed_ ABSL_GUARDED_BY(mutex_);
  size_t connecting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Lanes>> Lanes::Start(absl::Duration handshake, absl::Duration silence,
                                                    LaneHandler* handler) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return absl::ErrnoToStatus(errno, "epoll_create1");
  absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
  if (!wake.ok()) return wake.status();
  auto lanes = std::make_unique<LaneSet>(handshake, silence, handler, std::move(epoll), *std::move(wake));
  if (absl::Status status = lanes->Run(); !status.ok()) return status;
  return lanes;
}

}  // namespace railsd
