// Histograms of finished jobs.
#ifndef RAILSD_DAEMON_METRICS_JOB_STATISTICS_H_
#define RAILSD_DAEMON_METRICS_JOB_STATISTICS_H_

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "agent/agent.h"
#include "daemon/metrics/covered_time.h"

namespace railsd {

// Statistics of finished jobs. The engine thread writes, scrapes read.
class JobStatistics final : public AgentObserver {
 public:
  // `rail_speeds`: by rail, in any unit, 0 if unknown.
  explicit JobStatistics(std::vector<uint64_t> rail_speeds = {});
  void OnJobFinished(SessionId session, const JobReport& report) override;

  // Balance of the rails within each job.
  struct BalanceHistograms {
    void Observe(absl::Span<const uint64_t> bytes, absl::Span<const uint64_t> speeds);
    prometheus::Histogram max_over_mean{{1.001, 1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 4, 8}};
    prometheus::Histogram jain{{0.125, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1}};
  };
  struct Histograms {
    Histograms();
    prometheus::Histogram duration, wait_ranks, wait_peers, sending, receiving, bytes_sent, bytes_received, ratio;
    prometheus::Histogram efficiency, efficiency_data, efficiency_moving, efficiency_utilisation;
    prometheus::Histogram speedup;                                      // over pinned rails
    prometheus::Counter actual_seconds, pinned_seconds, bound_seconds;  // of jobs, not of ranks
    BalanceHistograms sent, received, planned;
  };
  const Histograms& histograms() const { return histograms_; }
  // Counts by result: "ok", "replayable" or the name of the status.
  std::map<std::string, uint64_t> by_result() const {
    absl::MutexLock lock(&mutex_);
    return by_result_;
  }

 private:
  const std::vector<uint64_t> rail_speeds_;
  Histograms histograms_;
  CoveredTime under_way_;  // used by the engine's thread
  mutable absl::Mutex mutex_;
  // Likely results exist from the start, because Prometheus sees no increase when a counter first appears.
  std::map<std::string, uint64_t> by_result_ ABSL_GUARDED_BY(mutex_) = {
      {"ok", 0},       {"aborted", 0},    {"cancelled", 0},  {"deadline_exceeded", 0}, {"failed_precondition", 0},
      {"internal", 0}, {"replayable", 0}, {"unavailable", 0}};
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_JOB_STATISTICS_H_
