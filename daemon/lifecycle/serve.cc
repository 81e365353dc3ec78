#include "daemon/lifecycle/serve.h"

#include <signal.h>
#include <spdlog/logger.h>
#include <systemd/sd-daemon.h>

#include <algorithm>

#include "absl/strings/str_join.h"
#include "agent/base/steady_now.h"

namespace railsd {
namespace {

// Interval of the looks at the threads and of the log's flushes.
constexpr absl::Duration kPace = absl::Seconds(1);

// Half of the interval of systemd's watchdog, or infinite.
absl::Duration WatchdogInterval() {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) <= 0 || microseconds == 0) return absl::InfiniteDuration();
  return absl::Microseconds(microseconds) / 2;
}

}  // namespace

std::vector<std::string> ThreadWatch::Look(const std::vector<ThreadProgress>& threads) {
  seen_.resize(threads.size());
  std::vector<std::string> stuck;
  for (size_t i = 0; i < threads.size(); ++i) {
    Seen& seen = seen_[i];
    if (threads[i].turns != seen.turns) seen = {threads[i].turns, 0};
    if (seen.looks++ >= patience_) stuck.push_back(threads[i].name);
  }
  return stuck;
}

int ServeUntilStopped(Signals& signals, Agent& agent, const std::function<std::vector<ThreadProgress>()>& progress,
                      Reloader& reloader, Readiness& readiness, const std::shared_ptr<BalanceMeter>& balance,
                      absl::Duration stuck_after, spdlog::logger& log) {
  const absl::Duration feed_every = WatchdogInterval();
  ThreadWatch watch(static_cast<uint32_t>(std::max<int64_t>(2, stuck_after / kPace)));
  absl::Time next_look = SteadyNow(), next_feed = next_look, next_sample = next_look;
  std::vector<std::string> stuck;
  while (true) {
    const int signal = signals.WaitFor(std::clamp(next_look - SteadyNow(), absl::ZeroDuration(), kPace));
    if (signal == SIGHUP) {
      static_cast<void>(reloader.Reload());  // logs its outcome
    } else if (signal != 0) {
      return signal;
    }
    if (SteadyNow() < next_look) continue;
    next_look = SteadyNow() + kPace;
    log.flush();  // reports counted repeats
    std::vector<std::string> hang = watch.Look(progress());
    if (hang != stuck) {
      if (!hang.empty())
        log.error("threads_hang names={} for={}", absl::StrJoin(hang, ","), absl::FormatDuration(stuck_after));
      if (hang.empty()) log.warn("threads_go_on names={}", absl::StrJoin(stuck, ","));
      readiness.SetStuck(hang);
      stuck = std::move(hang);
    }
    if (SteadyNow() >= next_sample) {
      next_sample = SteadyNow() + BalanceMeter::kPace;
      agent.Snapshot([balance](const AgentSnapshot& snapshot) { balance->Add(snapshot.rails, SteadyNow()); });
    }
    if (stuck.empty() && SteadyNow() >= next_feed) {
      sd_notify(0, "WATCHDOG=1");
      next_feed = SteadyNow() + feed_every;
    }
  }
}

}  // namespace railsd
