// Packets with descriptors over a Unix SOCK_SEQPACKET socket.
#ifndef RAILSD_DAEMON_SESSION_PACKET_SOCKET_H_
#define RAILSD_DAEMON_SESSION_PACKET_SOCKET_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/base/unique_fd.h"

namespace railsd {

inline constexpr size_t kMaxPacketBytes = 64 << 10;
// One is wanted; more than these end the connection.
inline constexpr size_t kMaxPacketDescriptors = 16;

struct Packet {
  enum class Kind { kPacket, kNothing, kEnd };
  Kind kind = Kind::kNothing;
  std::string bytes;
  std::vector<UniqueFd> fds;  // every descriptor that came with it; closed when dropped
  bool truncated = false;     // longer than kMaxPacketBytes
  bool none_left = false;     // this process may open no more: the kernel has dropped some
};

// Takes the next packet without waiting. kEnd on the end of the connection, on any error and on an empty packet.
// Sockets among the descriptors linger no more (SO_LINGER), so that closing them does not wait.
Packet ReceivePacket(int socket);

// For a connection that is about to be closed: takes and drops what waits in it, so that descriptors in there are
// closed like those that were read. Nothing can be received any more.
void DropUnread(int socket);

// What to do about errno EMFILE and ENFILE, to append to an error; empty for others.
absl::string_view AdviceOnDescriptors(int error_number);

// Sends without waiting; `fd` -1: no descriptor. False when the socket is full or gone.
bool SendPacket(int socket, absl::string_view bytes, int fd);

// Binds and listens at `path` with `mode`. Errors name path and errno.
absl::StatusOr<UniqueFd> ListenAt(const std::string& path, uint32_t mode);

// A pidfd of a process; invalid, with errno, when there is none. By system call: the C library's header of Debian 12
// cannot be used from C++.
UniqueFd OpenPidfd(pid_t pid);

// A pidfd of this process, also where pidfd_open(2) is not known to what stands between it and the kernel (Linux 6.5).
// Invalid, with errno, when there is none.
UniqueFd OwnPidfd();

// A pidfd of the process behind the socket: the kernel's own record of it where it has one (Linux 6.5), else by
// number. Error: the process is gone or cannot be seen from here.
absl::StatusOr<UniqueFd> PidfdOfPeer(int socket, pid_t pid);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_PACKET_SOCKET_H_
