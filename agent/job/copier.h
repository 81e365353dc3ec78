// Copies between ranks of this node, on threads of their own so that the engine never waits for memory.
#ifndef RAILSD_AGENT_JOB_COPIER_H_
#define RAILSD_AGENT_JOB_COPIER_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "agent/base/ids.h"
#include "agent/base/wake_event.h"
#include "agent/memory/memory_ranges.h"

namespace railsd {

struct CopyTask {
  JobTag job;
  size_t index = 0;  // of the copy in its job
  // Both outlive the task: the job waits for its result.
  const MemoryRanges* from = nullptr;
  const MemoryRanges* to = nullptr;
  std::shared_ptr<std::atomic<bool>> stop;  // checked between steps
};

struct CopyResult {
  JobTag job;
  size_t index = 0;
  absl::Status status;  // CANCELLED when stopped
};

// The engine submits and takes results; each task yields exactly one. Bounded by the quota on jobs and ranges: a task
// exists for each local flow of an active job.
class Copier {
 public:
  virtual ~Copier() = default;
  virtual void Submit(CopyTask task) = 0;
  virtual bool TakeResult(CopyResult* result) = 0;
  virtual size_t depth() const = 0;
};

// Threads "copy-<i>".
class ThreadCopier final : public Copier {
 public:
  ThreadCopier(size_t threads, WakeEvent* engine_wake);
  ~ThreadCopier() override;
  void Submit(CopyTask task) override;
  bool TakeResult(CopyResult* result) override;
  size_t depth() const override;
  // How often the thread has come round: once a second at least. Any thread.
  uint64_t turns(size_t thread) const { return turns_[thread].load(std::memory_order_relaxed); }

 private:
  void Run(size_t index);
  WakeEvent* const engine_wake_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<CopyTask> tasks_;      // guarded by mutex_
  std::deque<CopyResult> results_;  // guarded by mutex_
  bool stop_ = false;               // guarded by mutex_
  std::atomic<size_t> result_count_{0};
  std::vector<std::atomic<uint64_t>> turns_;  // by thread
  std::vector<std::thread> threads_;
};

// Does the copy inside Submit(); for tests.
class InlineCopier final : public Copier {
 public:
  void Submit(CopyTask task) override;
  bool TakeResult(CopyResult* result) override;
  size_t depth() const override { return results_.size(); }
  // While set, results are kept back.
  bool held = false;

 private:
  std::deque<CopyResult> results_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_COPIER_H_
