#include "daemon/peer/reach_probe.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "agent/transport/tcp/tcp_socket.h"

namespace railsd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);

}  // namespace

void ReachProbe::Step(const std::string& address, absl::Time now) {
  if (!attempt_.valid()) return Begin(address, now);
  pollfd entry = {attempt_.get(), POLLOUT, 0};
  if (poll(&entry, 1, 0) > 0) return End(tcp::TakeSocketError(attempt_.get()), now);
  if (now - begun_ >= kPatience) End(ETIMEDOUT, now);
}

void ReachProbe::Begin(const std::string& address, absl::Time now) {
  const absl::StatusOr<tcp::SocketAddress> to = tcp::ParseAddress(address);
  if (!to.ok() || to->port() == 0) return;
  begun_ = now;
  int error = 0;
  attempt_ = tcp::StartConnect({}, *to, {}, &error);
  if (error != 0 && error != EMFILE && error != ENFILE) End(error, now);  // those say nothing about the peer
}

void ReachProbe::End(int error_number, absl::Time now) {
  attempt_ = UniqueFd();
  reach_ = error_number == 0 ? Reach::kListening : error_number == ECONNREFUSED ? Reach::kRefused : Reach::kSilent;
  refused_since_ = reach_ == Reach::kRefused ? std::min(refused_since_, now) : absl::InfiniteFuture();
}

void ReachProbe::Reset() { *this = ReachProbe(); }

}  // namespace railsd
