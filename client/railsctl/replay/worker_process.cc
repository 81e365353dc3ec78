#include "client/railsctl/replay/worker_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace rails::ctl {
namespace {

// Lowest number of a pipe's descriptor: above those that a worker gets, so that dup2() never overwrites a source.
constexpr int kLowestFd = 10;

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status MakePipe(int fds[2]) {
  int low[2];
  if (pipe2(low, O_CLOEXEC) != 0) return SystemError("pipe");
  for (int i = 0; i < 2; ++i) {
    fds[i] = fcntl(low[i], F_DUPFD_CLOEXEC, kLowestFd);
    close(low[i]);
  }
  if (fds[0] >= 0 && fds[1] >= 0) return absl::OkStatus();
  const absl::Status status = SystemError("dup");
  for (int i = 0; i < 2; ++i) {
    if (fds[i] >= 0) close(fds[i]);
  }
  return status;
}

// Runs in the child between fork and exec: async-signal-safe calls only. `launched`: the null-terminated words of a
// launcher, which gets the pipes as standard input and output. Null: the worker is this program itself.
[[noreturn]] void BecomeWorker(pid_t parent, int commands_fd, int events_fd, char* const* launched) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGINT, SIG_IGN);  // Ctrl-C reaches all processes; the coordinator ends the workers
  if (launched != nullptr) {
    dup2(commands_fd, STDIN_FILENO);
    dup2(events_fd, STDOUT_FILENO);
    execvp(launched[0], launched);
    _exit(127);
  }
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  dup2(commands_fd, WorkerProcesses::kCommandsFd);
  dup2(events_fd, WorkerProcesses::kEventsFd);
  execl("/proc/self/exe", "railsctl", "worker", static_cast<char*>(nullptr));
  _exit(127);
}

}  // namespace

absl::StatusOr<WorkerProcesses> WorkerProcesses::Start(const std::vector<std::vector<std::string>>& launchers) {
  WorkerProcesses workers;
  for (size_t i = 0; i < launchers.size(); ++i) {
    if (absl::Status status = workers.StartOne(launchers[i]); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("cannot start the process of rank ", i, ": ", status.message()));
    }
  }
  return workers;
}

absl::Status WorkerProcesses::StartOne(const std::vector<std::string>& launcher) {
  std::vector<std::string> words = launcher;
  for (const char* word : {"railsctl", "worker", "--stdio"}) words.emplace_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int commands[2], events[2];
  if (absl::Status status = MakePipe(commands); !status.ok()) return status;
  if (absl::Status status = MakePipe(events); !status.ok()) {
    close(commands[0]);
    close(commands[1]);
    return status;
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeWorker(parent, commands[0], events[1], launcher.empty() ? nullptr : arguments.data());
  const absl::Status status = pid < 0 ? SystemError("fork") : absl::OkStatus();
  close(commands[0]);
  close(events[1]);
  if (!status.ok()) {
    close(commands[1]);
    close(events[0]);
    return status;
  }
  processes_.push_back({pid});
  links_.push_back({.commands_fd = commands[1], .events_fd = events[0]});
  return absl::OkStatus();
}

WorkerProcesses::~WorkerProcesses() {
  for (const Process& process : processes_) {
    if (!process.reaped) kill(process.pid, SIGKILL);
  }
  for (Process& process : processes_) Reap(process, absl::InfiniteDuration());
  for (const WorkerLink& link : links_) {
    close(link.commands_fd);
    close(link.events_fd);
  }
}

bool WorkerProcesses::Reap(Process& process, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const bool for_ever = timeout == absl::InfiniteDuration();
  while (!process.reaped) {
    const pid_t got = waitpid(process.pid, &process.wait_status, for_ever ? 0 : WNOHANG);
    if (got == process.pid || (got < 0 && errno != EINTR)) {
      process.reaped = true;
    } else if (got == 0) {
      if (absl::Now() >= deadline) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  return true;
}

std::string WorkerProcesses::HowEnded(size_t index) {
  Process& process = processes_[index];
  if (!Reap(process, absl::Seconds(1))) return "still runs";
  if (WIFSIGNALED(process.wait_status)) {
    const int signal = WTERMSIG(process.wait_status);
    return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("ended with exit code ", WEXITSTATUS(process.wait_status));
}

bool WorkerProcesses::WaitAll(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  bool all = true;
  for (Process& process : processes_) all = Reap(process, deadline - absl::Now()) && all;
  return all;
}

}  // namespace rails::ctl
