// Notices threads that hang, from how often they come round.
#ifndef RAILSD_DAEMON_LIFECYCLE_THREAD_WATCH_H_
#define RAILSD_DAEMON_LIFECYCLE_THREAD_WATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/agent.h"

namespace railsd {

// Counts looks, not time: while the whole process stands still (a debugger, a machine that sleeps) nobody looks, and
// afterwards every thread has its chance again. Of one thread.
class ThreadWatch {
 public:
  // A thread is stuck when `patience` looks in a row have found it in the same turn. Look once a second or more slowly:
  // a thread that has nothing to do begins a turn a second.
  explicit ThreadWatch(uint32_t patience) : patience_(patience) {}

  // The names of the threads that are stuck, in their order. `threads`: the same ones in every look.
  std::vector<std::string> Look(const std::vector<ThreadProgress>& threads);

 private:
  struct Seen {
    uint64_t turns = 0;
    uint32_t looks = 0;  // in a row that found these turns
  };
  const uint32_t patience_;
  std::vector<Seen> seen_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_THREAD_WATCH_H_
