#include "agent/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/wake_event.h"
#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_rail.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd {
namespace {

constexpr uint64_t kMinFrameBytes = 64 << 10;
constexpr uint64_t kDefaultMaxFrameBytes = 1 << 20;
// A rail slower than this limits the unsent bytes in its sockets, because bytes in the kernel cannot move to another
// rail. A faster rail needs the kernel's own tuning to stay busy.
constexpr uint64_t kShallowBelowBytesPerS = 500'000'000;
constexpr int kShallowUnsentBytes = 128 << 10;

uint64_t FrameBytes(const TcpOptions& options) {
  if (options.frame_bytes != 0) return std::min<uint64_t>(options.frame_bytes, tcp::kMaxFrameBytes);
  if (options.speed_bytes_per_s == 0) return kDefaultMaxFrameBytes;
  return std::clamp(options.speed_bytes_per_s / 1000, kMinFrameBytes, kDefaultMaxFrameBytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RailTransport>> CreateTcpTransport(TcpOptions options) {
  const std::string who = absl::StrCat("rail ", options.rail.value(), ": ");
  if (options.node.empty() || options.node.size() > tcp::kMaxNodeBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, "node name '", options.node, "' must have 1 to ", tcp::kMaxNodeBytes, " bytes"));
  }
  if (options.zones == nullptr) return absl::InvalidArgumentError(absl::StrCat(who, "no table of zones"));
  if (options.max_posted_orders == 0 || options.max_receive_events == 0 || options.max_half_open == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, "max_posted_orders, max_receive_events and max_half_open must be positive"));
  }
  absl::StatusOr<tcp::SocketAddress> address = tcp::ParseAddress(options.listen_address);
  if (!address.ok()) return absl::Status(address.status().code(), absl::StrCat(who, address.status().message()));

  tcp::SocketTuning tuning;
  tuning.interface = options.interface;
  tuning.send_buffer_bytes = options.send_buffer_bytes;
  tuning.receive_buffer_bytes = options.receive_buffer_bytes;
  tuning.peer_silence = options.peer_silence;
  if (options.speed_bytes_per_s != 0 && options.speed_bytes_per_s < kShallowBelowBytesPerS) {
    tuning.unsent_low_water_bytes = kShallowUnsentBytes;
  }
  options.frame_bytes = FrameBytes(options);

  absl::StatusOr<UniqueFd> listener = tcp::Listen(*address, tuning);
  if (!listener.ok()) return absl::Status(listener.status().code(), absl::StrCat(who, listener.status().message()));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return absl::ErrnoToStatus(errno, absl::StrCat(who, "epoll_create1"));
  absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
  if (!wake.ok()) return absl::Status(wake.status().code(), absl::StrCat(who, wake.status().message()));
  auto rail = std::make_unique<tcp::TcpRail>(std::move(options), *address, tuning, std::move(epoll), *std::move(wake));
  if (absl::Status status = rail->Init(*std::move(listener)); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(who, status.message()));
  }
  return rail;
}

}  // namespace railsd
