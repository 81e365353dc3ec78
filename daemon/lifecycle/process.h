// What the process does to its surroundings before it serves: signals, descriptors, the socket directory.
#ifndef RAILSD_DAEMON_LIFECYCLE_PROCESS_H_
#define RAILSD_DAEMON_LIFECYCLE_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/unique_fd.h"

namespace railsd {

// SIGTERM, SIGINT and SIGHUP as something to wait for. Make it before any thread starts: threads inherit the mask.
// SIGPIPE is ignored from then on.
class Signals {
 public:
  static absl::StatusOr<Signals> Block();
  // The signal that came, or 0 when `timeout` passed first.
  int WaitFor(absl::Duration timeout);
  // From now on the next SIGTERM or SIGINT ends the process at once with status 128 + its number, for the drain; SIGHUP
  // is ignored.
  void NextOneKills();

 private:
  explicit Signals(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Takes up CAP_IPC_LOCK where the program's file or its supervisor permits it, so that registrations over RDMA are not
// bound by the limit on locked memory. A container's process that is not root gets it in this way only. Call it before
// any thread starts. Returns whether it is in force.
bool TakeMemlockCapability();

// Raises the soft limit on open files to the hard one; returns the limit in force.
uint64_t RaiseFileLimit();

// The directory of the sockets, held by this process: created (0755) when missing, locked against a second daemon,
// stale sockets removed. The lock ends with the object.
class SocketDirectory {
 public:
  // FAILED_PRECONDITION: another daemon runs here (names its pid), something that is no socket is in the way, or the
  // directory is writable by everybody without the sticky bit.
  static absl::StatusOr<SocketDirectory> Prepare(const std::string& path);
  // Makes a folder in the directory (0700 until its owner opens it), with mode 0700, or keeps the one that is there:
  // containers may have it mounted. Stale sockets in it are removed. `name` may have several parts.
  // FAILED_PRECONDITION: what is there is no folder of this user's that only this user may write.
  absl::Status PrepareFolder(const std::string& name) const;

 private:
  SocketDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;
};

// Sets mode and, when `group` is not empty, the group (name or number) of a socket or folder; `key` is where the
// configuration names the group. INVALID_ARGUMENT: there is no such group. Giving a socket to a group needs membership
// in it.
absl::Status SetSocketAccess(const std::string& path, uint32_t mode, const std::string& group, const std::string& key);

// A random number for this start, never 0.
uint64_t DrawBootId();

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_PROCESS_H_
