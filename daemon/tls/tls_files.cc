#include "daemon/tls/tls_files.h"

#include <pthread.h>
#include <spdlog/logger.h>

#include <utility>

#include "absl/time/clock.h"
#include "daemon/lifecycle/logging.h"

namespace railsd {
namespace {

std::string LogTime(absl::Time time) { return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone()); }

}  // namespace

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(TlsConfig config, std::string node,
                                                         std::shared_ptr<spdlog::logger> log) {
  absl::StatusOr<TlsMaterial> material = ReadTlsMaterial(config);
  if (!material.ok()) return material.status();
  const absl::StatusOr<absl::Time> expires = CheckTlsMaterial(*material, config, node, absl::Now());
  if (!expires.ok()) return expires.status();
  std::unique_ptr<TlsFiles> files(new TlsFiles(std::move(config), std::move(node), std::move(log)));
  {
    absl::MutexLock lock(&files->mutex_);
    files->material_ = std::make_shared<const TlsMaterial>(*std::move(material));
    files->expires_ = *expires;
  }
  files->log_->info("mutual_tls certificate={} expires={}", LogValue(files->config_.certificate), LogTime(*expires));
  files->thread_ = std::thread([raw = files.get()] {
    pthread_setname_np(pthread_self(), "tls");
    while (!raw->stop_.WaitForNotificationWithTimeout(raw->config_.refresh)) raw->Look();
  });
  return files;
}

TlsFiles::TlsFiles(TlsConfig config, std::string node, std::shared_ptr<spdlog::logger> log)
    : config_(std::move(config)), node_(std::move(node)), log_(std::move(log)) {}

TlsFiles::~TlsFiles() {
  stop_.Notify();
  if (thread_.joinable()) thread_.join();
}

void TlsFiles::Refuse(const std::string& why) {
  if (why == refused_) return;  // already logged
  refused_ = why;
  ++counters_.refused;
  log_->error("tls_files_refused reason={} hint=\"what was read before stays in force\"", LogValue(why));
}

void TlsFiles::Look() {
  // Compares contents, not times: a file may be swapped by a symbolic link, or restored with an old time.
  absl::MutexLock look(&look_mutex_);
  absl::StatusOr<TlsMaterial> now = ReadTlsMaterial(config_);
  if (!now.ok()) return Refuse(std::string(now.status().message()));
  if (*now == *material()) {
    refused_.clear();
    if (!told_expired_ && absl::Now() >= expires()) {
      told_expired_ = true;
      log_->error("tls_certificate_expired at={} hint=\"no new connection to a peer works; issue a new one\"",
                  LogTime(expires()));
    }
    return;
  }
  const absl::StatusOr<absl::Time> expires = CheckTlsMaterial(*now, config_, node_, absl::Now());
  if (!expires.ok()) return Refuse(std::string(expires.status().message()));
  refused_.clear();
  told_expired_ = false;
  ++counters_.taken;
  {
    absl::MutexLock lock(&mutex_);
    material_ = std::make_shared<const TlsMaterial>(*std::move(now));
    expires_ = *expires;
  }
  log_->info("tls_files_taken certificate={} expires={}", LogValue(config_.certificate), LogTime(*expires));
}

}  // namespace railsd
