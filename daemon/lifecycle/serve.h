// The loop of the main thread while the other threads serve.
#ifndef RAILSD_DAEMON_LIFECYCLE_SERVE_H_
#define RAILSD_DAEMON_LIFECYCLE_SERVE_H_

#include <spdlog/fwd.h>

#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/lifecycle/process.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/lifecycle/reloader.h"

namespace railsd {

// Runs until SIGTERM or SIGINT and returns that signal. Reloads on SIGHUP. Once a second flushes the log's counts of
// repeats and looks for threads of the agent that hang. After `stuck_after` it reports a hanging thread to `readiness`
// and stops feeding systemd's watchdog, so that systemd restarts the daemon.
int ServeUntilStopped(Signals& signals, const Agent& agent, Reloader& reloader, Readiness& readiness,
                      absl::Duration stuck_after, spdlog::logger& log);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_SERVE_H_
