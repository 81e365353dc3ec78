#include "daemon/metrics/job_statistics.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "daemon/metrics/balance.h"

namespace railsd {
namespace {

std::vector<double> DurationBounds() {
  std::vector<double> bounds;
  double decade = 1e-4;
  for (int decades = 0; decades < 6; ++decades, decade *= 10) {
    for (const double step : {1.0, 2.5, 5.0}) bounds.push_back(decade * step);
  }
  return bounds;
}

// 4 KiB to 64 GiB.
std::vector<double> ByteBounds() {
  std::vector<double> bounds;
  for (int power = 12; power <= 36; power += 3) bounds.push_back(std::ldexp(1.0, power));
  return bounds;
}

// Bounds for fractions of 1.
std::vector<double> PartBounds() { return {0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1}; }

}  // namespace

void JobStatistics::BalanceHistograms::Observe(absl::Span<const uint64_t> bytes, absl::Span<const uint64_t> speeds) {
  const std::optional<Balance> balance = BalanceOf(bytes, speeds);
  if (!balance) return;
  max_over_mean.Observe(balance->max_over_mean);
  jain.Observe(balance->jain);
}

JobStatistics::Histograms::Histograms()
    : duration(DurationBounds()),
      wait_ranks(DurationBounds()),
      wait_peers(DurationBounds()),
      sending(DurationBounds()),
      receiving(DurationBounds()),
      bytes_sent(ByteBounds()),
      bytes_received(ByteBounds()),
      ratio({1.005, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08, 1.1, 1.15, 1.2, 1.3, 1.5, 2, 3, 5, 10}),
      efficiency(PartBounds()),
      efficiency_data(PartBounds()),
      efficiency_moving(PartBounds()),
      efficiency_utilisation(PartBounds()),
      speedup({0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8}) {}

JobStatistics::JobStatistics(std::vector<uint64_t> rail_speeds) : rail_speeds_(std::move(rail_speeds)) {}

void JobStatistics::OnJobFinished(SessionId, const JobReport& report) {
  {
    absl::MutexLock lock(&mutex_);
    // A replayable job is no failure: its rank submits it again.
    ++by_result_[report.replayable ? "replayable"
                                   : absl::AsciiStrToLower(absl::StatusCodeToString(report.status.code()))];
  }
  if (!report.status.ok()) return;
  histograms_.duration.Observe(absl::ToDoubleSeconds(report.elapsed));
  histograms_.bytes_sent.Observe(static_cast<double>(report.bytes_sent));
  histograms_.bytes_received.Observe(static_cast<double>(report.bytes_received));
  histograms_.wait_ranks.Observe(absl::ToDoubleSeconds(report.waiting_for_ranks));
  histograms_.wait_peers.Observe(absl::ToDoubleSeconds(report.waiting_for_peers));
  histograms_.sending.Observe(absl::ToDoubleSeconds(report.sending));
  histograms_.receiving.Observe(absl::ToDoubleSeconds(report.receiving));
  // Bounds count the bytes of lost ranks, too, which no rail carried.
  const bool whole = report.lost_ranks.empty();
  if (whole && report.ratio_to_bound > 0) histograms_.ratio.Observe(report.ratio_to_bound);
  const absl::Duration actual = report.elapsed - report.waiting_for_ranks;
  if (whole && report.pinned_bound > absl::ZeroDuration() && actual > absl::ZeroDuration()) {
    histograms_.speedup.Observe(absl::FDivDuration(report.pinned_bound, actual));
    histograms_.actual_seconds.Increment(absl::ToDoubleSeconds(under_way_.Add(report.ended - actual, report.ended)));
    histograms_.pinned_seconds.Increment(absl::ToDoubleSeconds(report.pinned_bound / report.parts));
    histograms_.bound_seconds.Increment(absl::ToDoubleSeconds(report.node_bound / report.parts));
  }
  if (report.efficiency.total > 0) {
    histograms_.efficiency.Observe(report.efficiency.total);
    histograms_.efficiency_data.Observe(report.efficiency.data);
    histograms_.efficiency_moving.Observe(report.efficiency.moving);
    histograms_.efficiency_utilisation.Observe(report.efficiency.utilisation);
  }
  std::vector<uint64_t> speeds = rail_speeds_;
  for (size_t r = 0; r < speeds.size(); ++r) {
    if ((report.drained_rails >> r & 1) != 0) speeds[r] = 0;
  }
  histograms_.sent.Observe(report.rail_tx_bytes, speeds);
  histograms_.received.Observe(report.rail_rx_bytes, speeds);
  histograms_.planned.Observe(report.rail_planned_bytes, speeds);
}

}  // namespace railsd
