#include "daemon/link/connection_loop.h"

#include <sys/epoll.h>

#include <optional>
#include <string>
#include <utility>

namespace railsd {
namespace {

constexpr int kEvents = 64;

}  // namespace

void ConnectionLoop::End(const SocketPtr& connection, const absl::Status& why) {
  if (connections_.erase(connection->key()) == 0) return;
  more_.erase(connection->key());
  if (connection->fd() >= 0) ::epoll_ctl(epoll(), EPOLL_CTL_DEL, connection->fd(), nullptr);
  connection->Close();  // other owners may keep the object and its descriptor alive
  owner_.OnGone(connection, why);
  handler_.OnEnd(connection, why);
}

bool ConnectionLoop::Begin(const SocketPtr& connection) {
  const absl::StatusOr<bool> open = connection->Open();
  if (!open.ok()) {
    End(connection, open.status());
  } else if (*open) {
    handler_.OnOpen(connection);
  }
  return open.ok();
}

void ConnectionLoop::Read(const SocketPtr& connection) {
  ReadFrames(connection);
  if (!connections_.contains(connection->key())) return;
  // A TLS write may have waited for these bytes.
  if (connection->write_wants_read()) {
    const absl::StatusOr<bool> flushed = connection->Flush();
    if (flushed.ok() && *flushed) handler_.OnWritable(connection);
  }
  owner_.OnServed(connection);
}

void ConnectionLoop::ReadFrames(const SocketPtr& connection) {
  for (int reads = 0; reads < reads_per_turn_; ++reads) {
    const absl::StatusOr<bool> more = connection->Read();
    if (!more.ok()) {
      return End(connection, connection->closed() ? absl::CancelledError("closed by this node") : more.status());
    }
    if (!*more) return;
    while (true) {
      if (connection->closed()) return End(connection, absl::CancelledError("closed by this node"));
      const absl::StatusOr<std::optional<Frame>> frame = connection->reader().Next();
      if (!frame.ok()) {
        const std::string why(frame.status().message());
        connection->Write(std::make_shared<const std::string>(FrameOf(FrameKind::kEnd, 0, why)));
        return End(connection, frame.status());
      }
      if (!*frame) break;
      connection->NoteFrame((*frame)->kind);
      handler_.OnFrame(connection, **frame);
    }
    if (!connection->pending()) return;
  }
  more_.insert(connection->key());  // the other connections come first
}

void ConnectionLoop::Serve(uint64_t key, uint32_t events) {
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  const SocketPtr connection = found->second;
  if (!connection->open()) {
    if (!Begin(connection) || !connection->open()) return;
  }
  if ((events & EPOLLOUT) != 0) {
    const absl::StatusOr<bool> flushed = connection->Flush();
    // Reads the bytes that came before the reset. Reading then returns the error, too.
    if (!flushed.ok()) events |= EPOLLIN;
    if (flushed.ok() && *flushed) handler_.OnWritable(connection);
  }
  // The handshake may already have read the first frames.
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 || connection->pending()) Read(connection);
}

void ConnectionLoop::Turn(int milliseconds) {
  epoll_event events[kEvents];
  const int count = ::epoll_wait(epoll(), events, kEvents, more_.empty() ? milliseconds : 0);
  std::set<uint64_t> more = std::exchange(more_, {});  // one turn each, whether the socket is readable or not
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[i].data.u64;
    if (key < kFirstConnection) {
      owner_.OnListener(key);
    } else {
      Serve(key, events[i].events | (more.erase(key) > 0 ? EPOLLIN : 0u));
    }
  }
  for (const uint64_t key : more) {
    if (const auto found = connections_.find(key); found != connections_.end()) Read(SocketPtr(found->second));
  }
}

}  // namespace railsd
