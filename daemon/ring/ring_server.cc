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
#include "agent/base/event_source.h"
#include "agent/base/unique_fd.h"
#include "daemon/ring/ring_requests.h"
#include "daemon/services/job_feed.h"
#include "daemon/services/services.h"

namespace railsd {
namespace {

constexpr uint32_t kMaxThreads = 4;
constexpr uint32_t kProcessorsPerThread = 4;
constexpr absl::Duration kIdle =
    absl::Seconds(1);  // an idle thread begins a turn this often, so that ThreadWatch does not report it
constexpr size_t kBlockBytes = 64 << 10;
// Longest request that the engine's thread serves, if the session's jobs under way use few ranges: checking it takes
// little longer than waking another thread.
constexpr size_t kShortBytes = 2048;
// Most sessions that the engine's thread serves before it looks at its rails again.
constexpr size_t kSessionsPerTurn = 4;

struct RingSession {
  RingSession(SessionId its_id, std::shared_ptr<RingMemory> its_memory, std::shared_ptr<RingAnswers> its_answers,
              RingShared* shared)
      : id(its_id),
        memory(std::move(its_memory)),
        answers(std::move(its_answers)),
        requests(its_id, memory, answers, shared) {}
  const SessionId id;
  const std::shared_ptr<RingMemory> memory;
  const std::shared_ptr<RingAnswers> answers;
  RingRequests requests;               // used by the engine's thread, or by the RingThread that has the session
  std::atomic<bool> handed_on{false};  // a RingThread has it
  bool active = false;                 // it is in Doorbells::round_; used by the engine's thread only
};
using SessionPtr = std::shared_ptr<RingSession>;

// The doorbells of all sessions, and their short requests.
class Doorbells final : public EventSource {
 public:
  using HandOn = std::function<void(SessionPtr)>;

  Doorbells(const Agent* agent, UniqueFd epoll, HandOn hand_on)
      : agent_(*agent), epoll_(std::move(epoll)), hand_on_(std::move(hand_on)), block_(kBlockBytes) {}

  absl::Status Add(const SessionPtr& session) {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return absl::UnavailableError("open_ring: the daemon is stopping");
    sessions_[session->id.value()] = session;
    if (Control(EPOLL_CTL_ADD, *session, EPOLLIN)) return absl::OkStatus();
    sessions_.erase(session->id.value());
    return absl::ResourceExhaustedError("open_ring: epoll takes no more descriptors");
  }
  // Null: the session has no ring.
  SessionPtr Remove(SessionId id) {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(id.value());
    if (found == sessions_.end()) return nullptr;
    SessionPtr session = std::move(found->second);
    sessions_.erase(found);
    return session;
  }
  // Mutes all rings. Add() fails from now on.
  void Stop() {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (const auto& [id, session] : sessions_) session->answers->Mute();
  }
  // A RingThread has served the session's requests. Watching the doorbell again fails only after Ignore().
  void GiveBack(const SessionPtr& session) {
    session->handed_on.store(false, std::memory_order_release);
    Control(EPOLL_CTL_MOD, *session, EPOLLIN);
  }
  // Takes no more requests of the session. The descriptor server closes the session.
  void Ignore(const RingSession& session) const {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session.memory->doorbell(), nullptr);
  }

  int fd() const override { return epoll_.get(); }
  bool Serve() override {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      SessionPtr session = Find(events[i].data.u64);
      if (session == nullptr || session->handed_on.load(std::memory_order_acquire)) continue;
      if (!session->requests.Wake()) {
        Ignore(*session);
      } else if (!std::exchange(session->active, true)) {
        round_.push_back(std::move(session));
      }
    }
    for (size_t left = std::min(round_.size(), kSessionsPerTurn); left > 0; --left) {
      SessionPtr session = std::move(round_.front());
      round_.pop_front();
      const size_t most_bytes = agent_.IsQuickToCheck(session->id) ? kShortBytes : 0;
      const RingRequests::Turn turn = session->requests.Serve(absl::MakeSpan(block_), most_bytes);
      session->active = turn == RingRequests::Turn::kGoesOn && !session->answers->closed();
      if (turn == RingRequests::Turn::kBroken) Ignore(*session);
      if (session->active) {
        round_.push_back(std::move(session));
      } else if (turn == RingRequests::Turn::kLong) {
        Control(EPOLL_CTL_MOD, *session, EPOLLET);  // reports only the doorbell's end, once
        session->handed_on.store(true, std::memory_order_relaxed);
        hand_on_(std::move(session));
      }
    }
    return !round_.empty();
  }

 private:
  bool Control(int operation, const RingSession& session, uint32_t events) const {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = session.id.value();
    return epoll_ctl(epoll_.get(), operation, session.memory->doorbell(), &event) == 0;
  }
  SessionPtr Find(uint64_t key) const {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(key);
    return found == sessions_.end() ? nullptr : found->second;
  }

