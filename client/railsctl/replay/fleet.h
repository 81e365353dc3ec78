// The ranks of a run and the daemons they use: workers as processes, one operator connection per node, signals.
#ifndef RAILS_RAILSCTL_REPLAY_FLEET_H_
#define RAILS_RAILSCTL_REPLAY_FLEET_H_

#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/railsctl/operator_client.h"
#include "client/railsctl/replay/accounting.h"
#include "client/railsctl/replay/coordinator.h"
#include "client/railsctl/replay/worker_process.h"

namespace rails::ctl {

// While it lives, SIGINT, SIGTERM and SIGHUP wait on a descriptor, in this thread and those it starts; afterwards they
// act as usual, so that an interrupted program ends by its signal once everything else is torn down. Make it before
// any other thread and keep it longest.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  int fd() const { return fd_; }

 private:
  sigset_t old_mask_;
  int fd_ = -1;
};

struct FleetOptions {
  std::vector<std::string> socket_dirs;  // by node
  // The command that starts a rank somewhere else, {node} and {rank} in it replaced by their numbers; empty: ranks are
  // processes beside this one.
  std::vector<std::string> launch;
  std::string launch_socket_dir;  // of the daemon, as a launched rank sees it; empty: the same as here
  uint32_t ranks_per_node = 1;
  bool huge_pages = false;
  uint64_t seed = 0;
  absl::Duration call_timeout = absl::Seconds(5);  // operator calls
  absl::Duration job_timeout = absl::Seconds(60);
  int interrupt_fd = -1;
};

// Not for use from several threads. Destroying it kills and reaps what still runs.
class Fleet {
 public:
  explicit Fleet(FleetOptions options);

  // Counters and speeds of all rails, by node. Error: as OperatorClient's; INVALID_ARGUMENT when two folders are of one
  // daemon.
  absl::StatusOr<std::vector<NodeRails>> ReadRails();

  // Starts the workers, which connect, make segments of these sizes and join one group. Error: as Coordinator's;
  // RESOURCE_EXHAUSTED when the segments of all ranks would not fit into the memory that is free.
  absl::Status Start(uint64_t send_bytes, uint64_t receive_bytes);
  Coordinator& coordinator() { return *coordinator_; }
  // Lets the workers leave. False when some had to be killed.
  bool Stop();

  size_t nodes() const { return options_.socket_dirs.size(); }
  size_t ranks() const { return nodes() * options_.ranks_per_node; }
  const FleetOptions& options() const { return options_; }

 private:
  FleetOptions options_;
  std::vector<std::unique_ptr<OperatorClient>> operators_;
  absl::Status Identify(size_t node);
  std::vector<std::vector<std::string>> Launchers() const;

  std::vector<std::string> names_;  // of the nodes, once known
  std::vector<uint64_t> boots_;     // and their boot ids
  std::optional<WorkerProcesses> workers_;
  std::optional<Coordinator> coordinator_;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_FLEET_H_
