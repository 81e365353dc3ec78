#include "client/src/connection.h"

#include <utility>

namespace rails::internal {
namespace {

absl::Status Closed() { return absl::CancelledError("the client was closed"); }

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(ClientOptions options) {
  auto watcher = std::make_shared<Watcher>();
  absl::StatusOr<std::shared_ptr<Session>> session = Session::Open(options, watcher);
  if (!session.ok()) return session.status();
  auto connection = std::make_shared<Connection>(std::move(options), std::move(watcher), *session);
  (*session)->Watch();
  if (absl::Status status = connection->segments_->Use(*session); !status.ok()) {
    connection->Close();
    return status;
  }
  return connection;
}

Connection::Connection(ClientOptions options, std::shared_ptr<Watcher> watcher, std::shared_ptr<Session> session)
    : options_(std::move(options)),
      watcher_(std::move(watcher)),
      segments_(std::make_shared<SegmentTable>()),
      session_(std::move(session)) {}

std::shared_ptr<Session> Connection::session() const {
  absl::MutexLock lock(&mutex_);
  return session_;
}

absl::Status Connection::Reconnect(absl::Duration timeout) {
  if (absl::Status status = owner_.Check(); !status.ok()) return status;
  absl::MutexLock reconnecting(&reconnecting_);
  const std::shared_ptr<Session> before = session();
  if (before->connected()) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return Closed();
  }
  before->Close();
  ClientOptions options = options_;
  options.connect_timeout = timeout;
  absl::StatusOr<std::shared_ptr<Session>> next = Session::Open(options, watcher_);
  if (!next.ok()) return next.status();
  absl::Status status = segments_->Use(*next);
  if (status.ok()) status = Use(*next);
  if (!status.ok()) {
    (*next)->Close();
    return status;
  }
  (*next)->Watch();
  return absl::OkStatus();
}

absl::Status Connection::Use(std::shared_ptr<Session> session) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return Closed();
  session_ = std::move(session);
  return absl::OkStatus();
}

void Connection::Close() {
  if (!owner_.IsThis()) return;
  segments_->Clear();
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  {
    absl::MutexLock reconnecting(&reconnecting_);  // a Reconnect() under way ends first; its session is not used
    segments_->Clear();
    watcher_->Unwatch();
    session()->Close();
  }
  watcher_->Stop();
}

}  // namespace rails::internal
