#include "daemon/lifecycle/reloader.h"

#include <spdlog/logger.h>

#include <utility>

#include "agent/base/log_value.h"

namespace railsd {

Reloader::Reloader(Config in_force, Load load, Apply apply, std::shared_ptr<spdlog::logger> log)
    : load_(std::move(load)),
      apply_(std::move(apply)),
      log_(std::move(log)),
      in_force_(std::move(in_force)),
      hash_(ConfigHash(in_force_)),
      shared_hash_(SharedConfigHash(in_force_)) {}

absl::StatusOr<ReloadReport> Reloader::Reload() {
  absl::StatusOr<Config> wanted = load_();
  if (!wanted.ok()) {
    log_->error("reload_failed reason={}", LogValue(std::string(wanted.status().message())));
    return wanted.status();
  }
  absl::MutexLock lock(&mutex_);
  Config now = WithLiveChanges(in_force_, *wanted);
  ReloadReport report;
  report.applied = DiffConfigs(in_force_, now);
  report.needs_restart = DiffConfigs(now, *wanted);
  if (!report.applied.empty()) {
    apply_(in_force_, now);
    in_force_ = std::move(now);
    hash_ = ConfigHash(in_force_);
    shared_hash_ = SharedConfigHash(in_force_);
  }
  report.config_hash = hash_;
  for (const ConfigDifference& change : report.applied) {
    log_->info("config_changed key={} before={} after={}", change.key, LogValue(change.before), LogValue(change.after));
  }
  for (const ConfigDifference& change : report.needs_restart) {
    log_->warn("config_needs_restart key={} in_force={} in_file={}", change.key, LogValue(change.before),
               LogValue(change.after));
  }
  log_->info("reloaded applied={} need_restart={} config={}", report.applied.size(), report.needs_restart.size(),
             hash_);
  return report;
}

}  // namespace railsd
