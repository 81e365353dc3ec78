// The only wiring of the daemon. Read it from top to bottom: each part gets what it needs from the parts above it. The
// parts end in the opposite order.
#include <openssl/crypto.h>
#include <spdlog/logger.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "agent/agent.h"
#include "agent/base/steady_now.h"
#include "agent/transport/verbs/verbs_transport.h"
#include "common/version/version.h"
#include "daemon/config/command_line.h"
#include "daemon/config/config.h"
#include "daemon/lifecycle/client_sockets.h"
#include "daemon/lifecycle/local_address.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/lifecycle/process.h"
#include "daemon/lifecycle/rail_choice.h"
#include "daemon/lifecycle/rail_speed.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/lifecycle/reloader.h"
#include "daemon/lifecycle/serve.h"
#include "daemon/metrics/balance.h"
#include "daemon/metrics/metric_table.h"
#include "daemon/metrics/status_port.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/ring/ring_server.h"
#include "daemon/rpc/rpc_server.h"
#include "daemon/services/job_feed.h"
#include "daemon/services/services.h"
#include "daemon/session/descriptor_server.h"
#include "daemon/session/session_registry.h"
#include "daemon/session/tenant_map.h"
#include "daemon/tls/certificate.h"
#include "daemon/tls/tls_files.h"

