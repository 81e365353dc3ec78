// Re-reads the configuration file of a running daemon and applies what can change live.
#ifndef RAILSD_DAEMON_LIFECYCLE_RELOADER_H_
#define RAILSD_DAEMON_LIFECYCLE_RELOADER_H_

#include <spdlog/fwd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/config/config.h"

namespace railsd {

struct ReloadReport {
  std::vector<ConfigDifference> applied;
  std::vector<ConfigDifference> needs_restart;
  std::string config_hash;  // of what is in force now
};

// Any thread may call anything.
class Reloader {
 public:
  // Reads the file: ConfigFor() of the daemon's own command line.
  using Load = std::function<absl::StatusOr<Config>()>;
  // Makes a changed configuration effective; called with the one before and the new one, once at a time.
  using Apply = std::function<void(const Config& before, const Config& now)>;

  // `in_force`: as it was read at the start.
  Reloader(Config in_force, Load load, Apply apply, std::shared_ptr<spdlog::logger> log);

  // Logs each change. Error: as Load; nothing has changed then, and that is logged, too.
  absl::StatusOr<ReloadReport> Reload();

  // Of what is in force.
  Config config() const;
  std::string config_hash() const;

 private:
  const Load load_;
  const Apply apply_;
  const std::shared_ptr<spdlog::logger> log_;
  mutable absl::Mutex mutex_;
  Config in_force_ ABSL_GUARDED_BY(mutex_);
  std::string hash_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_RELOADER_H_
