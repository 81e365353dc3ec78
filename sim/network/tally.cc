#include "sim/network/tally.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace railsd::sim {

// The first bins are this short; they widen by doubling.
constexpr double kFirstBinSeconds = 1e-6;

Tally::Tally(const Fabric& fabric, size_t timeline_bins)
    : nodes_(fabric.nodes), rails_(fabric.rails()), asked_bins_(timeline_bins) {
  outcome_.sent_bytes.assign(fabric.nics(), 0);
  outcome_.received_bytes.assign(fabric.nics(), 0);
  outcome_.send_busy_seconds.assign(fabric.nics(), 0);
  outcome_.receive_busy_seconds.assign(fabric.nics(), 0);
  outcome_.pair_finish_seconds.assign(fabric.nodes * fabric.nodes, 0);
  if (timeline_bins > 0) {
    outcome_.timeline.bin_seconds = kFirstBinSeconds;
    outcome_.timeline.rails = rails_;
  }
}

void Tally::AddSent(size_t nic, double bytes, double speed, double from, double to) {
  outcome_.sent_bytes[nic] += bytes;
  if (speed > 0) outcome_.send_busy_seconds[nic] += bytes / speed;
  if (asked_bins_ > 0 && bytes > 0) AddToTimeline(nic % rails_, bytes, from, to);
}

void Tally::AddReceived(size_t nic, double bytes, double speed) {
  outcome_.received_bytes[nic] += bytes;
  if (speed > 0) outcome_.receive_busy_seconds[nic] += bytes / speed;
}

void Tally::Finish(size_t source_node, size_t destination_node, double at) {
  double& finish = outcome_.pair_finish_seconds[source_node * nodes_ + destination_node];
  finish = std::max(finish, at);
  outcome_.network_seconds = std::max(outcome_.network_seconds, at);
}

void Tally::Miss(size_t source_node, size_t destination_node, double bytes) {
  if (bytes <= 0) return;
  missed_bytes_ += bytes;
  Finish(source_node, destination_node, std::numeric_limits<double>::infinity());
}

void Tally::Widen() {
  Timeline& line = outcome_.timeline;
  const size_t bins = line.bins();
  for (size_t bin = 0; bin < bins; ++bin) {
    for (size_t rail = 0; rail < rails_; ++rail) {
      const double bytes = std::exchange(line.bytes[bin * rails_ + rail], 0);
      line.bytes[bin / 2 * rails_ + rail] += bytes;
    }
  }
  line.bytes.resize((bins + 1) / 2 * rails_);
  line.bin_seconds *= 2;
}

void Tally::AddToTimeline(size_t rail, double bytes, double from, double to) {
  Timeline& line = outcome_.timeline;
  while (to >= line.bin_seconds * static_cast<double>(2 * asked_bins_)) Widen();
  const auto first = static_cast<size_t>(from / line.bin_seconds);
  const auto last = static_cast<size_t>(to / line.bin_seconds);
  if (line.bins() <= last) line.bytes.resize((last + 1) * rails_, 0);
  if (first == last || to <= from) {
    line.bytes[last * rails_ + rail] += bytes;
    return;
  }
  for (size_t bin = first; bin <= last; ++bin) {
    const double begin = std::max(from, static_cast<double>(bin) * line.bin_seconds);
    const double end = std::min(to, static_cast<double>(bin + 1) * line.bin_seconds);
    line.bytes[bin * rails_ + rail] += bytes * std::max(0.0, end - begin) / (to - from);
  }
}

Outcome Tally::Take() {
  outcome_.unfinished_bytes = static_cast<uint64_t>(std::llround(missed_bytes_));
  return std::move(outcome_);
}

}  // namespace railsd::sim
