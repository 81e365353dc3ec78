// Packets with file descriptors over a Unix SOCK_SEQPACKET socket.
#ifndef RAILSD_DAEMON_SESSION_PACKET_SOCKET_H_
#define RAILSD_DAEMON_SESSION_PACKET_SOCKET_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/base/unique_fd.h"

namespace railsd {

inline constexpr size_t kMaxPacketBytes = 64 << 10;
// A valid packet carries at most one. More than these end the connection.
inline constexpr size_t kMaxPacketDescriptors = 16;

struct Packet {
  enum class Kind { kPacket, kNothing, kEnd };
  Kind kind = Kind::kNothing;
  std::string bytes;
  std::vector<UniqueFd> fds;  // all descriptors that came with the packet
  bool truncated = false;     // longer than kMaxPacketBytes
  bool none_left = false;     // the kernel dropped descriptors: this process has reached its limit
};

// Takes the next packet without waiting. kEnd: the connection ended, an error, or an empty packet. Turns SO_LINGER off
// on sockets among the descriptors, so that closing them does not block.
Packet ReceivePacket(int socket);

// Takes and drops all packets that wait in the socket, so that their descriptors are closed like received ones. Call it
// only before the connection is closed, because the socket receives nothing afterwards.
void DropUnread(int socket);

// Advice to append to an error with errno EMFILE or ENFILE; empty for others.
absl::string_view AdviceOnDescriptors(int error_number);

// Takes up to 4 KiB from a stream socket without waiting, and drops it with the descriptors that came along. False: the
// connection ended, or an error.
bool ReceiveNothing(int socket);

inline constexpr size_t kMaxSentDescriptors = 3;

// Sends without waiting, with at most kMaxSentDescriptors. False if the socket is full or closed.
bool SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds = {});

// Binds and listens at `path` with `mode`. Errors name path and errno.
absl::StatusOr<UniqueFd> ListenAt(const std::string& path, uint32_t mode);

// A pidfd of a process; invalid, with errno, on an error. Uses syscall(): the header of Debian 12's C library does not
// compile as C++.
UniqueFd OpenPidfd(pid_t pid);

// A pidfd of this process, also where a seccomp filter or an emulator blocks pidfd_open(2) (needs Linux 6.5). Invalid,
// with errno, on an error.
UniqueFd OwnPidfd();

// A pidfd of the process behind the socket: from SO_PEERPIDFD (Linux 6.5), else from `pid`. Error: the process has
// exited, or is not visible here.
absl::StatusOr<UniqueFd> PidfdOfPeer(int socket, pid_t pid);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_PACKET_SOCKET_H_
