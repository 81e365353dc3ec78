// Owner of one file descriptor.
#ifndef RAILSD_AGENT_BASE_UNIQUE_FD_H_
#define RAILSD_AGENT_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace railsd {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  // Closes what is held and takes ownership of `fd` (-1: of nothing).
  void Reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor away; the caller closes it.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_UNIQUE_FD_H_
