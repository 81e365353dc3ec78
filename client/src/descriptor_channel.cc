#include "client/src/descriptor_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rails::internal {
namespace {

constexpr size_t kPacketBytes = 64 * 1024;
constexpr size_t kNameBytes = 128;

std::string ErrnoText(int error) { return std::string(absl::ErrnoToStatus(error, "").message()); }

absl::Status ConnectError(const std::string& path, int error) {
  const std::string what = absl::StrCat("cannot connect to the descriptor socket ", path, ErrnoText(error));
  switch (error) {
    case ENOENT:
      return absl::UnavailableError(absl::StrCat(what, ": is railsd running, and is socket_dir right?"));
    case ECONNREFUSED:
      return absl::UnavailableError(absl::StrCat(what, ": the socket is there but railsd is not running"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          absl::StrCat(what, ": this user (uid ", geteuid(), ") needs write permission on the socket"));
    case EAGAIN:
      return absl::UnavailableError(absl::StrCat(what, ": railsd is not accepting connections"));
    default:
      return absl::InvalidArgumentError(what);
  }
}

absl::StatusOr<UniqueFd> ConnectSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket_dir: the path ", path, " has ", path.size(),
                                                   " bytes; a socket's path holds at most ",
                                                   sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "socket(AF_UNIX, SOCK_SEQPACKET)");
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ConnectError(path, errno);
  }
  return fd;
}

int64_t ListenerPid(int socket) {
  ucred listener{};
  socklen_t length = sizeof(listener);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &listener, &length) == 0 ? listener.pid : 0;
}

std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorChannel>> DescriptorChannel::Open(const std::string& path,
                                                                           const std::string& client_name,
                                                                           absl::Duration timeout) {
  absl::StatusOr<UniqueFd> fd = ConnectSocket(path);
  if (!fd.ok()) return fd.status();
  std::unique_ptr<DescriptorChannel> channel(new DescriptorChannel(path, *std::move(fd)));
  v1::DescriptorRequest request;
  request.mutable_open_session()->set_min_version(1);
  request.mutable_open_session()->set_max_version(1);
  request.mutable_open_session()->set_client_name(client_name.substr(0, kNameBytes));
  v1::DescriptorResponse response;
  std::vector<UniqueFd> received;
  absl::Status status = channel->Exchange(request, -1, timeout, &response, &received);
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError(status.message());
  if (absl::IsPermissionDenied(status)) status.SetPayload(kSaidByDaemon, absl::Cord());
  if (!status.ok()) return status;
  const v1::OpenSessionResponse& opened = response.open_session();
  if (!response.has_open_session() || opened.token().empty()) {
    return absl::InternalError(absl::StrCat(path, " answered the hello without a session token: is it railsd?"));
  }
  if (opened.version() != 1) {
    return absl::FailedPreconditionError(absl::StrCat(path, " speaks descriptor protocol version ", opened.version(),
                                                      "; this library speaks version 1"));
  }
  if (received.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " sent no pidfd, so this client could not prove its end: its kernel must have pidfd_open"));
  }
  channel->hello_ = {opened.session_id(),
                     opened.boot_id(),
                     opened.token(),
                     opened.node(),
                     std::make_shared<DaemonLife>(std::move(received[0])),
                     ListenerPid(channel->fd())};
  return channel;
}

absl::Status DescriptorChannel::AddSegment(uint32_t segment_id, int memory_fd, uint64_t length_bytes,
                                           absl::Duration timeout) {
  v1::DescriptorRequest request;
  request.mutable_add_segment()->set_segment_id(segment_id);
  request.mutable_add_segment()->set_length_bytes(length_bytes);
  v1::DescriptorResponse response;
  std::vector<UniqueFd> unexpected;
  return Exchange(request, memory_fd, timeout, &response, &unexpected);
}

bool DescriptorChannel::out_of_step() const {
  absl::MutexLock lock(&mutex_);
  return out_of_step_;
}

absl::Status DescriptorChannel::ReserveSegment(uint32_t segment_id, uint64_t length_bytes, absl::Duration timeout) {
  v1::DescriptorRequest request;
  request.mutable_reserve_segment()->set_segment_id(segment_id);
  request.mutable_reserve_segment()->set_length_bytes(length_bytes);
  v1::DescriptorResponse response;
  std::vector<UniqueFd> unexpected;
  return Exchange(request, -1, timeout, &response, &unexpected);
}

