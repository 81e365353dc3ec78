// The certificate, key and CA in force. Rereads the files periodically.
#ifndef RAILSD_DAEMON_TLS_TLS_FILES_H_
#define RAILSD_DAEMON_TLS_TLS_FILES_H_

#include <spdlog/fwd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/tls/certificate.h"
#include "daemon/tls/session.h"

namespace railsd {

// Any thread reads these, relaxed.
struct TlsCounters {
  std::atomic<uint64_t> taken{0};    // changed files that came into force
  std::atomic<uint64_t> refused{0};  // changed files that were wrong; the earlier ones stay in force
};

// Any thread may call any method.
class TlsFiles {
 public:
  // Reads and checks the files, then rereads them every `config.refresh` on its thread "tls". Errors of
  // ReadTlsMaterial() and CheckTlsMaterial().
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(TlsConfig config, std::string node,
                                                        std::shared_ptr<spdlog::logger> log);
  ~TlsFiles();  // joins the thread
  TlsFiles(const TlsFiles&) = delete;

  // Handshakes with the files in force. Never null; another pointer after each change.
  std::shared_ptr<const TlsContext> context() const {
    absl::MutexLock lock(&mutex_);
    return context_;
  }
  absl::Time expires() const {
    absl::MutexLock lock(&mutex_);
    return expires_;
  }
  const TlsCounters& counters() const { return counters_; }

  // Reads the files now. Changed files come into force if they are right. Wrong files are logged and counted once.
  void Look();

 private:
  TlsFiles(TlsConfig config, std::string node, std::shared_ptr<spdlog::logger> log);
  // Checks `material` and puts it in force.
  absl::Status Take(TlsMaterial material) ABSL_EXCLUSIVE_LOCKS_REQUIRED(look_mutex_);
  void Refuse(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(look_mutex_);

  const TlsConfig config_;
  const std::string node_;
  const std::shared_ptr<spdlog::logger> log_;
  TlsCounters counters_;
  absl::Mutex look_mutex_;                             // one Look() at a time; taken before mutex_
  TlsMaterial material_ ABSL_GUARDED_BY(look_mutex_);  // in force
  std::string refused_ ABSL_GUARDED_BY(look_mutex_);
  bool told_expired_ ABSL_GUARDED_BY(look_mutex_) = false;
  mutable absl::Mutex mutex_;  // innermost: no lock is taken under it
  std::shared_ptr<const TlsContext> context_ ABSL_GUARDED_BY(mutex_);
  absl::Time expires_ ABSL_GUARDED_BY(mutex_);
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_TLS_TLS_FILES_H_
