// The processes of the ranks: started from this program's own file or by a launcher, and gone when this object is.
#ifndef RAILS_RAILSCTL_REPLAY_WORKER_PROCESS_H_
#define RAILS_RAILSCTL_REPLAY_WORKER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rails::ctl {

// The coordinator's ends of a worker's two pipes.
struct WorkerLink {
  int commands_fd = -1;  // written
  int events_fd = -1;    // read
};

// Workers die with the thread that started them (PR_SET_PDEATHSIG), ignore SIGINT, and are killed and reaped by the
// destructor. Not for use from several threads.
class WorkerProcesses {
 public:
  // Descriptors of a worker's ends, in the worker.
  static constexpr int kCommandsFd = 3, kEventsFd = 4;

  // Starts one process for each entry: `/proc/self/exe worker` where it is empty, else the words of a launcher, which
  // is looked for in PATH, followed by `railsctl worker --stdio`. A launcher that is killed must end its worker, or at
  // least the worker's input. Error: what the system refused; none are left then.
  static absl::StatusOr<WorkerProcesses> Start(const std::vector<std::vector<std::string>>& launchers);

  WorkerProcesses(WorkerProcesses&&) noexcept = default;
  WorkerProcesses& operator=(WorkerProcesses&&) = delete;
  ~WorkerProcesses();

  const std::vector<WorkerLink>& links() const { return links_; }
  // How worker `index` ended: "ended with exit code 1", "was killed by signal 9 (Killed)", "still runs". Waits a
  // second at most.
  std::string HowEnded(size_t index);
  // Waits until all have ended, `timeout` at most. True when all have.
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
