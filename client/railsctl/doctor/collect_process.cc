// Reads this process, the daemon's process, and the sockets between them.
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/doctor/collect.h"

namespace rails::ctl::doctor {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCapIpcLock = uint64_t{1} << 14;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "Max locked memory         8388608              8388608              bytes": the soft limit.
void ReadLimits(const std::string& text, DaemonProcess* process) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool memory = absl::StartsWith(line, "Max locked memory");
    if (!memory && !absl::StartsWith(line, "Max open files")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t limit = 0;
    if (words.size() < 4) continue;
    if (words[3] == "unlimited") limit = kUnlimited;
    if (limit == 0 && !absl::SimpleAtoi(words[3], &limit)) continue;
    (memory ? process->memlock_bytes : process->open_files) = limit;
  }
}

// "Uid:", "Groups:" and "CapEff:" of /proc/PID/status.
void ReadStatus(const std::string& text, DaemonProcess* process) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 2) continue;
    if (words[0] == "CapEff:") {
      process->may_lock_memory = (std::strtoull(words[1].c_str(), nullptr, 16) & kCapIpcLock) != 0;
    }
    uint32_t number = 0;
    if (words[0] == "Uid:" && absl::SimpleAtoi(words[1], &number)) process->uid = number;
    if (words[0] != "Gid:" && words[0] != "Groups:") continue;
    for (size_t i = 1; i < (words[0] == "Gid:" ? 2 : words.size()); ++i) {
      if (absl::SimpleAtoi(words[i], &number)) process->groups.push_back(number);
    }
  }
}

void ReadCommandLine(const std::string& text, DaemonProcess* process) {
  std::vector<std::string> words = absl::StrSplit(text, '\0');
  if (!words.empty() && words.back().empty()) words.pop_back();
  for (size_t i = 1; i < words.size(); ++i) {
    if (absl::StartsWith(words[i], "--config=")) {
      process->config_path = words[i].substr(strlen("--config="));
    } else if (words[i] == "--config" && i + 1 < words.size()) {
      process->config_path = words[++i];
    } else {
      process->options.push_back(words[i]);
    }
  }
}

}  // namespace

Clock ReadClock() {
  Clock clock;
  timex now{};
  const int state = adjtimex(&now);
  clock.known = state >= 0;
  clock.synchronised = clock.known && state != TIME_ERROR && (now.status & STA_UNSYNC) == 0;
  clock.max_error_us = now.maxerror;
  return clock;
}

User ReadUser() {
  User user;
  user.uid = geteuid();
  const passwd* entry = getpwuid(user.uid);
  user.name = entry == nullptr ? absl::StrCat("user ", user.uid) : entry->pw_name;
  user.groups.resize(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(user.groups.size()), user.groups.data());
  user.groups.resize(static_cast<size_t>(std::max(0, count)));
  return user;
}

uint64_t OwnMemlockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

std::vector<Socket> ReadSockets(const std::string& socket_dir) {
  std::vector<Socket> sockets;
  for (const char* name : {"client.sock", "descriptors.sock", "operator.sock"}) {
    Socket socket;
    socket.name = name;
    const std::string path = absl::StrCat(socket_dir, "/", name);
    struct stat info {};
    if (stat(path.c_str(), &info) == 0) {
      socket.exists = true;
      socket.mode = info.st_mode;
      socket.gid = info.st_gid;
      const group* entry = getgrgid(info.st_gid);
      socket.group = entry == nullptr ? absl::StrCat(info.st_gid) : entry->gr_name;
      socket.usable = access(path.c_str(), R_OK | W_OK) == 0;
    }
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

pid_t ListenerOf(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) return 0;
  memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return 0;
  ucred listener{};
  socklen_t size = sizeof(listener);
  const bool known = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                     getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &listener, &size) == 0;
  close(fd);
  return known ? listener.pid : 0;
}

DaemonProcess ReadProcess(const std::string& root, pid_t pid) {
  DaemonProcess process;
  if (pid == 0) return process;
  const std::string folder = absl::StrCat(root, "/proc/", pid);
  const std::string limits = ReadAll(folder + "/limits");
  if (limits.empty()) return process;
  process.pid = pid;
  ReadLimits(limits, &process);
  ReadStatus(ReadAll(folder + "/status"), &process);
  ReadCommandLine(ReadAll(folder + "/cmdline"), &process);
  std::error_code error;
  if (!process.config_path.empty() && process.config_path[0] != '/') {
    const fs::path cwd = fs::read_symlink(folder + "/cwd", error);
    process.config_path = error ? "" : (cwd / process.config_path).string();
  }
  const fs::path theirs = fs::read_symlink(folder + "/ns/net", error);
  if (!error) {
    const fs::path ours = fs::read_symlink(root + "/proc/self/ns/net", error);
    if (!error) process.same_network = theirs == ours;
  }
  return process;
}

}  // namespace rails::ctl::doctor
