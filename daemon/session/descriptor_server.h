// The descriptor sockets (rails/v1/descriptor.proto): opens sessions, takes segments, and notices when a trainer dies.
#ifndef RAILSD_DAEMON_SESSION_DESCRIPTOR_SERVER_H_
#define RAILSD_DAEMON_SESSION_DESCRIPTOR_SERVER_H_

#include <spdlog/fwd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/session/session_registry.h"
#include "daemon/session/tenant_map.h"

namespace railsd {

struct DescriptorSocket {
  std::string path;  // nothing may be there
  uint32_t mode = 0666;
  std::string tenant = {};  // whose own it is; empty: shared
};

struct DescriptorServerOptions {
  std::vector<DescriptorSocket> sockets;
  TenantMap tenants;
  std::string node;
  BootId boot;
  size_t max_connections = 320;
  // A connection that has not opened a session by then is closed, so that idle ones cannot hold all places.
  absl::Duration hello_timeout = absl::Seconds(10);
  // By limits.max_sessions, which max_connections follows from, and timeouts.handshake.
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();
  // Called on the server's thread when the agent holds nothing of a session any more (or the agent's, see Agent).
  std::function<void(SessionId)> on_session_closed;
  std::shared_ptr<spdlog::logger> log;
};

// Read by anybody, relaxed.
struct DescriptorCounters {
  std::atomic<uint64_t> connections{0};          // accepted, ever
  std::atomic<uint64_t> refused_connections{0};  // too many, or a process that cannot be watched
  std::atomic<uint64_t> bad_packets{0};          // answered with an error, or closed for it
  std::atomic<uint64_t> denied_sessions{0};      // of clients that are of no tenant, or not of the socket's
  std::atomic<uint64_t> open_connections{0};     // now
};

// One thread ("descriptors") with epoll. A session ends when its connection ends or its process does; forked workers
// may keep the connection open, so the process decides.
class DescriptorServer {
 public:
  // Binds all sockets and starts. `agent` and `registry` outlive the server.
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(DescriptorServerOptions options, Agent* agent,
                                                                 SessionRegistry* registry);
  // Closes every connection and session, joins the thread, removes the sockets.
  virtual ~DescriptorServer() = default;
  // Later connections are refused with UNAVAILABLE; existing ones go on.
  virtual void StopAccepting() = 0;
  // Of new ones, from now on. Any thread.
  virtual void SetMaxConnections(size_t connections) = 0;
  virtual const DescriptorCounters& counters() const = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_DESCRIPTOR_SERVER_H_