namespace railsd {
namespace {

AgentOptions AgentOptionsFrom(const Config& config, BootId boot, std::shared_ptr<LimitCounters> refused,
                              std::shared_ptr<spdlog::logger> log) {
  AgentOptions options;
  options.node = config.node;
  options.boot = boot;
  options.rails = config.rails;
  options.plan = config.plan;
  options.late_binding = config.late_binding;
  options.limits = config.limits;
  options.eager_bytes = config.eager_bytes;
  options.frame_bytes = config.frame_bytes;
  options.window_bytes = config.window_bytes;
  options.spin = config.spin;
  options.copy_threads = config.copy_threads;
  options.tls_data = config.tls.data == TlsData::kKernel;
  options.verbs = config.verbs;
  options.health = config.health;
  options.max_job_time = config.timeouts.job;
  options.max_join_time = config.timeouts.join;
  options.peer_lost = config.timeouts.peer_lost;
  options.max_peer_wait = config.timeouts.max_peer_wait;
  options.finished_jobs_kept = config.finished_jobs_kept;
  options.explained_jobs = config.explained_jobs;
  options.rail_handshake = config.timeouts.rail_handshake;
  options.tenants = TenantOptionsFrom(config);
  options.refused = std::move(refused);
  options.log = std::move(log);
  return options;
}

using RpcServers = std::vector<std::unique_ptr<RpcServer>>;

// The gRPC servers: one on the trainers' shared socket, one on each tenant's own, one on the operators'. A server has
// one socket, because a call does not tell on which of a server's sockets it came.
absl::StatusOr<RpcServers> StartRpcServers(const Config& config, const std::shared_ptr<const ServiceContext>& context) {
  RpcServerOptions options;
  options.max_message_bytes = config.max_message_bytes;
  options.max_calls_per_connection = config.connections.max_calls_per_client_connection;
  options.max_headers_bytes = config.connections.max_headers_bytes;
  options.max_memory_bytes = config.connections.max_grpc_memory_bytes;
  options.handshake = config.timeouts.handshake;
  options.idle = config.timeouts.idle;
  RpcServers servers;
  const auto add = [&](const std::string& path, std::vector<std::string> names,
                       std::vector<std::shared_ptr<grpc::Service>> services) {
    options.address = absl::StrCat("unix:", path);
    options.service_names = std::move(names);
    absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options, std::move(services));
    if (!server.ok()) return server.status();
    servers.push_back(*std::move(server));
    return absl::OkStatus();
  };
  absl::Status status;
  for (const ClientSocketDir& directory : ClientSocketDirs(config)) {
    const auto own = std::make_shared<ServiceContext>(*context);
    own->tenant = directory.tenant;
    status.Update(add(directory.path + "/client.sock",
                      {"rails.v1.SessionService", "rails.v1.GroupService", "rails.v1.JobService"},
                      {MakeSessionService(own), MakeGroupService(own), MakeJobService(own)}));
  }
  status.Update(
      add(config.socket_dir + "/operator.sock", {"rails.v1.OperatorService"}, {MakeOperatorService(context)}));
  if (!status.ok()) return status;
  return servers;
}

PeerHubOptions PeerOptionsFrom(const Config& config, BootId boot, const TlsFiles* tls,
                               std::shared_ptr<LimitCounters> refused, std::shared_ptr<spdlog::logger> log) {
  PeerHubOptions options;
  options.node = config.node;
  options.boot = boot;
  options.version = std::string(Version());
  options.static_peers = config.static_peers;
  options.dns = config.dns;
  options.lost_after = config.timeouts.peer_lost;
  options.heartbeat = config.timeouts.heartbeat;
  options.max_message_bytes = config.max_message_bytes;
  options.max_world_size = config.limits.max_world_size;
  options.links.listen = config.control_listen;
  options.links.tls = tls;
  options.links.handshake = config.timeouts.handshake;
  options.links.max_connections = config.connections.max_control_connections;
  options.links.max_per_address = config.connections.max_control_connections_per_address;
  options.links.max_half_open = config.limits.max_half_open;
  options.links.refused = std::move(refused);
  options.log = std::move(log);
  return options;
}

// Null: plain text between nodes.
absl::StatusOr<std::unique_ptr<TlsFiles>> OpenTls(const Config& config, const std::shared_ptr<spdlog::logger>& log) {
  if (config.tls.mode != TlsMode::kMutual) {
    if (!config.control_listen.empty()) {
      log->warn("no_tls_between_nodes hint=\"keep control.listen and the rails on a network of their own\"");
    }
    return nullptr;
  }
  return TlsFiles::Open(config.tls, config.node, log);
}

// Checks the files for --check-config. OK if the caller may not read them, because often only the daemon may read the
// key.
absl::Status CheckTlsFiles(const Config& config) {
  if (config.tls.mode != TlsMode::kMutual) return absl::OkStatus();
  const absl::StatusOr<TlsMaterial> material = ReadTlsMaterial(config.tls);
  if (absl::IsPermissionDenied(material.status())) return absl::OkStatus();
  if (!material.ok()) return material.status();
  return CheckTlsMaterial(*material, config.tls, config.node, absl::Now()).status();
}

// One connection for each session, and 64 for trainers that open or close one.
size_t MaxConnections(const Config& config) { return config.limits.max_sessions + 64; }

// Waits until running jobs finish. A second signal ends the process.
void DrainAgent(Agent* agent, absl::Duration limit, spdlog::logger* log) {
  const auto drained = std::make_shared<absl::Notification>();
  const auto status = std::make_shared<absl::Status>();
  agent->Drain(limit, [drained, status](absl::Status s) {
    *status = std::move(s);
    drained->Notify();
  });
  // The engine keeps the limit. The extra second covers an engine that hangs.
  if (!drained->WaitForNotificationWithTimeout(limit + absl::Seconds(1))) {
    log->error("drain_gave_no_answer limit={}", absl::FormatDuration(limit));
  } else {
    log->info("drained status={}", LogValue(status->ToString()));
  }
}

// Exits without gRPC's teardown, after all parts of the daemon have stopped. The teardown may abort if a new connection
// is still in its handshake (gRPC 1.51, twice in some thousands of stops: `ref_counted.h: prior > 0`). Sanitizer builds
// return instead, for the leak check.
void LeaveAtOnce(spdlog::logger* log) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  log->flush();
  std::_Exit(kExitOk);
#else
  static_cast<void>(log);
#endif
}

