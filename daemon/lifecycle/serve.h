// The loop of the main thread while the other threads serve.
#ifndef RAILSD_DAEMON_LIFECYCLE_SERVE_H_
#define RAILSD_DAEMON_LIFECYCLE_SERVE_H_

#include <spdlog/fwd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/lifecycle/process.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/lifecycle/reloader.h"
#include "daemon/metrics/balance.h"

namespace railsd {

// Detects threads that hang, from the number of turns of their loops. Counts looks, not time: while the whole process
// is stopped (a debugger, a suspended machine) there are no looks, so its threads do not count as stuck afterwards.
// Used by one thread.
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

// Runs until SIGTERM or SIGINT and returns that signal. Reloads on SIGHUP. Once a second flushes the log's counts of
// repeats and looks in `progress` for threads that hang. After `stuck_after` it reports a hanging thread to `readiness`
// and stops feeding systemd's watchdog, so that systemd restarts the daemon. Adds samples of the agent's rails to
// `balance`.
int ServeUntilStopped(Signals& signals, Agent& agent, const std::function<std::vector<ThreadProgress>()>& progress,
                      Reloader& reloader, Readiness& readiness, const std::shared_ptr<BalanceMeter>& balance,
                      absl::Duration stuck_after, spdlog::logger& log);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_SERVE_H_
