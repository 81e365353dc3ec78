// A thread that sleeps and wakes as the agent's engine does (agent/engine/agent.cc).
#ifndef RAILSD_BENCH_LINKS_ENGINE_THREAD_H_
#define RAILSD_BENCH_LINKS_ENGINE_THREAD_H_

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "agent/base/event_source.h"
#include "agent/base/wake_event.h"

namespace railsd::bench {

class EngineThread final : public EventHost {
 public:
  using Command = absl::AnyInvocable<void()>;

  EngineThread() : wake_(*WakeEvent::Create()), thread_([this] { Run(); }) {}
  ~EngineThread() override { Stop(); }

  // Runs the commands pushed before, then joins.
  void Stop() {
    stop_.store(true, std::memory_order_release);
    wake_.Wake();
    if (thread_.joinable()) thread_.join();
  }

  void AddSource(EventSource* source) override {
    poller_.Add(source);
    wake_.Wake();
  }
  void RemoveSource(EventSource* source) override { poller_.Remove(source); }

  // Any thread.
  void Push(Command command) {
    {
      std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
      depth_.store(commands_.size(), std::memory_order_release);
    }
    wake_.Wake();
  }

 private:
  bool Turn() {
    if (depth_.load(std::memory_order_acquire) == 0) return false;
    {
      std::lock_guard lock(mutex_);
      running_.swap(commands_);
      depth_.store(0, std::memory_order_release);
    }
    for (Command& command : running_) command();
    running_.clear();
    return true;
  }

  void Run() {
    while (!stop_.load(std::memory_order_acquire)) {
      if (Turn()) continue;
      wake_.BeginSleep();
      if (!Turn() && !stop_.load(std::memory_order_acquire)) {
        poller_.Sleep(wake_.fd(), absl::Seconds(1));
      }
      wake_.EndSleep();
      poller_.Serve();
    }
    Turn();
  }

  WakeEvent wake_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Command> commands_;  // guarded by mutex_
  std::atomic<size_t> depth_{0};
  std::vector<Command> running_;  // only the thread uses it
  SourcePoller poller_;
  std::thread thread_;
};

}  // namespace railsd::bench

#endif  // RAILSD_BENCH_LINKS_ENGINE_THREAD_H_