// Replaces what a configuration for many nodes leaves open by what this machine has: its RDMA ports for patterns and
// `rails: auto`, its addresses for networks and interfaces.
absl::Status Resolve(Config* config) {
  absl::StatusOr<std::vector<RailSpec>> rails = ChooseRails(*config, DiscoverRdmaPorts(), HasVerbs());
  if (!rails.ok()) return rails.status();
  const std::vector<LocalAddress> known = LocalAddresses();
  if (absl::Status status = FillRailAddresses(known, &*rails); !status.ok()) return status;
  absl::StatusOr<std::string> control = ResolveListen("control.listen", config->control_listen, known);
  if (!control.ok()) return control.status();
  absl::StatusOr<std::string> metrics = ResolveListen("metrics.listen", config->metrics_listen, known);
  if (!metrics.ok()) return metrics.status();
  config->rails = *std::move(rails);
  config->auto_rails = false;
  config->auto_rails_choice = {};
  config->control_listen = *std::move(control);
  config->metrics_listen = *std::move(metrics);
  return absl::OkStatus();
}

absl::Status Run(Config config, Reloader::Load load) {
  // Sockets and files stay private until they get their modes.
  umask(0077);
  absl::StatusOr<Signals> signals = Signals::Block();
  if (!signals.ok()) return signals.status();

  // Log.
  absl::StatusOr<std::shared_ptr<spdlog::logger>> made_log = MakeLogger(config.log);
  if (!made_log.ok()) return made_log.status();
  const std::shared_ptr<spdlog::logger> log = *made_log;
  const bool memlock = TakeMemlockCapability();
  const BootId boot(DrawBootId());
  const absl::Time started = absl::Now();
  const Config as_written = config;
  log->info("starting version={} node={} boot={:016x} config={} files={}", std::string(Version()), config.node,
            boot.value(), ConfigHash(config), RaiseFileLimit());
  log->info("locked_memory unlimited_by_capability={}", memlock);
  absl::StatusOr<std::unique_ptr<TlsFiles>> tls = OpenTls(config, log);
  if (!tls.ok()) return tls.status();
  if (absl::Status status = Resolve(&config); !status.ok()) return status;
  FillRailSpeeds(LocalAddresses(), &config.rails, log.get());

  // Socket directory.
  absl::StatusOr<SocketDirectory> directory = SocketDirectory::Prepare(config.socket_dir);
  if (!directory.ok()) return directory.status();
  if (absl::Status status = PrepareTenantFolders(config, *directory); !status.ok()) return status;
  absl::StatusOr<TenantMap> tenants = TenantMap::Make(config.tenants, config.node);
  if (!tenants.ok()) return tenants.status();

  // Data plane, with its control link and the observers of its jobs.
  std::vector<uint64_t> rail_speeds;
  for (const RailSpec& rail : config.rails) rail_speeds.push_back(rail.speed_bytes_per_s);
  JobStatistics statistics(std::move(rail_speeds));
  JobFeed feed(&statistics, config.connections.max_watches_per_session);
  const auto refused = std::make_shared<LimitCounters>();
  const PeerHubOptions peer_options = PeerOptionsFrom(config, boot, tls->get(), refused, log);
  const std::unique_ptr<PeerHub> peers = std::make_unique<PeerHub>(peer_options);
  absl::StatusOr<std::unique_ptr<Agent>> agent =
      Agent::Create(AgentOptionsFrom(config, boot, refused, log), peers.get(), &feed);
  if (!agent.ok()) return agent.status();

  // Links to the peers.
  const absl::Cleanup stop_peers = [&] { peers->Stop(); };
  if (absl::Status status = peers->Start(agent->get()); !status.ok()) return status;

  // Reload.
  Readiness readiness;
  std::atomic<DescriptorServer*> descriptor_server = nullptr;
  Reloader reloader(
      as_written, std::move(load),
      [&](const Config& before, const Config& now) {
        if (now.log.level != before.log.level) static_cast<void>(SetLogLevel(log.get(), now.log.level));
        (*agent)->Retune(
            {now.limits, now.timeouts.job, now.timeouts.join, now.finished_jobs_kept, TenantOptionsFrom(now)},
            [](const absl::Status&) {});
        if (now.static_peers != before.static_peers) peers->SetStaticPeers(now.static_peers);
        if (DescriptorServer* server = descriptor_server) server->SetMaxConnections(MaxConnections(now));
      },
      log);

  // Trainers and operators.
  SessionRegistry sessions;
  const auto balance = std::make_shared<BalanceMeter>();  // of the rails over time
  const auto context = std::make_shared<const ServiceContext>(
      ServiceContext{agent->get(),
                     &sessions,
                     &feed,
                     config.limits,
                     refused,
                     std::make_shared<CallCounters>(),
                     std::make_shared<CallCounters>(),
                     config.node,
                     boot,
                     std::string(Version()),
                     [&reloader] { return reloader.config_hash(); },
                     tls->get(),
                     started,
                     [&peers] { return peers->Peers(); },
                     [&peers](const std::string& node) { return peers->Redial(node); },
                     balance.get(),
                     config.rails,
                     LocalAddresses(),
                     log,
                     "",
                     &readiness,
                     &reloader});
  absl::StatusOr<RpcServers> servers = StartRpcServers(config, context);
  if (!servers.ok()) return servers.status();
  absl::Status access = SetSocketAccess(config.socket_dir + "/operator.sock", config.operator_mode,
                                        config.operator_group, "operator_group");
  access.Update(SetClientSocketAccess(config, "client.sock"));
  if (!access.ok()) return access;

  // Rings.
  RingServerOptions ring_options;
  ring_options.threads = RingThreads(std::thread::hardware_concurrency());
  ring_options.max_message_bytes = config.max_message_bytes;
  ring_options.max_memory_bytes = config.connections.max_grpc_memory_bytes;
  ring_options.max_calls_per_session = config.connections.max_calls_per_client_connection;
  absl::StatusOr<std::unique_ptr<RingServer>> rings = RingServer::Start(ring_options, context);
  if (!rings.ok()) return rings.status();

  // Descriptor sockets. They come last because a client connects here first.
  DescriptorServerOptions descriptor_options;
  for (const ClientSocketDir& directory : ClientSocketDirs(config)) {
    descriptor_options.sockets.push_back({directory.path + "/descriptors.sock", config.socket_mode, directory.tenant});
  }
  descriptor_options.tenants = *std::move(tenants);
  descriptor_options.node = config.node;
  descriptor_options.boot = boot;
  descriptor_options.max_connections = MaxConnections(config);
  descriptor_options.hello_timeout = config.timeouts.handshake;
  descriptor_options.refused = refused;
  descriptor_options.rings = rings->get();
  descriptor_options.on_session_closed = [&feed](SessionId session) { feed.RemoveSession(session); };
  descriptor_options.log = log;
  absl::StatusOr<std::unique_ptr<DescriptorServer>> descriptors =
      DescriptorServer::Start(std::move(descriptor_options), agent->get(), &sessions);
  if (!descriptors.ok()) return descriptors.status();
  descriptor_server = descriptors->get();
  access.Update(SetClientSocketAccess(config, "descriptors.sock"));
  access.Update(OpenTenantFolders(config));
  if (!access.ok()) return access;

  // Metrics and the page.
  std::unique_ptr<StatusPort> status_port;
  if (!config.metrics_listen.empty()) {
    MetricSources sources;
    sources.context = context;
    sources.jobs = &statistics;
    sources.peers = peers.get();
    sources.links = peer_options.links.counters;
    sources.max_peers = config.metrics_max_peers;
    sources.descriptors = descriptors->get();
    sources.rings = rings->get();
    sources.tls_data = config.tls.data == TlsData::kKernel;
    sources.interfaces = InterfacesOf(config.rails);
    HttpOptions http;
    http.listen = config.metrics_listen;
    http.patience = config.timeouts.http;
    http.max_request_bytes = config.connections.max_http_request_bytes;
    http.refused = refused;
    absl::StatusOr<std::unique_ptr<StatusPort>> server = StatusPort::Start(std::move(http), std::move(sources));
    if (!server.ok()) return server.status();
    status_port = *std::move(server);
  }

  // Serve.
  readiness.AddListener([&](bool ready, bool live) {
    for (const auto& server : *servers) server->SetHealth(ready, live);
  });
  readiness.SetStarted();
  log->info("ready socket_dir={} control={} metrics={}", LogValue(config.socket_dir), LogValue(config.control_listen),
            LogValue(config.metrics_listen));
  sd_notifyf(0, "READY=1\nSTATUS=node %s, %zu rails", config.node.c_str(), config.rails.size());
  const auto progress = [&] {
    std::vector<ThreadProgress> threads = (*agent)->Progress();
    for (ThreadProgress& ring : (*rings)->Progress()) threads.push_back(std::move(ring));
    return threads;
  };
  const int signal =
      ServeUntilStopped(*signals, **agent, progress, reloader, readiness, balance, config.timeouts.stuck, *log);

  // Stop: readiness says so first, then running jobs end.
  log->info("stopping signal={}", signal);
  sd_notify(0, "STOPPING=1\nSTATUS=draining");
  readiness.SetStopping();
  signals->NextOneKills();
  (*descriptors)->StopAccepting();
  DrainAgent(agent->get(), reloader.config().timeouts.drain, log.get());
  status_port.reset();
  // Calls end before sessions, because a client that learns first that its session is over counts its last job as lost.
  // Clients read their rings to the end even then. Rings get no more records from now on, so that no session hears of
  // another session's end.
  const absl::Time calls_end = SteadyNow() + absl::Milliseconds(500);
  for (const auto& server : *servers) server->Shutdown(std::max(calls_end - SteadyNow(), absl::ZeroDuration()));
  (*rings)->Stop();
  // Tells the peers that this daemon ends before its sessions end. Otherwise the peers conclude that its trainers have
  // died, and groups that wait for the daemon cannot go on.
  peers->Stop();
  descriptor_server = nullptr;
  descriptors->reset();
  rings->reset();
  agent->reset();
  log->info("stopped");
  LeaveAtOnce(log.get());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const CommandLine line = ParseCommandLine(argc, argv);
  if (line.action == Action::kExit) return line.exit_code;
  if (line.action == Action::kListDevices) {
    const std::vector<verbs::RdmaPort> ports = DiscoverRdmaPorts();
    std::cout << (line.json ? RdmaPortJson(ports) : RdmaPortTable(ports));
    return kExitOk;
  }
  if (line.action == Action::kMetricsTable) {
    std::cout << MetricTableMarkdown();
    return kExitOk;
  }
  if (line.action == Action::kConfigTable) {
    std::cout << ConfigTableMarkdown();
    return kExitOk;
  }
  absl::StatusOr<Config> config = ConfigFor(line);
  if (!config.ok()) {
    std::cerr << config.status().message() << "\n";
    return kExitConfig;
  }
  if (line.action == Action::kPrintConfig) {
    if (absl::Status status = line.resolve ? Resolve(&*config) : absl::OkStatus(); !status.ok()) {
      std::cerr << line.config_path << ": " << status.message() << "\n";
      return kExitConfig;
    }
    std::cout << PrintConfig(*config);
    return kExitOk;
  }
  if (line.action == Action::kCheckConfig) {
    if (absl::Status status = CheckTlsFiles(*config); !status.ok()) {
      std::cerr << line.config_path << ": " << status.message() << "\n";
      return kExitConfig;
    }
    std::cout << line.config_path << ": ok\n";
    return kExitOk;
  }
  const LogConfig log = config->log;
  const absl::Status status = Run(*std::move(config), [line] { return ConfigFor(line); });
  if (status.ok()) return kExitOk;
  LogFatal(log, status);
  return kExitRuntime;
}

}  // namespace
}  // namespace railsd

int main(int argc, char** argv) {
  // Debian builds Abseil with lock order checks on. They put every mutex of gRPC into one global graph.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // OpenSSL must not free its state at exit: a thread may still use it.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  return railsd::Main(argc, argv);
}
