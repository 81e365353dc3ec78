// Passes reports of finished jobs to the callers of WatchJobs, to rings and to the metrics.
#ifndef RAILSD_DAEMON_SERVICES_JOB_FEED_H_
#define RAILSD_DAEMON_SERVICES_JOB_FEED_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "agent/agent.h"

namespace railsd {

// The queue of reports for one WatchJobs call. When it is full, the oldest report is dropped and counted.
class JobWatch {
 public:
  using Report = std::shared_ptr<const JobReport>;  // shared by the watches of a session
  struct Item {
    Report report;
    uint64_t missed = 0;  // dropped before this one
  };
  // Calls `notify` without locks after each push, on the engine thread. It must not block.
  JobWatch(size_t capacity, std::function<void()> notify) : capacity_(capacity), notify_(std::move(notify)) {}
  void Push(Report report);
  std::optional<Item> Pop();
  size_t Depth() const {
    absl::MutexLock lock(&mutex_);
    return reports_.size();
  }

 private:
  const size_t capacity_;
  const std::function<void()> notify_;
  mutable absl::Mutex mutex_;
  std::deque<Report> reports_ ABSL_GUARDED_BY(mutex_);
  uint64_t missed_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Gets the reports of a session's jobs on the engine thread. It must not block.
class ReportSink {
 public:
  virtual ~ReportSink() = default;
  virtual void Push(const JobReport& report) = 0;
};

// Number of watches, reports that wait in all of them, and in the fullest one.
struct WatchDepths {
  size_t watches = 0, reports = 0, most_reports = 0;
};

// Any thread may use it.
class JobFeed final : public AgentObserver {
 public:
  // `next`, if not null, also gets every report and outlives the feed. A session has at most `max_watches`, because
  // the engine thread serves all its watches at the end of each of its jobs.
  explicit JobFeed(AgentObserver* next, size_t max_watches = 4) : next_(next), max_watches_(max_watches) {}

  void OnJobFinished(SessionId session, const JobReport& report) override;

  void RemoveSession(SessionId session);
  // Keeps only a weak reference to the watch. False: the session already has `max_watches`.
  [[nodiscard]] bool AddWatch(SessionId session, const std::shared_ptr<JobWatch>& watch);
  // Keeps only a weak reference. A session has one sink, besides its watches.
  void SetSink(SessionId session, const std::shared_ptr<ReportSink>& sink);
  size_t max_watches() const { return max_watches_; }

  WatchDepths Depths() const;

 private:
  AgentObserver* const next_;
  const size_t max_watches_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<SessionId, std::vector<std::weak_ptr<JobWatch>>> watches_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SessionId, std::weak_ptr<ReportSink>> sinks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICES_JOB_FEED_H_
