// Agent: the threads around the engine.
#include "agent/agent.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "agent/base/event_source.h"
#include "agent/base/spin_budget.h"
#include "agent/base/wake_event.h"
#include "agent/control/held_bytes.h"
#include "agent/engine/create_transport.h"
#include "agent/engine/engine.h"
#include "agent/jobs/copier.h"
#include "agent/rails/rail.h"
#include "agent/sessions/segment_mapper.h"

namespace railsd {
namespace {

constexpr uint64_t kDefaultSpeedBytesPerSecond = 10'000'000'000 / 8;
// Capacity of each of a rail's two queues of commands, and of its queue of events.
constexpr size_t kCommandCapacity = 4096;
constexpr size_t kEventCapacity = 8192;
// The most messages of one peer, and their bytes, that wait for the engine. At more the peer is given up, because no
// message may be lost. One message is always taken.
constexpr size_t kMaxPeerMessages = 1 << 16;
constexpr size_t kMaxPeerBytes = 256 << 20;
// Turns of a busy engine from one look at its sources to the next.
constexpr uint32_t kTurnsPerPoll = 4;
constexpr absl::Duration kLongestSleep = absl::Seconds(1);
constexpr absl::Duration kLongestStop = absl::Seconds(2);

// Deadlines must not jump with the wall clock.
absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

class AgentImpl final : public Agent {
 public:
  AgentImpl(AgentOptions options, WakeEvent wake)
      : log_(options.log),
        refused_(options.refused),
        max_commands_(options.limits.max_waiting_calls),
        spin_(options.spin),
        wake_(std::move(wake)),
        board_(options.rails.size()) {}

  ~AgentImpl() override {
    if (mapper_ != nullptr) mapper_->Stop();  // while the engine still takes its results
    stop_.store(true, std::memory_order_release);
    wake_.Wake();
    if (thread_.joinable()) thread_.join();
    // Threads that touch the jobs' memory stop before the engine frees it.
    rails_.clear();
    copier_.reset();
  }

