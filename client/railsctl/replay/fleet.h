// The ranks of a run and their daemons: workers as processes, one operator connection a node, signals.
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

// While it lives, this thread and the threads that it starts get SIGINT, SIGTERM and SIGHUP through a descriptor.
// Afterwards the signals act as usual, so that an interrupted program ends by its signal after the tear-down. Make it
// before any other thread and destroy it last.
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
  // Command that starts a rank elsewhere, with {node} and {rank} replaced by their numbers. Empty: ranks are local
  // processes.
  std::vector<std::string> launch;
  std::string launch_socket_dir;  // socket directory in a launched rank's file system; empty: the same as here
  uint32_t ranks_per_node = 1;
  bool huge_pages = false;
  uint64_t seed = 0;
  absl::Duration call_timeout = absl::Seconds(5);  // operator calls
  absl::Duration job_timeout = absl::Seconds(60);
  int interrupt_fd = -1;
};

// Not thread-safe. The destructor kills and reaps processes that still run.
class Fleet {
 public:
  explicit Fleet(FleetOptions options);

  // Counters and speeds of all rails, by node. Errors of OperatorClient. INVALID_ARGUMENT: two folders belong to one
  // daemon.
  absl::StatusOr<std::vector<NodeRails>> ReadRails();

  // Starts the workers, which connect, make segments of these sizes and join one group. Errors of Coordinator.
  // RESOURCE_EXHAUSTED: the segments of all ranks do not fit into the free memory.
  absl::Status Start(uint64_t send_bytes, uint64_t receive_bytes);
  Coordinator& coordinator() { return *coordinator_; }
  // Makes the workers leave. False: some had to be killed.
  bool Stop();

  size_t nodes() const { return options_.socket_dirs.size(); }
  size_t ranks() const { return nodes() * options_.ranks_per_node; }
  const FleetOptions& options() const { return options_; }

 private:
  FleetOptions options_;
  std::vector<std::unique_ptr<OperatorClient>> operators_;
  absl::Status Identify(size_t node);
  std::vector<std::vector<std::string>> Launchers() const;

  std::vector<std::string> names_;  // node names, once known
  std::vector<uint64_t> boots_;     // boot ids, once known
  std::optional<WorkerProcesses> workers_;
  std::optional<Coordinator> coordinator_;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_FLEET_H_
