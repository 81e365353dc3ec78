// A connection over a TCP socket, with or without TLS. Private to daemon/link.
#ifndef RAILSD_DAEMON_LINK_SOCKET_CONNECTION_H_
#define RAILSD_DAEMON_LINK_SOCKET_CONNECTION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/base/unique_fd.h"
#include "daemon/link/connection.h"
#include "daemon/tls/session.h"

namespace railsd {

// Only the owner's thread calls methods that Connection does not have. `epoll` watches the socket under `key` until
// the owner removes it, or moves it to another thread's epoll.
class SocketConnection final : public Connection {
 public:
  struct Origin {
    UniqueFd fd;
    std::string address;
    bool dialled = false;
    absl::Time give_up;  // deadline of SetGreeted()
  };
  // `tls` null: plain text.
  SocketConnection(Origin origin, std::shared_ptr<const TlsContext> tls, int epoll, uint64_t key);

  bool Write(std::shared_ptr<const std::string> frame) override;
  void Close() override;
  void SetGreeted() override { greeted_.store(true, std::memory_order_release); }
  bool unread() const override;
  bool dialled_here() const override { return origin_.dialled; }
  const std::string& address() const override { return origin_.address; }
  std::vector<std::string> certificate_names() const override { return names_; }

  int fd() const { return origin_.fd.get(); }
  uint64_t key() const { return key_; }
  bool greeted() const { return greeted_.load(std::memory_order_acquire); }
  absl::Time give_up() const { return origin_.give_up; }
  bool open() const { return open_; }
  FrameReader& reader() { return reader_; }

  // True if a part of a message has come, and its last part has not.
  bool in_parts() const { return in_parts_; }
  void NoteFrame(FrameKind kind) {
    in_parts_ = kind == FrameKind::kPart || (in_parts_ && kind != FrameKind::kLastPart);
  }

  // Makes the thread of that epoll the owner's thread. The socket's first event comes at once, because TLS may hold
  // bytes. False: epoll takes no more, and nothing has changed.
  bool MoveTo(int epoll);
  // Continues the connect and the TLS handshake. True: the connection is open now.
  absl::StatusOr<bool> Open();
  // Writes the rest of the frame under way. True: all is written, and Write() had refused a frame.
  absl::StatusOr<bool> Flush();
  // Reads once into reader(). False: there is nothing to read now.
  absl::StatusOr<bool> Read();
  // True if TLS holds bytes that can be read although the socket is not readable.
  bool pending() const {
    absl::MutexLock lock(&mutex_);
    return tls_ != nullptr && tls_->pending();
  }
  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  // True if the frame under way waits until TLS has read something.
  bool write_wants_read() const {
    absl::MutexLock lock(&mutex_);
    return write_wants_read_;
  }

 private:
  absl::Status FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch(uint32_t events) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Origin origin_;
  const std::shared_ptr<const TlsContext> context_;
  const uint64_t key_;
  std::atomic<bool> greeted_{false};
  // Only the owner's thread uses these.
  bool connected_ = false, open_ = false, in_parts_ = false;
  FrameReader reader_;
  std::vector<std::string> names_;  // set before another thread has the connection
  mutable absl::Mutex mutex_;       // innermost: no lock is taken under it
  int epoll_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TlsSession> tls_ ABSL_GUARDED_BY(mutex_);
  bool writable_ ABSL_GUARDED_BY(mutex_) = false;  // open, and not closed
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool prefaced_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_wants_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // Write() refused a frame; Flush() reports it
  std::shared_ptr<const std::string> writing_ ABSL_GUARDED_BY(mutex_);
  size_t written_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_SOCKET_CONNECTION_H_
