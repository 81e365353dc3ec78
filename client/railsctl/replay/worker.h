// One rank: a client of its node's daemon that executes the coordinator's commands from a pipe.
#ifndef RAILS_RAILSCTL_REPLAY_WORKER_H_
#define RAILS_RAILSCTL_REPLAY_WORKER_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "rails/client.h"

namespace rails::ctl {

using ConnectFunction = std::function<absl::StatusOr<std::unique_ptr<Client>>(ClientOptions)>;

// Reads commands from `commands_fd` and writes events to `events_fd` until QuitCommand, the end of the commands or a
// failure, which it reports. `connect`: Client::Connect, except in tests. Returns an exit code.
int RunWorker(int commands_fd, int events_fd, const ConnectFunction& connect);

// CLOCK_MONOTONIC in nanoseconds: comparable between the processes of a machine.
int64_t MonotonicNanoseconds();

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_WORKER_H_
