#include "daemon/lifecycle/process.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

sigset_t WaitedFor() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

void DieOf(int signal) { _exit(128 + signal); }

// The process that listens at `path`, or 0 if its pid is unknown. NOT_FOUND: no process listens.
absl::StatusOr<pid_t> ListenerAt(const std::string& path, int type) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError(absl::StrCat(path, ": too long"));
  memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": socket"));
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 && errno != EAGAIN) {
    return absl::NotFoundError("no process listens");
  }
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

absl::Status RemoveStale(const std::string& path, int type) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : absl::ErrnoToStatus(errno, path);
  }
  if (!S_ISSOCK(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, ": exists and is not a socket; remove it"));
  const absl::StatusOr<pid_t> listener = ListenerAt(path, type);
  if (listener.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": process ", *listener, " listens there already"));
  }
  if (unlink(path.c_str()) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot remove"));
  return absl::OkStatus();
}

absl::Status RemoveStaleSockets(const std::string& directory) {
  for (const auto& [name, type] : {std::pair{"/client.sock", int{SOCK_STREAM}},
                                   {"/operator.sock", int{SOCK_STREAM}},
                                   {"/descriptors.sock", int{SOCK_SEQPACKET}}}) {
    if (absl::Status status = RemoveStale(directory + name, type); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Signals> Signals::Block() {
  signal(SIGPIPE, SIG_IGN);
  const sigset_t set = WaitedFor();
  const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if (error != 0) return absl::ErrnoToStatus(error, "sigmask");
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "signalfd");
  return Signals(std::move(fd));
}

bool TakeMemlockCapability() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  auto& word = data[CAP_TO_INDEX(CAP_IPC_LOCK)];
  if ((word.permitted & CAP_TO_MASK(CAP_IPC_LOCK)) == 0) return false;
  word.effective |= CAP_TO_MASK(CAP_IPC_LOCK);
  return syscall(SYS_capset, &header, data) == 0;
}

int Signals::WaitFor(absl::Duration timeout) {
  pollfd entry = {fd_.get(), POLLIN, 0};
  const int wait = timeout == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(timeout));
  if (poll(&entry, 1, wait) <= 0) return 0;
  signalfd_siginfo info = {};
  return read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

void Signals::NextOneKills() {
  signal(SIGTERM, &DieOf);
  signal(SIGINT, &DieOf);
  signal(SIGHUP, SIG_IGN);
  const sigset_t set = WaitedFor();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

uint64_t RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

absl::StatusOr<SocketDirectory> SocketDirectory::Prepare(const std::string& path) {
  const bool created = mkdir(path.c_str(), 0755) == 0;
  if (!created && errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("socket_dir: '", path, "'"));
  // The umask keeps the sockets private until they have their modes. The directory itself must be open.
  if (created && chmod(path.c_str(), 0755) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": chmod"));
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISDIR(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat("socket_dir: '", path, "': not a folder"));
  if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket_dir: '", path, "': every user may replace files in it; chmod o-w, or set the sticky bit"));
  }
  const std::string lock_path = path + "/railsd.lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return absl::ErrnoToStatus(errno, absl::StrCat(lock_path, ": cannot open"));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    const ssize_t size = pread(lock.get(), pid, sizeof(pid) - 1, 0);
    return absl::FailedPreconditionError(absl::StrCat(
        "socket_dir: '", path, "': another railsd uses this folder, process ", size > 0 ? pid : "unknown"));
  }
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(lock_path, ": cannot write"));
  }
  if (absl::Status status = RemoveStaleSockets(path); !status.ok()) return status;
  return SocketDirectory(path, std::move(lock));
}

absl::Status SocketDirectory::PrepareFolder(const std::string& name) const {
  std::string path = path_;
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    absl::StrAppend(&path, "/", part);
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, path);
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
    if (!S_ISDIR(info.st_mode))
      return absl::FailedPreconditionError(absl::StrCat(path, ": exists and is not a folder; remove it"));
    if (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": uid ", info.st_uid, " or others could replace the sockets in it; remove it"));
    }
    if (chmod(path.c_str(), 0700) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": chmod"));
  }
  return RemoveStaleSockets(path);
}

absl::Status SetSocketAccess(const std::string& path, uint32_t mode, const std::string& group, const std::string& key) {
  // Does not follow a symbolic link: a process that may write to a tenant's folder (root of a container) could link to
  // another file and have its access changed.
  const UniqueFd place(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat info = {};
  if (!place.valid() || fstat(place.get(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISSOCK(info.st_mode) && !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": neither a socket nor a folder; another process has replaced it"));
  }
  if (!group.empty()) {
    const std::optional<uint32_t> number = GroupNumber(group);
    if (!number) return absl::InvalidArgumentError(absl::StrCat(key, ": '", group, "': no such group"));
    if (fchownat(place.get(), "", static_cast<uid_t>(-1), *number, AT_EMPTY_PATH) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat(key, ": cannot give ", path, " to group ", group,
                                                     "; is the daemon's user a member of it?"));
    }
  }
  // fchmod(2) does not take an O_PATH descriptor. Its name in /proc leads to the same file.
  if (chmod(absl::StrCat("/proc/self/fd/", place.get()).c_str(), mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": chmod"));
  }
  return absl::OkStatus();
}

uint64_t DrawBootId() {
  uint64_t value = 0;
  while (value == 0) {
    if (getrandom(&value, sizeof(value), 0) != sizeof(value)) abort();
  }
  return value;
}

}  // namespace railsd
