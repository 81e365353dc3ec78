// The descriptor sockets (rails/v1/descriptor.proto). Opens sessions, takes segments, and detects that a trainer died.
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

class RingServer;

struct DescriptorSocket {
  std::string path;  // must not exist
  uint32_t mode = 0666;
  std::string tenant = {};  // the tenant whose own socket this is; empty: shared
};

struct DescriptorServerOptions {
  std::vector<DescriptorSocket> sockets;
  TenantMap tenants;
  std::string node;
  BootId boot;
  size_t max_connections = 320;
  // A connection that has not opened a session by then is closed, so that idle connections cannot fill max_connections.
  absl::Duration hello_timeout = absl::Seconds(10);
  // Counts what limits.max_sessions (which sets max_connections) and timeouts.handshake refuse.
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();
  RingServer* rings = nullptr;  // outlives the server; null: no session gets a ring
  // Called when the agent has closed a session, on the thread of the agent's callbacks.
  std::function<void(SessionId)> on_session_closed;
  std::shared_ptr<spdlog::logger> log;
};

// Any thread reads these, relaxed.
struct DescriptorCounters {
  std::atomic<uint64_t> refused_connections{0};  // over the limit, while draining, or the process cannot be watched
  std::atomic<uint64_t> bad_packets{0};          // answered with an error; some end the connection
  std::atomic<uint64_t> denied_sessions{0};      // clients of no tenant, or not of the socket's tenant
  std::atomic<uint64_t> open_connections{0};     // now
};

// Runs one thread ("descriptors") with epoll. A session ends when its connection or its process ends. The process is
// watched because forked workers may keep the connection open.
class DescriptorServer {
 public:
  // Binds all sockets and starts. `agent` and `registry` outlive the server.
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(DescriptorServerOptions options, Agent* agent,
                                                                 SessionRegistry* registry);
  // Closes every connection and session, joins the thread, removes the sockets.
  virtual ~DescriptorServer() = default;
  // Refuses new connections with UNAVAILABLE. Open connections go on.
  virtual void StopAccepting() = 0;
  // Limits connections from now on; open ones stay. Any thread.
  virtual void SetMaxConnections(size_t connections) = 0;
  virtual const DescriptorCounters& counters() const = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_DESCRIPTOR_SERVER_H_
