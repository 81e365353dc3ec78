// A thread that polls event sources, in the place of the engine's.
#ifndef RAILSD_TESTS_UNIT_DAEMON_SOURCE_THREAD_H_
#define RAILSD_TESTS_UNIT_DAEMON_SOURCE_THREAD_H_

#include <atomic>
#include <thread>

#include "absl/time/time.h"
#include "agent/base/event_source.h"
#include "agent/base/wake_event.h"

namespace railsd {

class SourceThread final : public EventHost {
 public:
  SourceThread() : wake_(*WakeEvent::Create()), thread_([this] { Run(); }) {}
  ~SourceThread() override {
    stop_ = true;
    wake_.Wake();
    thread_.join();
  }
  std::thread::id id() const { return thread_.get_id(); }
  void AddSource(EventSource* source) override {
    poller_.Add(source);
    wake_.Wake();
  }
  void RemoveSource(EventSource* source) override { poller_.Remove(source); }

 private:
  void Run() {
    while (!stop_) {
      wake_.BeginSleep();
      if (!stop_) poller_.Sleep(wake_.fd(), absl::Seconds(1));
      wake_.EndSleep();
      poller_.Serve();
    }
  }

  WakeEvent wake_;
  SourcePoller poller_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_SOURCE_THREAD_H_