  absl::Status Init(AgentOptions options, ControlLink* link, AgentObserver* observer) {
    hello_.node = options.node;
    hello_.boot = options.boot;
    std::vector<RailPort*> ports;
    std::vector<std::shared_ptr<MemoryRegistrar>> registrars;
    for (size_t r = 0; r < options.rails.size(); ++r) {
      RailSpec& spec = options.rails[r];
      if (spec.speed_bytes_per_s == 0) spec.speed_bytes_per_s = kDefaultSpeedBytesPerSecond;
      const RailIndex index(static_cast<uint32_t>(r));
      signals_.push_back(std::make_unique<Signals>(this, index));
      absl::StatusOr<std::unique_ptr<RailTransport>> transport =
          CreateTransport(options, index, kCommandCapacity, &zones_, signals_.back().get());
      if (!transport.ok()) {
        return absl::Status(transport.status().code(),
                            absl::StrCat("rail ", spec.name, " (", r, "): ", transport.status().message()));
      }
      const TransportInfo info = (*transport)->Info();
      spec.address = info.address;
      hello_.rails.push_back({index, spec.address, spec.speed_bytes_per_s});
      registrars.push_back(info.registrar);
      const SchedulerOptions scheduler{static_cast<double>(spec.speed_bytes_per_s), options.plan.chunk_bytes,
                                       options.window_bytes};
      rails_.push_back(std::make_unique<Rail>(index, *std::move(transport), scheduler, &board_, &wake_,
                                              kCommandCapacity, kEventCapacity, options.spin));
      ports.push_back(rails_.back().get());
    }
    mapper_ = std::make_unique<SegmentMapper>(std::move(registrars), options.limits.max_sessions);
    const size_t copy_threads = options.copy_threads == 0 ? DefaultCopyThreads() : options.copy_threads;
    copier_ = std::make_unique<ThreadCopier>(copy_threads, &wake_);
    engine_ =
        std::make_unique<Engine>(std::move(options), std::move(ports), &zones_, &board_, link, observer, copier_.get());
    for (auto& rail : rails_) rail->Start();
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  void AddSource(EventSource* source) override {
    poller_.Add(source);
    wake_.Wake();
  }
  void RemoveSource(EventSource* source) override { poller_.Remove(source); }

  const PeerHello& Hello() const override { return hello_; }

  void OpenSession(SessionInfo info, Callback<absl::StatusOr<SessionId>> done) override {
    Call(std::move(done), [info = std::move(info)](Engine& engine, auto done) mutable {
      engine.OpenSession(std::move(info), std::move(done));
    });
  }
  void CloseSession(SessionId session, std::string reason, Callback<absl::Status> closed) override {
    // Never refused: other calls wait for the room that it frees.
    Push([=, reason = std::move(reason), closed = std::move(closed)](Engine& engine) mutable {
      engine.CloseSession(session, reason, std::move(closed));
    });
  }
  void ReserveSegment(SessionId session, SegmentId id, uint64_t length_bytes, Callback<absl::Status> done) override {
    Call(std::move(done),
         [=](Engine& engine, auto done) { engine.ReserveSegment(session, id, length_bytes, std::move(done)); });
  }
  void AddSegment(SessionId session, SegmentId id, UniqueFd fd, uint64_t length_bytes,
                  Callback<absl::Status> done) override {
    // A segment that limits or quotas refuse is never mapped, and so never pinned.
    Call(std::move(done), [this, session, id, length_bytes, fd = std::move(fd)](Engine& engine, auto done) mutable {
      if (absl::Status s = engine.BeginMapping(session, id, length_bytes); !s.ok()) {
        fd.Reset();
        return std::move(done)(s);
      }
      mapper_->Submit(
          {id, std::move(fd), length_bytes, [this, session, id, done = std::move(done)](auto segment) mutable {
             // Never refused: it adds the segment, or gives its room back.
             Push([=, segment = std::move(segment), done = std::move(done)](Engine& engine) mutable {
               engine.AddSegment(session, id, std::move(segment), std::move(done));
             });
           }});
    });
  }
  void RemoveSegment(SessionId session, SegmentId id, Callback<absl::Status> done) override {
    Call(std::move(done), [=](Engine& engine, auto done) { engine.RemoveSegment(session, id, std::move(done)); });
  }
  void Join(JoinRequest request, Callback<absl::StatusOr<GroupView>> done) override {
    Call(std::move(done), [request = std::move(request)](Engine& engine, auto done) mutable {
      engine.Join(std::move(request), std::move(done));
    });
  }
  void Leave(SessionId session, Epoch epoch, Rank rank, Callback<absl::Status> done) override {
    Call(std::move(done), [=](Engine& engine, auto done) { engine.Leave(session, epoch, rank, std::move(done)); });
  }
  absl::Status Submit(Submission submission, Callback<absl::Status> done) override {
    if (absl::Status s = TakePlace(); !s.ok()) return s;
    // Checked on the caller's thread, because many ranges take long.
    PushCall([checked = engine_->Check(submission), done = std::move(done)](Engine& engine) mutable {
      engine.Submit(std::move(checked), std::move(done));
    });
    return absl::OkStatus();
  }
  bool IsQuickToCheck(SessionId session) const override { return engine_->IsQuickToCheck(session); }
  absl::Status Prepare(Submission layout, Callback<absl::Status> done) override {
    if (absl::Status s = TakePlace(); !s.ok()) return s;
    PushCall([checked = engine_->CheckLayout(layout), done = std::move(done)](Engine& engine) mutable {
      engine.KeepPrepared(std::move(checked), std::move(done));
    });
    return absl::OkStatus();
  }
  void ReleasePrepared(SessionId session, PreparedId id, Callback<absl::Status> done) override {
    Call(std::move(done), [=](Engine& engine, auto done) { engine.ReleasePrepared(session, id, std::move(done)); });
  }
  void Wait(SessionId session, JobKey job, Rank rank, absl::Duration timeout,
            Callback<absl::StatusOr<JobReport>> done) override {
    Call(std::move(done),
         [=](Engine& engine, auto done) { engine.Wait(session, job, rank, timeout, std::move(done)); });
  }
  void Cancel(SessionId session, JobKey job, Rank rank, Callback<absl::Status> done) override {
    Call(std::move(done), [=](Engine& engine, auto done) { engine.Cancel(session, job, rank, std::move(done)); });
  }
  void OnPeerUp(PeerHello hello) override {
    Push([hello = std::move(hello)](Engine& engine) { engine.OnPeerUp(hello); });
  }
  void OnPeerDown(std::string node, std::string why, bool ended) override {
    Push(
        [ended, node = std::move(node), why = std::move(why)](Engine& engine) { engine.OnPeerDown(node, why, ended); });
  }
  void OnPeerForgotten(std::string node) override {
    Push([node = std::move(node)](Engine& engine) { engine.OnPeerForgotten(node); });
  }
  void OnPeerSilent(std::string node, std::string why) override {
    Push([node = std::move(node), why = std::move(why)](Engine& engine) { engine.OnPeerSilent(node, why); });
  }
  bool OnPeerMessage(std::string node, BootId boot, ControlMessage message) override {
    const size_t bytes = HeldBytes(message);
    std::string from = node;
    Command command = [node = std::move(node), boot, message = std::move(message)](Engine& engine) mutable {
      engine.OnPeerMessage(node, boot, std::move(message));
    };
    {
      std::lock_guard lock(mutex_);
      Waiting& waiting = waiting_[std::move(from)];
      if (waiting.messages >= kMaxPeerMessages || (waiting.messages > 0 && waiting.bytes + bytes > kMaxPeerBytes))
        return false;
      ++waiting.messages;
      waiting.bytes += bytes;
      commands_.push_back(std::move(command));
      depth_.store(commands_.size(), std::memory_order_release);
    }
    wake_.Wake();
    return true;
  }
  void OnReadyTaken(std::string node, BootId boot, std::vector<JobKey> jobs) override {
    Push([node = std::move(node), boot, jobs = std::move(jobs)](Engine& engine) {
      engine.OnReadyTaken(node, boot, jobs);
    });
  }
  void Drain(absl::Duration limit, Callback<absl::Status> drained) override {
    Push([=, drained = std::move(drained)](Engine& engine) mutable { engine.Drain(limit, std::move(drained)); });
  }
  void Undrain(Callback<absl::Status> done) override {
    Push([done = std::move(done)](Engine& engine) mutable {
      engine.Undrain();
      std::move(done)(absl::OkStatus());
    });
  }
  void Retune(AgentTuning tuning, Callback<absl::Status> done) override {
    max_commands_.store(tuning.limits.max_waiting_calls, std::memory_order_relaxed);
    Push([tuning, done = std::move(done)](Engine& engine) mutable {
      engine.Retune(tuning);
      std::move(done)(absl::OkStatus());
    });
  }
  std::vector<ThreadProgress> Progress() const override {
    std::vector<ThreadProgress> out = {{"engine", turns_.load(std::memory_order_relaxed)}};
    for (size_t r = 0; r < rails_.size(); ++r) out.push_back({absl::StrCat("rail-", r), rails_[r]->turns()});
    for (size_t c = 0; c < copier_->threads(); ++c) out.push_back({absl::StrCat("copy-", c), copier_->turns(c)});
    return out;
  }
  void DrainRail(std::string rail, bool drained, Callback<absl::Status> done) override {
    Call(std::move(done),
         [=, rail = std::move(rail)](Engine& engine, auto done) { engine.DrainRail(rail, drained, std::move(done)); });
  }
  void Explain(WantedJob wanted, Callback<absl::StatusOr<JobExplanation>> done) override {
    Call(std::move(done), [wanted = std::move(wanted)](Engine& engine, auto done) {
      absl::StatusOr<JobExplanation> job = engine.Explain(wanted);
      // Both clocks are read at once, because nodes compare these times.
      if (job.ok()) job->begun_at = absl::Now() - (MonotonicNow() - job->begun);
      std::move(done)(std::move(job));
    });
  }
  void Snapshot(Callback<AgentSnapshot> done) override {
    const size_t depth = QueueDepth();
    Push([this, depth, done = std::move(done)](Engine& engine) mutable {
      AgentSnapshot snapshot = engine.Snapshot(depth);
      snapshot.counters.copy_queue_depth = copier_->depth();
      snapshot.counters.engine_sleeps = sleeps_.load(std::memory_order_relaxed);
      for (size_t r = 0; r < rails_.size(); ++r) {
        snapshot.rails[r].command_depth = rails_[r]->command_depth();
        snapshot.rails[r].event_depth = rails_[r]->event_depth();
        snapshot.rails[r].sleeps = rails_[r]->sleeps();
      }
      std::move(done)(std::move(snapshot));
    });
  }

 private:
  using Command = absl::AnyInvocable<void(Engine&)>;
  // One peer's messages in commands_.
  struct Waiting {
    size_t messages = 0, bytes = 0;
  };

  // Signals of a rail to its peers go through the engine, which knows their names.
  class Signals final : public SignalSink {
   public:
    Signals(AgentImpl* agent, RailIndex rail) : agent_(agent), rail_(rail) {}
    void Send(PeerIndex peer, std::string bytes) override {
      agent_->Push([rail = rail_, peer, bytes = std::move(bytes)](Engine& engine) mutable {
        engine.SendSignal(rail, peer, std::move(bytes));
      });
    }

   private:
    AgentImpl* const agent_;
    const RailIndex rail_;
  };

  // Takes a place among the calls that wait for the engine. Commands of peers and rails do not count.
  absl::Status TakePlace() {
    const size_t limit = max_commands_.load(std::memory_order_relaxed);
    if (waiting_calls_.fetch_add(1, std::memory_order_relaxed) < limit) return absl::OkStatus();
    waiting_calls_.fetch_sub(1, std::memory_order_relaxed);
    return refused_->Refuse(Limit::kWaitingCalls, absl::StrCat(limit, " calls wait for the engine of ", hello_.node));
  }

  // After TakePlace().
  void PushCall(Command command) {
    Push([this, command = std::move(command)](Engine& engine) mutable {
      waiting_calls_.fetch_sub(1, std::memory_order_relaxed);
      command(engine);
    });
  }

  template <typename T, typename Body>
  void Call(Callback<T> done, Body body) {
    if (absl::Status s = TakePlace(); !s.ok()) {
      { [[maybe_unused]] const Body dropped = std::move(body); }  // with the descriptor that it may carry
      return std::move(done)(std::move(s));
    }
    PushCall(
        [done = std::move(done), body = std::move(body)](Engine& engine) mutable { body(engine, std::move(done)); });
  }

  void Push(Command command) {
    {
      std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
      depth_.store(commands_.size(), std::memory_order_release);
    }
    wake_.Wake();
  }

  size_t QueueDepth() const { return depth_.load(std::memory_order_acquire); }

  bool RunCommands() {
    if (QueueDepth() == 0) return false;
    {
      std::lock_guard lock(mutex_);
      running_.swap(commands_);
      waiting_.clear();
      depth_.store(0, std::memory_order_release);
    }
    for (Command& command : running_) command(*engine_);
    running_.clear();
    return true;
  }

  bool Turn() {
    turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // the only writer
    engine_->SetNow(MonotonicNow());
    const bool commands = RunCommands();
    if (commands) engine_->SetNow(MonotonicNow());  // a job may end in the turn in which it began
    return engine_->Step() || commands;
  }

  void Run() {
    pthread_setname_np(pthread_self(), "engine");
    SpinBudget spin(spin_);
    for (uint32_t turns = 1; !stop_.load(std::memory_order_acquire); ++turns) {
      const bool worked = Turn();
      const absl::Time now = MonotonicNow();
      if (worked) {
        spin.OnWork(now);
        // Sources get their turn even while rails and calls keep the engine busy.
        if (turns % kTurnsPerPoll == 0) poller_.Sleep(wake_.fd(), absl::ZeroDuration());
      } else if (!spin.Spent(now)) {
        poller_.Sleep(wake_.fd(), absl::ZeroDuration());
      } else {
        wake_.BeginSleep();
        if (!Turn() && !stop_.load(std::memory_order_acquire)) Sleep();
        wake_.EndSleep();
      }
      if (poller_.Serve()) spin.OnWork(now);
    }
    Stop();
  }

  // Ends the sessions and gives the rails up to kLongestStop to release their memory, so that every caller gets its
  // answer.
  void Stop() {
    Turn();
    engine_->Shutdown();
    const absl::Time limit = MonotonicNow() + kLongestStop;
    while (!engine_->Idle() && MonotonicNow() < limit) {
      if (!Turn()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Turn();
  }

  void Sleep() {
    const absl::Duration wait =
        std::clamp(engine_->NextDeadline() - MonotonicNow(), absl::ZeroDuration(), kLongestSleep);
    sleeps_.store(sleeps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // the only writer
    poller_.Sleep(wake_.fd(), wait);
  }

  const std::shared_ptr<spdlog::logger> log_;
  const std::shared_ptr<LimitCounters> refused_;
  std::atomic<size_t> max_commands_;
  PeerHello hello_;
  const absl::Duration spin_;
  WakeEvent wake_;   // outlives the rails and the copier, which wake it
  ZoneTable zones_;  // outlives the rails and the engine, and so does the board
  RailBoard board_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> turns_{0}, sleeps_{0};  // of the engine's thread
  std::mutex mutex_;
  std::vector<Command> commands_;                      // guarded by mutex_
  absl::flat_hash_map<std::string, Waiting> waiting_;  // guarded by mutex_
  std::atomic<size_t> depth_{0};
  std::atomic<size_t> waiting_calls_{0};  // being prepared, in commands_ or running_
  std::vector<Command> running_;          // the engine's thread only
  SourcePoller poller_;
  std::unique_ptr<SegmentMapper> mapper_;
  std::unique_ptr<ThreadCopier> copier_;
  std::vector<std::unique_ptr<Signals>> signals_;  // outlive the rails, which use them
  std::vector<std::unique_ptr<Rail>> rails_;
  std::unique_ptr<Engine> engine_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options, ControlLink* link, AgentObserver* observer) {
  if (options.rails.empty()) return absl::InvalidArgumentError("rails: give at least one");
  if (options.rails.size() > kMaxMaskedRails) {
    return absl::InvalidArgumentError(
        absl::StrCat("rails: ", options.rails.size(), " given, ", kMaxMaskedRails, " at most"));
  }
  const auto other_kind = [&](const RailSpec& rail) { return rail.kind != options.rails.front().kind; };
  if (std::any_of(options.rails.begin(), options.rails.end(), other_kind)) {
    return absl::InvalidArgumentError("rails: all must be over TCP, or all over RDMA verbs");
  }
  absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
  if (!wake.ok()) return wake.status();
  auto agent = std::make_unique<AgentImpl>(options, *std::move(wake));
  if (absl::Status s = agent->Init(std::move(options), link, observer); !s.ok()) return s;
  return agent;
}

}  // namespace railsd
