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

// Interrupts, and what is told once, before packets that wait behind it.
constexpr int kMaxErrors = 16;

// As many as the kernel lets one packet carry (SCM_MAX_FD): what found no room would be closed by the kernel unseen.
constexpr size_t kMaxReceivedFds = 253;

union ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int) * kMaxReceivedFds)];
  cmsghdr align;
};

// Whoever closes a socket that lingers last waits for its peer, for as long as its owner chose; it shall not be this
// process. No error matters: most descriptors are no sockets.
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
  shutdown(socket, SHUT_RD);  // nothing more is queued
  // An empty packet looks like the end, but then each packet comes with its sender's credentials.
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
    if (received < 0) {  // ECONNRESET of a peer that closed without reading comes once, before what it has sent
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

bool SendPacket(int socket, absl::string_view bytes, int fd) {
  iovec io = {const_cast<char*>(bytes.data()), bytes.size()};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    cmsghdr align;
  } control;
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
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
  // Before it has a name: a name could be made to lead elsewhere meanwhile. The umask may take more away.
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
  // A filter or an emulator does not know the call; the kernel's record of a socket's peer goes another way.
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
