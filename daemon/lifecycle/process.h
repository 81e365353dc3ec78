// Process-wide set-up before the daemon serves: signals, capabilities, descriptors, the socket directory.
#ifndef RAILSD_DAEMON_LIFECYCLE_PROCESS_H_
#define RAILSD_DAEMON_LIFECYCLE_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/unique_fd.h"

namespace railsd {

// Waits for SIGTERM, SIGINT and SIGHUP. Make it before any thread starts, because threads inherit the signal mask.
// Ignores SIGPIPE from then on.
class Signals {
 public:
  static absl::StatusOr<Signals> Block();
  // Returns the signal that came, or 0 after `timeout`.
  int WaitFor(absl::Duration timeout);
  // Called before the drain: the next SIGTERM or SIGINT ends the process at once with status 128 + its number. SIGHUP
  // is ignored.
  void NextOneKills();

 private:
  explicit Signals(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Makes CAP_IPC_LOCK effective if the program's file or its supervisor permits it, so that the limit on locked memory
// does not bind RDMA registrations. A process in a container that is not root gets the capability only in this way.
// Call it before any thread starts. Returns true if the capability is effective.
bool TakeMemlockCapability();

// Raises the soft limit on open files to the hard limit. Returns the limit in force.
uint64_t RaiseFileLimit();

// The directory of the sockets. Created (0755) if missing, locked against a second daemon until the object dies; stale
// sockets are removed.
class SocketDirectory {
 public:
  // FAILED_PRECONDITION: another daemon runs here (names its pid), a file that is no socket has a socket's name, or
  // everybody may write to the directory and it has no sticky bit.
  static absl::StatusOr<SocketDirectory> Prepare(const std::string& path);
  // Makes a folder (0700) in the directory, or keeps an existing one, which containers may have mounted. Removes stale
  // sockets in it. `name` may have several parts. FAILED_PRECONDITION: the name exists and is not a folder that only
  // this user owns and may write.
  absl::Status PrepareFolder(const std::string& name) const;

 private:
  SocketDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;
};

// Sets the mode of a socket or folder, and its group (name or number) if `group` is not empty. `key` is the
// configuration's key for the group. INVALID_ARGUMENT: there is no such group. The daemon's user must be a member of
// the group.
absl::Status SetSocketAccess(const std::string& path, uint32_t mode, const std::string& group, const std::string& key);

// A random number for this start, never 0.
uint64_t DrawBootId();

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_PROCESS_H_
