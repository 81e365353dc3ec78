// Messages to systemd (sd_notify). They do nothing if systemd does not listen.
#ifndef RAILSD_DAEMON_LIFECYCLE_NOTIFIER_H_
#define RAILSD_DAEMON_LIFECYCLE_NOTIFIER_H_

#include <string>

#include "absl/time/time.h"

namespace railsd {

void NotifyReady(const std::string& status);
void NotifyStatus(const std::string& status);
void NotifyStopping(const std::string& status);
void NotifyWatchdog();
// The interval at which to call NotifyWatchdog(): half of systemd's, or infinite.
absl::Duration WatchdogInterval();

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_NOTIFIER_H_
