#include "daemon/tls/tls_files.h"

#include <pthread.h>
#include <spdlog/logger.h>

#include <utility>

#include "absl/time/clock.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/link/frame.h"

namespace railsd {
namespace {

std::string LogTime(absl::Time time) { return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone()); }

}  // namespace

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(TlsConfig config, std::string node,
                                                         std::shared_ptr<spdlog::logger> log) {
  absl::StatusOr<TlsMaterial> material = ReadTlsMaterial(config);
  if (!material.ok()) return material.status();
  std::unique_ptr<TlsFiles> files(new TlsFiles(std::move(config), std::move(node), std::move(log)));
  absl::MutexLock look(&files->look_mutex_);
  if (absl::Status taken = files->Take(*std::move(material)); !taken.ok()) return taken;
  files->log_->info("mutual_tls certificate={} expires={}", LogValue(files->config_.certificate),
                    LogTime(files->expires()));
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

absl::Status TlsFiles::Take(TlsMaterial material) {
  const absl::StatusOr<absl::Time> expires = CheckTlsMaterial(material, config_, node_, absl::Now());
  if (!expires.ok()) return expires.status();
  absl::StatusOr<std::shared_ptr<const TlsContext>> context = TlsContext::Make(material, std::string(kLinkProtocol));
  if (!context.ok()) return context.status();
  material_ = std::move(material);
  absl::MutexLock lock(&mutex_);
  context_ = *std::move(context);
  expires_ = *expires;
  return absl::OkStatus();
}

void TlsFiles::Refuse(const absl::Status& why) {
  if (why.message() == refused_) return;  // already logged
  refused_ = std::string(why.message());
  ++counters_.refused;
  log_->error("tls_files_refused reason={} hint=\"the files read before stay in force\"", LogValue(refused_));
}

void TlsFiles::Look() {
  // Compares contents, not times: a file may be swapped by a symbolic link, or restored with an old time.
  absl::MutexLock look(&look_mutex_);
  absl::StatusOr<TlsMaterial> now = ReadTlsMaterial(config_);
  if (!now.ok()) return Refuse(now.status());
  if (*now == material_) {
    refused_.clear();
    if (!told_expired_ && absl::Now() >= expires()) {
      told_expired_ = true;
      log_->error("tls_certificate_expired at={} hint=\"no new connection to a peer works; issue a new one\"",
                  LogTime(expires()));
    }
    return;
  }
  if (absl::Status taken = Take(*std::move(now)); !taken.ok()) return Refuse(taken);
  refused_.clear();
  told_expired_ = false;
  ++counters_.taken;
  log_->info("tls_files_taken certificate={} expires={}", LogValue(config_.certificate), LogTime(expires()));
}

}  // namespace railsd