  const Agent& agent_;
  const UniqueFd epoll_;
  const HandOn hand_on_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, SessionPtr> sessions_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // The engine's thread only.
  std::vector<char> block_;
  std::deque<SessionPtr> round_;  // sessions that may have requests
};

// A thread that serves sessions which the engine's thread handed on, until they have no request left.
class RingThread {
 public:
  RingThread(std::string name, Doorbells* doorbells) : name_(std::move(name)), doorbells_(*doorbells) {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), name_.c_str());
      Loop();
    });
  }
  ~RingThread() {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    thread_.join();
  }

  void Take(SessionPtr session) {
    absl::MutexLock lock(&mutex_);
    round_.push_back(std::move(session));
  }
  size_t waiting() const {
    absl::MutexLock lock(&mutex_);
    return round_.size();
  }
  ThreadProgress Progress() const { return {name_, turns_.load(std::memory_order_relaxed)}; }

 private:
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !round_.empty(); }

  void Loop() {
    std::vector<char> block(kBlockBytes);
    while (true) {
      turns_.fetch_add(1, std::memory_order_relaxed);
      SessionPtr session;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.AwaitWithTimeout(absl::Condition(this, &RingThread::HasWork), kIdle);
        if (stop_) return;
        if (round_.empty()) continue;
        session = std::move(round_.front());
        round_.pop_front();
      }
      switch (session->requests.Serve(absl::MakeSpan(block), rails::ring::kMaxPayloadBytes)) {
        case RingRequests::Turn::kGoesOn:
        case RingRequests::Turn::kLong:
          if (!session->answers->closed()) Take(std::move(session));
          break;
        case RingRequests::Turn::kSleeps:
          doorbells_.GiveBack(session);
          break;
        case RingRequests::Turn::kBroken:
          break;
      }
    }
  }

  const std::string name_;
  Doorbells& doorbells_;
  mutable absl::Mutex mutex_;  // a leaf
  std::deque<SessionPtr> round_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> turns_{0};
  std::thread thread_;
};

class ThreadedRingServer final : public RingServer {
 public:
  ThreadedRingServer(const RingServerOptions& options, std::shared_ptr<const ServiceContext> context, UniqueFd epoll)
      : doorbells_(context->agent, std::move(epoll), [this](SessionPtr session) { HandOn(std::move(session)); }) {
    shared_.options = options;
    shared_.context = std::move(context);
    for (uint32_t i = 0; i < options.threads; ++i) {
      threads_.push_back(std::make_unique<RingThread>(absl::StrCat("rings.", i), &doorbells_));
    }
    shared_.context->agent->AddSource(&doorbells_);
  }
  ~ThreadedRingServer() override { shared_.context->agent->RemoveSource(&doorbells_); }

  absl::StatusOr<RingDescriptors> Open(SessionId id, std::function<void(const std::string&)> fail) override {
    RingDescriptors client;
    absl::StatusOr<std::shared_ptr<RingMemory>> memory = RingMemory::Make(&client);
    if (!memory.ok()) return memory.status();
    auto answers = std::make_shared<RingAnswers>(*memory, &shared_.counters, std::move(fail));
    const absl::Status added = doorbells_.Add(std::make_shared<RingSession>(id, *std::move(memory), answers, &shared_));
    if (!added.ok()) {
      answers->Close();
      return added;
    }
    shared_.context->feed->SetSink(id, answers);
    return client;
  }

  void Close(SessionId id) override {
    if (const SessionPtr session = doorbells_.Remove(id)) session->answers->Close();
  }
  void Stop() override { doorbells_.Stop(); }

  std::vector<ThreadProgress> Progress() const override {
    std::vector<ThreadProgress> all;
    for (const std::unique_ptr<RingThread>& thread : threads_) all.push_back(thread->Progress());
    return all;
  }
  const RingCounters& counters() const override { return shared_.counters; }

 private:
  void HandOn(SessionPtr session) {
    const auto least = std::min_element(threads_.begin(), threads_.end(),
                                        [](const auto& a, const auto& b) { return a->waiting() < b->waiting(); });
    (*least)->Take(std::move(session));
  }

  RingShared shared_;
  Doorbells doorbells_;
  std::vector<std::unique_ptr<RingThread>> threads_;  // end first
};

}  // namespace

uint32_t RingThreads(uint32_t processors) { return std::clamp(processors / kProcessorsPerThread, 1u, kMaxThreads); }

absl::StatusOr<std::unique_ptr<RingServer>> RingServer::Start(const RingServerOptions& options,
                                                              std::shared_ptr<const ServiceContext> context) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return absl::ErrnoToStatus(errno, "rings: epoll");
  return std::make_unique<ThreadedRingServer>(options, std::move(context), std::move(epoll));
}

}  // namespace railsd
