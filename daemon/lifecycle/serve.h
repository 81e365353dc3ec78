// What the daemon's main thread does while the others serve.
#ifndef RAILSD_DAEMON_LIFECYCLE_SERVE_H_
#define RAILSD_DAEMON_LIFECYCLE_SERVE_H_

#include <spdlog/fwd.h>

#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/lifecycle/process.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/lifecycle/reloader.h"

namespace railsd {

// Until SIGTERM or SIGINT, which it returns: reloads on SIGHUP, lets the log tell of what it has held back, and looks
// once a second for threads of the agent that hang. Of one that has hung for `stuck_after` it tells `readiness`;
// systemd hears nothing from then on, and restarts the daemon. All arguments outlive the call.
int ServeUntilStopped(Signals& signals, const Agent& agent, Reloader& reloader, Readiness& readiness,
                      absl::Duration stuck_after, spdlog::logger& log);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_SERVE_H_
