// Owner of one file descriptor.
#ifndef RAILS_CLIENT_SRC_UNIQUE_FD_H_
#define RAILS_CLIENT_SRC_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace rails::internal {

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

  // Closes the present descriptor and takes ownership of `fd` (-1: none).
  void Reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_UNIQUE_FD_H_
