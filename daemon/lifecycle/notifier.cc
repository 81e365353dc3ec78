#include "daemon/lifecycle/notifier.h"

#include <systemd/sd-daemon.h>

#include "absl/strings/str_cat.h"

namespace railsd {

void NotifyReady(const std::string& status) { sd_notify(0, absl::StrCat("READY=1\nSTATUS=", status).c_str()); }
void NotifyStatus(const std::string& status) { sd_notify(0, absl::StrCat("STATUS=", status).c_str()); }
void NotifyStopping(const std::string& status) { sd_notify(0, absl::StrCat("STOPPING=1\nSTATUS=", status).c_str()); }
void NotifyWatchdog() { sd_notify(0, "WATCHDOG=1"); }

absl::Duration WatchdogInterval() {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) <= 0 || microseconds == 0) return absl::InfiniteDuration();
  return absl::Microseconds(microseconds) / 2;
}

}  // namespace railsd