absl::StatusOr<RingDescriptors> DescriptorChannel::OpenRing(absl::Duration timeout) {
  v1::DescriptorRequest request;
  request.mutable_open_ring()->set_min_version(1);
  request.mutable_open_ring()->set_max_version(1);
  v1::DescriptorResponse response;
  std::vector<UniqueFd> received;
  absl::Status status = Exchange(request, -1, timeout, &response, &received);
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError(status.message());
  if (!status.ok()) return status;
  if (response.open_ring().version() != 1 || received.size() != 3) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " gave ", received.size(), " descriptors for a ring of version ",
                     response.open_ring().version(), "; this library takes 3 for version 1"));
  }
  return RingDescriptors{std::move(received[0]), std::move(received[1]), std::move(received[2])};
}

void DescriptorChannel::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

absl::Status DescriptorChannel::GivenUp() const {
  absl::MutexLock end(&end_mutex_);
  return given_up_;
}

absl::Status DescriptorChannel::Exchange(const v1::DescriptorRequest& request, int attachment, absl::Duration timeout,
                                         v1::DescriptorResponse* response, std::vector<UniqueFd>* received) {
  const Deadline deadline = Deadline::After(timeout);
  absl::MutexLock lock(&mutex_);
  if (out_of_step_) {
    return absl::UnavailableError(
        absl::StrCat("the session on ", path_, " cannot be used any more: Reconnect() opens another"));
  }
  absl::Status status = Send(request.SerializeAsString(), attachment, deadline);
  if (status.ok()) status = Receive(deadline, response, received);
  if (!status.ok()) {
    out_of_step_ = true;
    if (!hung_up_) {
      absl::MutexLock end(&end_mutex_);
      given_up_ = status;
    }
    if (!absl::IsDeadlineExceeded(status)) Shutdown();  // after a timeout Session reports its reason first
    return status;
  }
  if (response->code() == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(response->code()), response->message());
}

absl::Status DescriptorChannel::Send(const std::string& packet, int attachment, Deadline deadline) {
  iovec data{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (attachment >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &attachment, sizeof(int));
  }
  while (sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Gone("sending to", errno);
    if (absl::Status status = WaitFor(POLLOUT, deadline); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DescriptorChannel::Receive(Deadline deadline, v1::DescriptorResponse* response,
                                        std::vector<UniqueFd>* received) {
  std::vector<char> packet(kPacketBytes);
  iovec data{packet.data(), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  for (;;) {
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (absl::Status status = WaitFor(POLLIN, deadline); !status.ok()) return status;
      continue;
    }
    if (got < 0) return Gone("reading from", errno);
    *received = TakeDescriptors(message);
    if (got == 0) return Gone("reading from", 0);  // the end, or an empty packet, which may carry descriptors
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
      return absl::InternalError(
          absl::StrCat("the answer on ", path_,
                       " was cut short: it is over 64 KiB, or this process has no descriptor left (ulimit -n)"));
    }
    if (!response->ParseFromArray(packet.data(), static_cast<int>(got))) {
      return absl::InternalError(absl::StrCat("the answer on ", path_, " is no DescriptorResponse: is it railsd?"));
    }
    return absl::OkStatus();
  }
}

absl::Status DescriptorChannel::WaitFor(short events, Deadline deadline) {
  for (;;) {
    const int64_t left = absl::ToInt64Milliseconds(deadline.left());
    pollfd entry{socket_.get(), events, 0};
    const int ready = left <= 0 ? 0 : poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, absl::StrCat("poll of ", path_));
    if (ready == 0) {
      return absl::DeadlineExceededError(absl::StrCat("railsd does not answer on the descriptor socket ", path_));
    }
  }
}

absl::Status DescriptorChannel::Gone(absl::string_view doing, int error) {
  hung_up_ = true;
  if (error == EPIPE || error == ECONNRESET) error = 0;
  return absl::UnavailableError(error == 0 ? absl::StrCat("railsd closed the descriptor socket ", path_)
                                           : absl::StrCat(doing, " the descriptor socket ", path_, ErrnoText(error)));
}

}  // namespace rails::internal
