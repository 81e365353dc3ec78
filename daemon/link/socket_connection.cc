#include "daemon/link/socket_connection.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd {
namespace {

constexpr uint32_t kIn = EPOLLIN, kBoth = EPOLLIN | EPOLLOUT;

absl::Status Lost(int error) { return absl::UnavailableError(std::strerror(error)); }

}  // namespace

SocketConnection::SocketConnection(Origin origin, std::shared_ptr<const TlsContext> tls, int epoll, uint64_t key)
    : origin_(std::move(origin)), context_(std::move(tls)), key_(key), epoll_(epoll) {}

bool SocketConnection::MoveTo(int epoll) {
  absl::MutexLock lock(&mutex_);
  epoll_event event = {};
  event.events = kBoth;
  event.data.u64 = key_;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd(), &event) != 0) return false;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd(), nullptr);
  epoll_ = epoll;
  return true;
}

void SocketConnection::Watch(uint32_t events) const {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = key_;
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, fd(), &event);
}

bool SocketConnection::Write(std::shared_ptr<const std::string> frame) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return true;
  if (!writable_ || writing_ != nullptr) {
    busy_ = true;
    return false;
  }
  if (!std::exchange(prefaced_, true)) frame = std::make_shared<const std::string>(absl::StrCat(kLinkPreface, *frame));
  writing_ = std::move(frame);
  written_ = 0;
  if (!FlushLocked().ok()) ::shutdown(fd(), SHUT_RDWR);  // epoll reports it to the owner's thread
  if (writing_ != nullptr && !write_wants_read_) Watch(kBoth);
  return true;
}

absl::Status SocketConnection::FlushLocked() {
  while (writing_ != nullptr) {
    const char* const from = writing_->data() + written_;
    const size_t left = writing_->size() - written_;
    if (tls_ != nullptr) {
      const absl::StatusOr<TlsSession::Io> io = tls_->Write(from, left);
      if (!io.ok()) return io.status();
      write_wants_read_ = io->bytes == 0 && io->want == TlsSession::Progress::kWantRead;
      if (io->bytes == 0) return absl::OkStatus();
      written_ += io->bytes;
    } else {
      const ssize_t sent = ::send(fd(), from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? absl::OkStatus() : Lost(errno);
      written_ += static_cast<size_t>(sent);
    }
    if (written_ == writing_->size()) writing_.reset();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SocketConnection::Flush() {
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = FlushLocked(); !s.ok()) return s;
  Watch(writing_ != nullptr && !write_wants_read_ ? kBoth : kIn);
  return writing_ == nullptr && std::exchange(busy_, false);
}

void SocketConnection::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  writable_ = false;
  ::shutdown(fd(), SHUT_RDWR);
}

bool SocketConnection::unread() const {
  int bytes = 0;
  return ::ioctl(fd(), FIONREAD, &bytes) == 0 && bytes > 0;
}

absl::StatusOr<bool> SocketConnection::Open() {
  if (!connected_) {
    pollfd entry = {fd(), POLLOUT, 0};
    if (origin_.dialled && ::poll(&entry, 1, 0) == 0) return false;
    if (const int error = tcp::TakeSocketError(fd()); error != 0) return Lost(error);
    connected_ = true;
  }
  absl::MutexLock lock(&mutex_);
  if (closed_) return absl::CancelledError("closed by this node");
  if (context_ != nullptr) {
    if (tls_ == nullptr) {
      const TlsSession::Side side = origin_.dialled ? TlsSession::Side::kDialler : TlsSession::Side::kAcceptor;
      absl::StatusOr<std::unique_ptr<TlsSession>> tls = TlsSession::Begin(context_, fd(), side);
      if (!tls.ok()) return tls.status();
      tls_ = *std::move(tls);
    }
    const absl::StatusOr<TlsSession::Progress> progress = tls_->Handshake();
    if (!progress.ok() && tls_->other_end_is_plain()) {  // says why, in plain text, too
      const std::string end = absl::StrCat(kLinkPreface, FrameOf(FrameKind::kEnd, 0, progress.status().message()));
      static_cast<void>(::send(fd(), end.data(), end.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
    }
    if (!progress.ok()) return progress.status();
    if (*progress != TlsSession::Progress::kDone) {
      Watch(*progress == TlsSession::Progress::kWantWrite ? kBoth : kIn);
      return false;
    }
    names_ = tls_->PeerNames();
  }
  Watch(kIn);
  open_ = writable_ = true;
  return true;
}

absl::StatusOr<bool> SocketConnection::Read() {
  size_t room = 0;
  char* const to = reader_.Space(&room);
  absl::MutexLock lock(&mutex_);
  if (tls_ != nullptr) {
    const absl::StatusOr<TlsSession::Io> io = tls_->Read(to, room);
    if (!io.ok()) return io.status();
    reader_.Arrived(io->bytes);
    return io->bytes > 0;
  }
  const ssize_t got = ::recv(fd(), to, room, MSG_DONTWAIT);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
    return Lost(errno);
  }
  if (got == 0) {
    return absl::UnavailableError(
        reader_.anything_came()
            ? "the other end closed the connection"
            : "the other end closed the connection and sent nothing: is it a railsd, with this node's tls.mode?");
  }
  reader_.Arrived(static_cast<size_t>(got));
  return true;
}

}  // namespace railsd
