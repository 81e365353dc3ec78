#include "sim/network/connection.h"

#include <algorithm>
#include <limits>

#include "sim/network/resources.h"

namespace railsd::sim {
namespace {

constexpr double kGain = 1.0 / 16;  // of DCTCP's moving average
constexpr double kGrowth = 1.0 / 16;
constexpr uint32_t kMostLosses = 6;
constexpr double kStretchSeconds = 20e-6;
// Bandwidth-delay products of the largest window, the part of a queue beyond them, and the fewest packets.
constexpr double kWindowProducts = 2, kWindowQueuePart = 0.25, kWindowPackets = 8;

}  // namespace

void Window::EndRound() {
  const double part = marked_ / acknowledged_;
  alpha_ += kGain * (part - alpha_);
  if (mode_ == QueueMode::kEcn && marked_ > 0) {
    bytes_ = std::max(least_, bytes_ * (1 - alpha_ / 2));
  } else if (!lost_) {
    bytes_ = std::min(most_, bytes_ + kGrowth * most_);
  }
  acknowledged_ = marked_ = 0;
  lost_ = false;
}

void Window::OnAcknowledged(double bytes, bool marked) {
  if (mode_ == QueueMode::kPause) return;
  losses_ = 0;
  acknowledged_ += bytes;
  if (marked) marked_ += bytes;
  if (acknowledged_ >= bytes_) EndRound();
}

void Window::OnLost() {
  losses_ = std::min(kMostLosses, losses_ + 1);
  if (lost_) return;
  lost_ = true;
  bytes_ = std::max(least_, bytes_ / 2);
}

void Connection::Observe(double bytes, bool congested, double now) {
  stretch_bytes += bytes;
  if (congested) stretch_congested += bytes;
  if (now - stretch_since < kStretchSeconds) return;
  rate = stretch_bytes / (now - stretch_since);
  congestion = stretch_bytes > 0 ? stretch_congested / stretch_bytes : 0;
  stretch_since = now;
  stretch_bytes = stretch_congested = 0;
}

Connection OpenConnection(const Fabric& fabric, const Path& path, absl::Span<const Port> ports,
                          const PacketOptions& options) {
  const Resources resources(fabric);
  Connection made{.path = path};
  made.ports[made.hops++] = resources.Sender(path.source_node, path.source_rail);
  if (path.spine != Path::kNoSpine) {
    for (const uint32_t link : resources.Links(path)) made.ports[made.hops++] = link;
  }
  made.ports[made.hops++] = resources.Receiver(path.destination_node, path.destination_rail);
  made.propagation = PropagationSeconds(path, fabric);
  made.round_trip = 2 * made.propagation;
  double slowest = std::numeric_limits<double>::infinity();
  for (uint32_t hop = 0; hop < made.hops; ++hop) {
    const double speed = ports[made.ports[hop]].speed;
    made.dead = made.dead || speed <= 0;
    if (speed <= 0) continue;
    made.round_trip += options.packet_bytes / speed;
    slowest = std::min(slowest, speed);
  }
  const auto packet = static_cast<double>(options.packet_bytes);
  const double derived = kWindowQueuePart * static_cast<double>(options.queue_bytes) +
                         (made.dead ? 0 : kWindowProducts * made.round_trip * slowest);
  const double most =
      options.window_bytes > 0 ? static_cast<double>(options.window_bytes) : std::max(derived, kWindowPackets * packet);
  made.window = Window(std::max(most, packet), packet, options.queue_mode);
  return made;
}

}  // namespace railsd::sim
