// One client's connection to its daemon, through all its sessions. It survives restarts of the daemon. All groups of
// the client share it.
#ifndef RAILS_CLIENT_SRC_CONNECTION_H_
#define RAILS_CLIENT_SRC_CONNECTION_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/owner_process.h"
#include "client/src/segment.h"
#include "client/src/session.h"
#include "client/src/watcher.h"
#include "rails/client.h"

namespace rails::internal {

// Thread-safe.
class Connection {
 public:
  // Opens the first session. Errors are Session::Open()'s.
  static absl::StatusOr<std::shared_ptr<Connection>> Open(ClientOptions options);

  // For Open() only.
  Connection(ClientOptions options, std::shared_ptr<Watcher> watcher, std::shared_ptr<Session> session);

  // Tells whether this process opened the connection. Takes no lock.
  const OwnerProcess& owner() const { return owner_; }
  std::shared_ptr<Session> session() const ABSL_LOCKS_EXCLUDED(mutex_);
  const std::shared_ptr<SegmentTable>& segments() const { return segments_; }
  const std::shared_ptr<Watcher>& watcher() const { return watcher_; }

  // If the present session is lost, opens a new one and shares the living segments with it. Retries until `timeout`.
  // CANCELLED after Close().
  absl::Status Reconnect(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(reconnecting_, mutex_);
  // Ends the session for good. Reconnect() fails afterwards.
  void Close() ABSL_LOCKS_EXCLUDED(reconnecting_, mutex_);

 private:
  absl::Status Use(std::shared_ptr<Session> session) ABSL_LOCKS_EXCLUDED(mutex_);

  const OwnerProcess owner_{};
  const ClientOptions options_;
  const std::shared_ptr<Watcher> watcher_;
  const std::shared_ptr<SegmentTable> segments_;
  absl::Mutex reconnecting_;  // taken first; held while a session is opened
  mutable absl::Mutex mutex_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_CONNECTION_H_
