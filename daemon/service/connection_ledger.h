// Connections that were given to gRPC, which closes them and tells nobody.
#ifndef RAILSD_DAEMON_SERVICE_CONNECTION_LEDGER_H_
#define RAILSD_DAEMON_SERVICE_CONNECTION_LEDGER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace railsd {

// Where a connection comes from.
struct Caller {
  std::string name;     // as gRPC has it, "ipv4:1.2.3.4:5"; of a Unix socket a number, since gRPC tells them not apart
  std::string address;  // that limits go by: of IPv6 the network, the first 64 bits. Empty for a Unix socket
};
// Of the other end of a connected socket.
Caller CallerOfSocket(int fd);

// Knows a connection by its descriptor's number and the number of the socket behind it, which the kernel gives to no
// other: when they do not belong together any more, gRPC has closed it. Any thread.
class ConnectionLedger {
 public:
  // Of a descriptor that gRPC is about to own. It has until `deadline` for its first call.
  void Add(int fd, const Caller& caller, absl::Time deadline);
  // A call came over the connection.
  void Spoke(absl::string_view name);
  // A message of so many bytes that came over it was taken by whom it was for.
  void Taken(absl::string_view name, uint64_t bytes);
  // Ends connections over TCP which have brought more than `most` that was not taken, and says how many those were.
  // What calls cost besides their messages is forgiven at kForgivenPerSecond. To be called some times in a second, by
  // one thread.
  size_t Meter(absl::Time now, uint64_t most);
  // Forgets those that are closed, ends those that are late, and says how many those were.
  size_t Sweep(absl::Time now);

  size_t size() const;
  size_t CountFrom(const std::string& address) const;

  static constexpr uint64_t kForgivenPerSecond = 4 << 10;

 private:
  struct Entry {
    int fd = -1;
    ino_t socket = 0;
    std::string address;
    absl::Time deadline;    // infinite once it has spoken
    uint64_t received = 0;  // by TCP, at the last look
    uint64_t taken = 0;     // since then
    uint64_t untaken = 0;
    absl::Time looked;
  };
  // What the kernel says of one connection over TCP; nothing when it is closed.
  struct Reading {
    std::string name;
    int fd = -1;
    ino_t socket = 0;
    std::optional<uint64_t> received;
  };
  std::vector<Reading> ReadAll() const;
  void Forget(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;  // a leaf
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, size_t> by_address_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_CONNECTION_LEDGER_H_
