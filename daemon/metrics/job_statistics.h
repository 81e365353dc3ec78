// Histograms of finished jobs.
#ifndef RAILSD_DAEMON_METRICS_JOB_STATISTICS_H_
#define RAILSD_DAEMON_METRICS_JOB_STATISTICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "agent/agent.h"

namespace railsd {

// Values in buckets, in Prometheus's form. Not synchronised.
class HistogramData {
 public:
  explicit HistogramData(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}
  void Observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }  // by bucket; the last is above all bounds
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// Statistics of finished jobs. The engine thread writes, scrapes read.
class JobStatistics final : public AgentObserver {
 public:
  // `rail_speeds`: by rail, in any unit, 0 if unknown.
  explicit JobStatistics(std::vector<uint64_t> rail_speeds = {});
  void OnJobFinished(SessionId session, const JobReport& report) override;

  // Balance of the rails within each job.
  struct BalanceView {
    BalanceView();
    void Observe(absl::Span<const uint64_t> bytes, absl::Span<const uint64_t> speeds);
    HistogramData max_over_mean, jain;
  };
  struct View {
    std::map<std::string, uint64_t> by_result;  // "ok" or the name of the status
    HistogramData duration, bytes_sent, bytes_received, wait_ranks, wait_peers, sending, receiving, ratio;
    HistogramData efficiency, efficiency_data, efficiency_moving, efficiency_utilisation;
    BalanceView sent, received, planned;
  };
  View Read() const;

 private:
  const std::vector<uint64_t> rail_speeds_;
  mutable absl::Mutex mutex_;
  View view_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_JOB_STATISTICS_H_
