// The connections that one thread reads, and writes when their sockets take more. Private to daemon/link.
#ifndef RAILSD_DAEMON_LINK_CONNECTION_LOOP_H_
#define RAILSD_DAEMON_LINK_CONNECTION_LOOP_H_

#include <cstdint>
#include <memory>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "agent/base/unique_fd.h"
#include "daemon/link/connection.h"
#include "daemon/link/socket_connection.h"

namespace railsd {

using SocketPtr = std::shared_ptr<SocketConnection>;

// Called on the loop's thread.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // The connection was read, and may have been greeted. The owner may take it out of the loop.
  virtual void OnServed(const SocketPtr& connection) = 0;
  // The connection has left the loop for good. The handler's OnEnd() follows.
  virtual void OnGone(const SocketPtr& connection, const absl::Status& why) = 0;
  // A listener has an event. `key` is less than ConnectionLoop::kFirstConnection.
  virtual void OnListener(uint64_t key) = 0;
};

// Used by one thread.
class ConnectionLoop {
 public:
  static constexpr uint64_t kFirstConnection = 1 << 16;  // smaller keys belong to listeners

  // `handler` and `owner` outlive the loop. `reads_per_turn`: reads of one connection before the others get their turn.
  ConnectionLoop(UniqueFd epoll, int reads_per_turn, ConnectionHandler* handler, ConnectionOwner* owner)
      : epoll_(std::move(epoll)), reads_per_turn_(reads_per_turn), handler_(*handler), owner_(*owner) {}

  int epoll() const { return epoll_.get(); }
  const absl::flat_hash_map<uint64_t, SocketPtr>& all() const { return connections_; }
  // `connection` is watched with this loop's epoll, or is about to be.
  void Add(const SocketPtr& connection) { connections_[connection->key()] = connection; }
  // Removes a connection that another loop takes.
  void Release(const SocketPtr& connection) {
    connections_.erase(connection->key());
    more_.erase(connection->key());
  }
  void End(const SocketPtr& connection, const absl::Status& why);
  // Goes on opening the connection. True: it is open, or still being opened. False: it has ended.
  bool Begin(const SocketPtr& connection);
  // Waits for events for at most this time, or not at all if more(), and serves them.
  void Turn(int milliseconds);
  // True if a connection has more to read, even if its socket is not readable.
  bool more() const { return !more_.empty(); }

 private:
  void Serve(uint64_t key, uint32_t events);
  void Read(const SocketPtr& connection);
  void ReadFrames(const SocketPtr& connection);

  const UniqueFd epoll_;
  const int reads_per_turn_;
  ConnectionHandler& handler_;
  ConnectionOwner& owner_;
  absl::flat_hash_map<uint64_t, SocketPtr> connections_;
  std::set<uint64_t> more_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_CONNECTION_LOOP_H_
