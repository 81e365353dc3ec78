#include "daemon/ring/ring_server.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "agent/base/wake_event.h"
#include "daemon/ring/ring_requests.h"
#include "daemon/service/job_feed.h"
#include "daemon/service/services.h"

namespace railsd {
namespace {

constexpr uint32_t kMaxThreads = 4;
constexpr uint32_t kProcessorsPerThread = 4;
constexpr int kIdleMilliseconds = 1000;  // an idle thread begins a turn a second, for the watch of hanging threads
constexpr size_t kBlockBytes = 64 << 10;

struct RingSession {
  RingSession(SessionId id, std::shared_ptr<RingMemory> its_memory, std::shared_ptr<RingAnswers> its_answers,
              RingShared* shared)
      : memory(std::move(its_memory)), answers(std::move(its_answers)), requests(id, memory, answers, shared) {}
  const std::shared_ptr<RingMemory> memory;
  const std::shared_ptr<RingAnswers> answers;
  RingRequests requests;
  bool active = false;  // it has a place in its thread's round
};

// Serves the requests of some sessions.
class RingThread {
 public:
  RingThread(std::string name, UniqueFd epoll, WakeEvent wake)
      : name_(std::move(name)), epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  ~RingThread() {
    stop_ = true;
    wake_.Wake();
    if (thread_.joinable()) thread_.join();
  }

  bool Start() {
    if (!Watch(wake_.fd(), kWakeKey)) return false;
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), name_.c_str());
      Loop();
    });
    return true;
  }
  // False: epoll takes no more.
  bool Add(SessionId id, std::shared_ptr<RingSession> session) {
    const int doorbell = session->memory->doorbell();
    absl::MutexLock lock(&mutex_);
    sessions_[id.value()] = std::move(session);
    if (Watch(doorbell, id.value())) return true;
    sessions_.erase(id.value());
    return false;
  }
  // Null: it has none.
  std::shared_ptr<RingSession> Remove(SessionId id) {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(id.value());
    if (found == sessions_.end()) return nullptr;
    std::shared_ptr<RingSession> session = std::move(found->second);
    sessions_.erase(found);
    return session;
  }
  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return sessions_.size();
  }
  ThreadProgress Progress() const { return {name_, turns_.load(std::memory_order_relaxed)}; }

 private:
  static constexpr uint64_t kWakeKey = ~uint64_t{0};  // no session has it

  bool Watch(int fd, uint64_t key) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = key;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  std::shared_ptr<RingSession> Find(uint64_t key) const {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(key);
    return found == sessions_.end() ? nullptr : found->second;
  }

  // No more rings are taken. The descriptor server closes the session.
  void Ignore(const RingSession& session) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session.memory->doorbell(), nullptr);
  }

  void Loop() {
    std::array<epoll_event, 64> events;
    std::vector<char> block(kBlockBytes);
    std::deque<std::shared_ptr<RingSession>> round;  // sessions that may have requests
    while (!stop_) {
      turns_.fetch_add(1, std::memory_order_relaxed);
      wake_.BeginSleep();
      const int limit = stop_ || !round.empty() ? 0 : kIdleMilliseconds;
      const int count = epoll_wait(epoll_.get(), events.data(), events.size(), limit);
      wake_.EndSleep();
      for (int i = 0; i < count; ++i) {
        std::shared_ptr<RingSession> session = Find(events[i].data.u64);
        if (session == nullptr) continue;
        if (!session->requests.Wake()) {
          Ignore(*session);
        } else if (!std::exchange(session->active, true)) {
          round.push_back(std::move(session));
        }
      }
      for (size_t left = round.size(); left > 0; --left) {
        const std::shared_ptr<RingSession> session = std::move(round.front());
        round.pop_front();
        const RingRequests::Turn turn = session->requests.Serve(absl::MakeSpan(block));
        session->active = turn == RingRequests::Turn::kGoesOn && !session->answers->closed();
        if (session->active) round.push_back(session);
        if (turn == RingRequests::Turn::kBroken) Ignore(*session);
      }
    }
  }

  const std::string name_;
  const UniqueFd epoll_;
  WakeEvent wake_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<RingSession>> sessions_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> turns_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class ThreadedRingServer final : public RingServer {
 public:
  ThreadedRingServer(const RingServerOptions& options, std::shared_ptr<const ServiceContext> context) {
    shared_.options = options;
    shared_.context = std::move(context);
  }

  absl::Status StartThreads() {
    for (uint32_t i = 0; i < shared_.options.threads; ++i) {
      UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
      if (!epoll.valid()) return absl::ErrnoToStatus(errno, "rings: epoll");
      absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
      if (!wake.ok()) return wake.status();
      threads_.push_back(std::make_unique<RingThread>(absl::StrCat("rings.", i), std::move(epoll), *std::move(wake)));
      if (!threads_.back()->Start()) return absl::ErrnoToStatus(errno, "rings: epoll");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RingDescriptors> Open(SessionId id, std::function<void(const std::string&)> fail) override {
    RingDescriptors client;
    absl::StatusOr<std::shared_ptr<RingMemory>> memory = RingMemory::Make(&client);
    if (!memory.ok()) return memory.status();
    auto answers = std::make_shared<RingAnswers>(*memory, &shared_.counters, std::move(fail));
    auto session = std::make_shared<RingSession>(id, *std::move(memory), answers, &shared_);
    const auto least = std::min_element(threads_.begin(), threads_.end(),
                                        [](const auto& a, const auto& b) { return a->size() < b->size(); });
    if (!(*least)->Add(id, std::move(session))) {
      answers->Close();
      return absl::ResourceExhaustedError("open_ring: epoll takes no more descriptors");
    }
    shared_.context->feed->SetSink(id, answers);
    return client;
  }

  void Close(SessionId id) override {
    for (const std::unique_ptr<RingThread>& thread : threads_) {
      if (const std::shared_ptr<RingSession> session = thread->Remove(id)) return session->answers->Close();
    }
  }

  std::vector<ThreadProgress> Progress() const override {
    std::vector<ThreadProgress> all;
    for (const std::unique_ptr<RingThread>& thread : threads_) all.push_back(thread->Progress());
    return all;
  }
  const RingCounters& counters() const override { return shared_.counters; }

 private:
  RingShared shared_;
  std::vector<std::unique_ptr<RingThread>> threads_;  // ends first
};

}  // namespace

uint32_t RingThreads(uint32_t processors) { return std::clamp(processors / kProcessorsPerThread, 1u, kMaxThreads); }

absl::StatusOr<std::unique_ptr<RingServer>> RingServer::Start(const RingServerOptions& options,
                                                              std::shared_ptr<const ServiceContext> context) {
  auto server = std::make_unique<ThreadedRingServer>(options, std::move(context));
  if (absl::Status status = server->StartThreads(); !status.ok()) return status;
  return server;
}

}  // namespace railsd
