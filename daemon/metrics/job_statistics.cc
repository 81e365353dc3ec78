#include "daemon/metrics/job_statistics.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
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
  for (double bytes = 4096; bytes <= 64.0 * (1 << 30); bytes *= 8) bounds.push_back(bytes);
  return bounds;
}

// Bounds for fractions of 1.
std::vector<double> PartBounds() { return {0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1}; }

}  // namespace

void HistogramData::Observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  sum_ += value;
}

JobStatistics::BalanceView::BalanceView()
    : max_over_mean({1.001, 1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 4, 8}),
      jain({0.125, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1}) {}

void JobStatistics::BalanceView::Observe(absl::Span<const uint64_t> bytes, absl::Span<const uint64_t> speeds) {
  const std::optional<Balance> balance = BalanceOf(bytes, speeds);
  if (!balance) return;
  max_over_mean.Observe(balance->max_over_mean);
  jain.Observe(balance->jain);
}

JobStatistics::JobStatistics(std::vector<uint64_t> rail_speeds)
    : rail_speeds_(std::move(rail_speeds)),
      // Likely results exist from the start, because Prometheus sees no increase when a counter first appears.
      view_{{{"ok", 0},
             {"aborted", 0},
             {"cancelled", 0},
             {"deadline_exceeded", 0},
             {"failed_precondition", 0},
             {"internal", 0},
             {"replayable", 0},
             {"unavailable", 0}},
            HistogramData(DurationBounds()),
            HistogramData(ByteBounds()),
            HistogramData(ByteBounds()),
            HistogramData(DurationBounds()),
            HistogramData(DurationBounds()),
            HistogramData(DurationBounds()),
            HistogramData(DurationBounds()),
            HistogramData({1.005, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08, 1.1, 1.15, 1.2, 1.3, 1.5, 2, 3, 5, 10}),
            HistogramData(PartBounds()),
            HistogramData(PartBounds()),
            HistogramData(PartBounds()),
            HistogramData(PartBounds()),
            {},
            {},
            {}} {}

void JobStatistics::OnJobFinished(SessionId, const JobReport& report) {
  absl::MutexLock lock(&mutex_);
  // A replayable job is no failure: its rank submits it again.
  ++view_.by_result[report.replayable ? "replayable"
                                      : absl::AsciiStrToLower(absl::StatusCodeToString(report.status.code()))];
  if (!report.status.ok()) return;
  view_.duration.Observe(absl::ToDoubleSeconds(report.elapsed));
  view_.bytes_sent.Observe(static_cast<double>(report.bytes_sent));
  view_.bytes_received.Observe(static_cast<double>(report.bytes_received));
  view_.wait_ranks.Observe(absl::ToDoubleSeconds(report.waiting_for_ranks));
  view_.wait_peers.Observe(absl::ToDoubleSeconds(report.waiting_for_peers));
  view_.sending.Observe(absl::ToDoubleSeconds(report.sending));
  view_.receiving.Observe(absl::ToDoubleSeconds(report.receiving));
  if (report.ratio_to_bound > 0) view_.ratio.Observe(report.ratio_to_bound);
  if (report.efficiency.total > 0) {
    view_.efficiency.Observe(report.efficiency.total);
    view_.efficiency_data.Observe(report.efficiency.data);
    view_.efficiency_moving.Observe(report.efficiency.moving);
    view_.efficiency_utilisation.Observe(report.efficiency.utilisation);
  }
  std::vector<uint64_t> speeds = rail_speeds_;
  for (size_t r = 0; r < speeds.size(); ++r) {
    if ((report.drained_rails >> r & 1) != 0) speeds[r] = 0;
  }
  view_.sent.Observe(report.rail_tx_bytes, speeds);
  view_.received.Observe(report.rail_rx_bytes, speeds);
  view_.planned.Observe(report.rail_planned_bytes, speeds);
}

JobStatistics::View JobStatistics::Read() const {
  absl::MutexLock lock(&mutex_);
  return view_;
}

}  // namespace railsd
