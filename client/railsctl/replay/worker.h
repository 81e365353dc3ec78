// One rank: a client of its node's daemon that executes the coordinator's commands from a pipe or a connection.
#ifndef RAILS_RAILSCTL_REPLAY_WORKER_H_
#define RAILS_RAILSCTL_REPLAY_WORKER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/railsctl/replay/accounting.h"
#include "rails/client.h"

namespace rails::ctl {

using ConnectFunction = std::function<absl::StatusOr<std::unique_ptr<Client>>(ClientOptions)>;

struct WorkerOptions {
  int commands_fd = -1, events_fd = -1;
  ConnectFunction connect;  // Client::Connect, except in tests
  // Reads the counters of the daemon whose sockets are in `socket_dir`; leaves `node` empty.
  std::function<absl::StatusOr<NodeRails>(const std::string& socket_dir)> read_rails;
  // The rank's socket folder, used instead of the one in StartCommand; empty: that of StartCommand.
  std::string socket_dir;
  // Rank and world size of the command line, which StartCommand must repeat; none: StartCommand decides.
  std::optional<uint32_t> rank, world_size;
  // Limit for the first command. Later commands must come within the time that the slowest rank may need. Infinite: no
  // limit, because the other end is a process of this machine, and the stream closes when it ends.
  absl::Duration patience = absl::InfiniteDuration();
};

struct WorkerEnd {
  int exit_code = 0;
  std::string message;  // why the rank or the whole run failed
};

// Reads commands and writes events until QuitCommand, the end of the commands or a failure, which it reports as an
// event, too.
WorkerEnd RunWorker(const WorkerOptions& options);

// CLOCK_MONOTONIC in nanoseconds: comparable between the processes of a machine.
int64_t MonotonicNanoseconds();

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_WORKER_H_
