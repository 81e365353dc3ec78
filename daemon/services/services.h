// The gRPC services of rails.v1. Built on the callback API: a call that waits for a peer or a job holds no thread.
#ifndef RAILSD_DAEMON_SERVICES_SERVICES_H_
#define RAILSD_DAEMON_SERVICES_SERVICES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/lifecycle/local_address.h"
#include "daemon/rpc/call_counters.h"
#include "daemon/services/job_feed.h"
#include "daemon/session/session_registry.h"

namespace grpc {
class Service;
}

namespace railsd {

class BalanceMeter;
class Readiness;
class Reloader;
class TlsFiles;

// The objects that the services share. Everything pointed to outlives them.
struct ServiceContext {
  Agent* agent = nullptr;
  const SessionRegistry* sessions = nullptr;
  JobFeed* feed = nullptr;
  AgentLimits limits;
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();  // by limits that the services check
  std::shared_ptr<CallCounters> calls = std::make_shared<CallCounters>();
  std::shared_ptr<CallCounters> ring_calls = std::make_shared<CallCounters>();
  std::string node;
  BootId boot;
  std::string version;
  std::function<std::string()> config_hash = [] { return std::string(); };  // of the configuration in force
  const TlsFiles* tls = nullptr;  // for mutual TLS between nodes; null: plain text
  absl::Time started;
  // Peers as the hub knows them, including peers that were never up, which the agent does not know.
  std::function<std::vector<PeerView>()> peers;
  // PeerHub::Redial().
  std::function<absl::Status(const std::string& node)> redial = [](const auto&) {
    return absl::NotFoundError("no peers");
  };
  const BalanceMeter* balance = nullptr;     // null: not measured
  std::vector<RailSpec> rails = {};          // names and speeds
  std::vector<LocalAddress> addresses = {};  // of this machine, at the start
  std::shared_ptr<spdlog::logger> log = {};
  // The tenant whose own socket the services are on. Sessions of other tenants do not work there. Empty: the shared
  // socket.
  std::string tenant = {};
  // Used by operators' calls and the HTTP port only.
  Readiness* readiness = nullptr;
  Reloader* reloader = nullptr;
};

std::shared_ptr<grpc::Service> MakeSessionService(std::shared_ptr<const ServiceContext> context);
std::shared_ptr<grpc::Service> MakeGroupService(std::shared_ptr<const ServiceContext> context);
std::shared_ptr<grpc::Service> MakeJobService(std::shared_ptr<const ServiceContext> context);
std::shared_ptr<grpc::Service> MakeOperatorService(std::shared_ptr<const ServiceContext> context);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICES_SERVICES_H_
