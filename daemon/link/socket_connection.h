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

// The owner's thread calls what Connection does not have; `epoll` watches the socket under `key` until the owner drops
// it.
class SocketConnection final : public Connection {
 public:
  struct Origin {
    UniqueFd fd;
    std::string address;
    bool dialled = false;
    absl::Time give_up;  // unless it is greeted before
  };
  // `tls` null: plain text.
  SocketConnection(Origin origin, std::shared_ptr<const TlsContext> tls, int epoll, uint64_t key);

  bool Write(std::shared_ptr<const std::string> frame) override;
  void Close() override;
  void SetGreeted() override { greeted_.store(true, std::memory_order_release); }
  bool dialled_here() const override { return origin_.dialled; }
  const std::string& address() const override { return origin_.address; }
  std::vector<std::string> certificate_names() const override { return names_; }

  int fd() const { return origin_.fd.get(); }
  uint64_t key() const { return key_; }
  bool greeted() const { return greeted_.load(std::memory_order_acquire); }
  absl::Time give_up() const { return origin_.give_up; }
  bool open() const { return open_; }
  FrameReader& reader() { return reader_; }

  // Goes on with connecting and with the handshake. True: it is open now.
  absl::StatusOr<bool> Open();
  // Writes what is left; true when nothing is any more, and it had been busy.
  absl::StatusOr<bool> Flush();
  // Reads once into reader(). False: nothing is there now.
  absl::StatusOr<bool> Read();
  // More can be read without the socket being readable.
  bool pending() const;
  bool closed() const;
  // The frame under way goes on once TLS has read something.
  bool write_wants_read() const;

 private:
  absl::Status FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch(uint32_t events) const;

  const Origin origin_;
  const std::shared_ptr<const TlsContext> context_;
  const int epoll_;
  const uint64_t key_;
  std::atomic<bool> greeted_{false};
  // The owner's thread.
  bool connected_ = false, open_ = false;
  FrameReader reader_;
  std::vector<std::string> names_;  // before anybody else has the connection
  mutable absl::Mutex mutex_;       // a leaf
  std::unique_ptr<TlsSession> tls_ ABSL_GUARDED_BY(mutex_);
  bool writable_ ABSL_GUARDED_BY(mutex_) = false;  // open, and not closed
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool prefaced_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_wants_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a frame was refused since
  std::shared_ptr<const std::string> writing_ ABSL_GUARDED_BY(mutex_);
  size_t written_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_SOCKET_CONNECTION_H_
