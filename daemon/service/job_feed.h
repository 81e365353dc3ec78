// Finished jobs, on their way to whoever watches them: the callers of WatchJobs, and the metrics.
#ifndef RAILSD_DAEMON_SERVICE_JOB_FEED_H_
#define RAILSD_DAEMON_SERVICE_JOB_FEED_H_

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

// The reports for one call of WatchJobs, bounded: the oldest are dropped and counted.
class JobWatch {
 public:
  using Report = std::shared_ptr<const JobReport>;  // shared by the watches of a session
  struct Item {
    Report report;
    uint64_t missed = 0;  // dropped before this one
  };
  // `notify` is called without locks after each push, from the engine's thread; it must not block.
  JobWatch(size_t capacity, std::function<void()> notify) : capacity_(capacity), notify_(std::move(notify)) {}
  void Push(Report report);
  std::optional<Item> Pop();
  size_t Depth() const;

 private:
  const size_t capacity_;
  const std::function<void()> notify_;
  mutable absl::Mutex mutex_;
  std::deque<Report> reports_ ABSL_GUARDED_BY(mutex_);
  uint64_t missed_ ABSL_GUARDED_BY(mutex_) = 0;
};

// How many watches there are, and reports that wait in them: in all, and in the one with the most.
struct WatchDepths {
  size_t watches = 0, reports = 0, most_reports = 0;
};

// Safe to use from any thread.
class JobFeed final : public AgentObserver {
 public:
  // `next`, when given, sees every report too and outlives the feed. The engine's thread serves the watches of a
  // session at the end of each of its jobs, so one session has `max_watches` at most.
  explicit JobFeed(AgentObserver* next, size_t max_watches = 4) : next_(next), max_watches_(max_watches) {}

  void OnJobFinished(SessionId session, const JobReport& report) override;

  void RemoveSession(SessionId session);
  // The feed holds the watch only as long as somebody else does. False: the session has its number already.
  [[nodiscard]] bool AddWatch(SessionId session, const std::shared_ptr<JobWatch>& watch);
  size_t max_watches() const { return max_watches_; }

  WatchDepths Depths() const;

 private:
  AgentObserver* const next_;
  const size_t max_watches_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<SessionId, std::vector<std::weak_ptr<JobWatch>>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_JOB_FEED_H_
