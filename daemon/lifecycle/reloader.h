// Rereads the configuration file of a running daemon and applies the keys that can change live.
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
  std::string config_hash;  // of the configuration in force now
};

// Any thread may call any method.
class Reloader {
 public:
  // Reads the file: ConfigFor() of the daemon's own command line.
  using Load = std::function<absl::StatusOr<Config>()>;
  // Makes a changed configuration effective. Called with the old and the new one, one call at a time.
  using Apply = std::function<void(const Config& before, const Config& now)>;

  // `in_force`: the configuration as read at the start.
  Reloader(Config in_force, Load load, Apply apply, std::shared_ptr<spdlog::logger> log);

  // Logs each change. Error: that of Load, also logged; nothing has changed then.
  absl::StatusOr<ReloadReport> Reload();

  // The configuration in force, and its hashes.
  Config config() const {
    absl::MutexLock lock(&mutex_);
    return in_force_;
  }
  std::string config_hash() const {
    absl::MutexLock lock(&mutex_);
    return hash_;
  }
  std::string shared_config_hash() const {
    absl::MutexLock lock(&mutex_);
    return shared_hash_;
  }

 private:
  const Load load_;
  const Apply apply_;
  const std::shared_ptr<spdlog::logger> log_;
  mutable absl::Mutex mutex_;
  Config in_force_ ABSL_GUARDED_BY(mutex_);
  std::string hash_ ABSL_GUARDED_BY(mutex_);
  std::string shared_hash_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_RELOADER_H_
