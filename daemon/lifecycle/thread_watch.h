// Detects threads that hang, from the number of turns of their loops.
#ifndef RAILSD_DAEMON_LIFECYCLE_THREAD_WATCH_H_
#define RAILSD_DAEMON_LIFECYCLE_THREAD_WATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/agent.h"

namespace railsd {

// Counts looks, not time: while the whole process is stopped (a debugger, a suspended machine) there are no looks, so
// its threads do not count as stuck afterwards. Used by one thread.
class ThreadWatch {
 public:
  // A thread is stuck if `patience` looks in a row find it in the same turn. Look at most once a second: an idle thread
  // begins one turn a second.
  explicit ThreadWatch(uint32_t patience) : patience_(patience) {}

  // Returns the names of the stuck threads, in order. `threads`: the same threads in every call.
  std::vector<std::string> Look(const std::vector<ThreadProgress>& threads);

 private:
  struct Seen {
    uint64_t turns = 0;
    uint32_t looks = 0;  // looks in a row that found `turns`
  };
  const uint32_t patience_;
  std::vector<Seen> seen_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_THREAD_WATCH_H_
