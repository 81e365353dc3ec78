// The processes of the ranks, started from this program's own file or by a launcher. They end with this object.
#ifndef RAILS_RAILSCTL_REPLAY_WORKER_PROCESS_H_
#define RAILS_RAILSCTL_REPLAY_WORKER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rails::ctl {

// The coordinator's ends of a worker's two pipes, or its connection.
struct WorkerLink {
  int commands_fd = -1;  // write end
  int events_fd = -1;    // read end
  bool remote = false;   // a connection: the worker may be on another machine, whose clock differs
};

// Workers die with the thread that started them (PR_SET_PDEATHSIG) and ignore SIGINT. The destructor kills and reaps
// them. Not thread-safe.
class WorkerProcesses {
 public:
  // Numbers of the worker's ends of the pipes, in the worker.
  static constexpr int kCommandsFd = 3, kEventsFd = 4;

  // Starts one process for each entry: `/proc/self/exe worker` if the entry is empty, else the launcher's words, found
  // in PATH, followed by `railsctl worker --stdio`. A killed launcher must end its worker, or at least close the
  // worker's input. On an error no process is left.
  static absl::StatusOr<WorkerProcesses> Start(const std::vector<std::vector<std::string>>& launchers);

  WorkerProcesses(WorkerProcesses&&) noexcept = default;
  WorkerProcesses& operator=(WorkerProcesses&&) = delete;
  ~WorkerProcesses();

  const std::vector<WorkerLink>& links() const { return links_; }
  // Says how worker `index` ended: "ended with exit code 1", "was killed by signal 9 (Killed)", "still runs". Waits at
  // most a second.
  std::string HowEnded(size_t index);
  // Waits at most `timeout` until all workers have ended. True: all have.
  bool WaitAll(absl::Duration timeout);

 private:
  struct Process {
    pid_t pid = -1;
    bool reaped = false;
    int wait_status = 0;
  };
  WorkerProcesses() = default;
  absl::Status StartOne(const std::vector<std::string>& launcher);
  bool Reap(Process& process, absl::Duration timeout);

  std::vector<Process> processes_;
  std::vector<WorkerLink> links_;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_WORKER_PROCESS_H_
