// The ranks of a run and their daemons: workers as processes or behind connections, an operator connection for each
// node of this machine, signals.
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
#include "client/src/unique_fd.h"

namespace rails::ctl {

// While it lives, this thread and the threads that it starts get SIGINT, SIGTERM and SIGHUP through a descriptor,
// except signals that are ignored, such as SIGHUP under nohup. Afterwards the signals act as usual, so that an
// interrupted program ends by its signal after the tear-down. Make it before any other thread and destroy it last.
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
  std::vector<std::string> socket_dirs;  // by node; if ranks were started apart, only the number of entries counts
  // Command that starts a rank in a container of this machine, with {node} and {rank} replaced by their numbers. Empty:
  // ranks are plain processes.
  std::vector<std::string> launch;
  std::string launch_socket_dir;  // socket directory in a launched rank's file system; empty: the same as here
  uint32_t ranks_per_node = 1;
  bool huge_pages = false;
  uint64_t seed = 0;
  absl::Duration call_timeout = absl::Seconds(5);  // operator calls
  absl::Duration job_timeout = absl::Seconds(60);
  int interrupt_fd = -1;
};

// Reads the counters of a daemon's rails; leaves `node` empty.
absl::StatusOr<NodeRails> ReadNodeRails(OperatorClient* daemon);

// Not thread-safe. The destructor kills and reaps processes that still run.
class Fleet {
 public:
  explicit Fleet(FleetOptions options);

  // For ranks that were started apart: takes the connections of ranks 1, 2, ... Start() then starts rank 0 only.
  void Adopt(std::vector<internal::UniqueFd> ranks);

  // Counters and speeds of all rails, by node. Errors of OperatorClient. INVALID_ARGUMENT: two folders belong to one
  // daemon. After Adopt() the ranks read the counters: call Start() first, and expect errors of Coordinator.
  absl::StatusOr<std::vector<NodeRails>> ReadRails();

  // Starts the workers, which connect, make segments of these sizes and join one group. Errors of Coordinator.
  // RESOURCE_EXHAUSTED: the segments of this machine's ranks do not fit into the free memory.
  absl::Status Start(uint64_t send_bytes, uint64_t receive_bytes);
  Coordinator& coordinator() { return *coordinator_; }
  // Makes the workers leave the group and end. Ranks that were started apart end with this exit code and the reason.
  // Error: some workers could not leave, or had to be killed.
  absl::Status Stop(int exit_code, const std::string& why);
  // Ends the ranks that were started apart, after an error.
  void Abandon(int exit_code, const std::string& why);

  size_t nodes() const { return options_.socket_dirs.size(); }
  size_t ranks() const { return nodes() * options_.ranks_per_node; }
  const FleetOptions& options() const { return options_; }

 private:
  FleetOptions options_;
  std::vector<std::unique_ptr<OperatorClient>> operators_;
  absl::Status Identify(size_t node);
  std::vector<std::vector<std::string>> Launchers() const;
  std::vector<WorkerLink> Links() const;
  std::vector<StartCommand> StartCommands(uint64_t send_bytes, uint64_t receive_bytes) const;

  std::vector<std::string> names_;  // node names, once known
  std::vector<uint64_t> boots_;     // boot ids, once known
  bool apart_ = false;              // Adopt() was called
  std::vector<internal::UniqueFd> adopted_;
  std::optional<WorkerProcesses> workers_;
  std::optional<Coordinator> coordinator_;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_FLEET_H_
