#include "daemon/session/packet_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace railsd {
namespace {

// Errors that DropUnread() skips: EINTR, and errors that the kernel reports once before the waiting packets.
constexpr int kMaxErrors = 16;

// The kernel's limit for one packet (SCM_MAX_FD). The kernel would silently close descriptors that find no room.
constexpr size_t kMaxReceivedFds = 253;

union ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int) * kMaxReceivedFds)];
  cmsghdr align;
};

// Closing the last reference to a socket with SO_LINGER blocks for as long as its owner chose. Turned off, so that this
// process never blocks. Errors do not matter: most descriptors are not sockets.
void DoNotLinger(int fd) {
  const linger off = {};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
}

void TakeDescriptors(msghdr* message, std::vector<UniqueFd>* out) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      DoNotLinger(fd);
      out->emplace_back(fd);
    }
  }
}

}  // namespace

Packet ReceivePacket(int socket) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  iovec io = {packet.bytes.data(), packet.bytes.size()};
  ControlBuffer control;
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    packet.kind = errno == EAGAIN ? Packet::Kind::kNothing : Packet::Kind::kEnd;
    return packet;
  }
  TakeDescriptors(&message, &packet.fds);
  packet.kind = received == 0 ? Packet::Kind::kEnd : Packet::Kind::kPacket;
  packet.bytes.resize(static_cast<size_t>(received));
  packet.truncated = (message.msg_flags & MSG_TRUNC) != 0;
  packet.none_left = (message.msg_flags & MSG_CTRUNC) != 0;
  return packet;
}

void DropUnread(int socket) {
  shutdown(socket, SHUT_RD);  // the kernel queues no more packets
  // An empty packet looks like the end. SO_PASSCRED tells them apart: each packet then carries credentials.
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
  char byte;
  iovec io = {&byte, sizeof(byte)};
  ControlBuffer control;
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  for (int errors = 0; errors < kMaxErrors;) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    const ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EAGAIN) return;
    if (received < 0) {  // ECONNRESET comes once, before the packets of a peer that closed without reading
      ++errors;
      continue;
    }
    if (message.msg_controllen == 0) return;
    std::vector<UniqueFd> dropped;
    TakeDescriptors(&message, &dropped);
  }
}

absl::string_view AdviceOnDescriptors(int error_number) {
  return error_number == EMFILE || error_number == ENFILE
             ? "; raise the daemon's limit of open files (LimitNOFILE in its unit, `ulimit -n`)"
             : "";
}

bool ReceiveNothing(int socket) {
  char bytes[4096];
  iovec io = {bytes, sizeof(bytes)};
  ControlBuffer control;
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  const ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received <= 0) return received < 0 && (errno == EAGAIN || errno == EINTR);
  std::vector<UniqueFd> dropped;
  TakeDescriptors(&message, &dropped);
  return true;
}

bool SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds) {
  iovec io = {const_cast<char*>(bytes.data()), bytes.size()};
  union {
    char bytes[CMSG_SPACE(sizeof(int) * kMaxSentDescriptors)];
    cmsghdr align;
  } control = {};
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    const size_t length = sizeof(int) * fds.size();
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(length);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(header), fds.data(), length);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

absl::StatusOr<UniqueFd> ListenAt(const std::string& path, uint32_t mode) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": longer than ", sizeof(address.sun_path) - 1, " bytes"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": socket"));
  // Set before bind(): later another process could replace the name. The umask may remove more bits.
  if (fchmod(socket.get(), mode) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": fchmod"));
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": bind"));
  }
  if (listen(socket.get(), 128) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": listen"));
  return socket;
}

UniqueFd OpenPidfd(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

UniqueFd OwnPidfd() {
  UniqueFd pidfd = OpenPidfd(getpid());
  int ends[2];
  if (pidfd.valid() || errno != ENOSYS || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return pidfd;
  // A seccomp filter or an emulator blocks pidfd_open(2). SO_PEERPIDFD gives the same through a socket.
  const UniqueFd left(ends[0]), right(ends[1]);
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(left.get(), SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) pidfd.Reset(fd);
  return pidfd;
}

absl::StatusOr<UniqueFd> PidfdOfPeer(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  if (pid <= 0) return absl::FailedPreconditionError("the process is not visible here: it is in another pid namespace");
  UniqueFd pidfd = OpenPidfd(pid);
  if (!pidfd.valid())
    return absl::ErrnoToStatus(errno, absl::StrCat("pidfd of process ", pid, AdviceOnDescriptors(errno)));
  return pidfd;
}

}  // namespace railsd
