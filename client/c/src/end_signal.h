// The descriptor that becomes readable when jobs of a client end.
#ifndef RAILS_CLIENT_C_SRC_END_SIGNAL_H_
#define RAILS_CLIENT_C_SRC_END_SIGNAL_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rails/client.h"

namespace rails::c {

// Thread-safe, without locks, so that a forked child never waits.
class EndSignal {
 public:
  EndSignal() = default;
  EndSignal(const EndSignal&) = delete;
  EndSignal& operator=(const EndSignal&) = delete;
  ~EndSignal() {
    if (fd_ >= 0) close(fd_);
  }

  // Makes the descriptor at the first call.
  absl::StatusOr<int> Open() {
    if (fd_ >= 0) return fd_.load();
    const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made < 0) return absl::ErrnoToStatus(errno, "eventfd");
    int present = -1;
    if (fd_.compare_exchange_strong(present, made)) return made;
    close(made);
    return present;
  }
  bool opened() const { return fd_ >= 0; }
  void Raise() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));  // if full, it is readable
  }

 private:
  std::atomic<int> fd_{-1};
};

}  // namespace rails::c

#endif  // RAILS_CLIENT_C_SRC_END_SIGNAL_H_
