// What systemd is told (sd_notify); nothing happens when it does not listen.
#ifndef RAILSD_DAEMON_LIFECYCLE_NOTIFIER_H_
#define RAILSD_DAEMON_LIFECYCLE_NOTIFIER_H_

#include <string>

#include "absl/time/time.h"

namespace railsd {

void NotifyReady(const std::string& status);
void NotifyStatus(const std::string& status);
void NotifyStopping(const std::string& status);
void NotifyWatchdog();
// How often NotifyWatchdog() must be called (half of what systemd wants), or infinite.
absl::Duration WatchdogInterval();

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_NOTIFIER_H_
