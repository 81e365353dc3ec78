// Copies between ranks of this node, and other work with memory that would take the engine too long, on threads of
// their own.
#ifndef RAILSD_AGENT_JOBS_COPIER_H_
#define RAILSD_AGENT_JOBS_COPIER_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/base/ids.h"
#include "agent/base/wake_event.h"
#include "agent/memory/memory_ranges.h"
#include "agent/sessions/tenant_quota.h"

namespace railsd {

struct CopyTask {
  JobTag job;
  size_t index = 0;  // of the copy in its job
  // The three outlive the task, because the job waits for its result.
  const MemoryRanges* from = nullptr;
  const MemoryRanges* to = nullptr;
  const std::atomic<bool>* stop = nullptr;  // checked between steps
  size_t tenant = 0;                        // Tenant::index()
  TenantShare share = {};
  bool urgent = false;
};

struct CopyResult {
  static constexpr size_t kChore = SIZE_MAX;
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
  // Runs work that would take the engine too long. With `job`, a result of index kChore follows.
  virtual void Run(absl::AnyInvocable<void()> chore, std::optional<JobTag> job = std::nullopt) = 0;
};

// Chooses the copy that works next, in steps of a few MiB. Tenants share as they do on rails: a higher priority goes
// first, equal ones get bytes by weight. The copies of one tenant work in the order in which they were pushed, urgent
// ones first, but for a step of the others now and then. Several threads may work on one copy.
class CopyQueue {
 public:
  struct Copy {
    CopyTask task;
    uint64_t total_bytes = 0;
    uint64_t taken_bytes = 0;  // by steps
    size_t running = 0;        // steps
    absl::Status status;       // of the first step that failed
  };
  // One step: bytes [offset, offset + length) of the flow.
  struct Step {
    std::shared_ptr<Copy> copy;
    uint64_t offset_bytes = 0, length_bytes = 0;
  };
  void Push(CopyTask task);
  bool empty() const { return waiting_ == 0; }
  // Takes the next step. The queue is not empty.
  Step Take();
  // The result of the copy, when that was its last step.
  std::optional<CopyResult> Finish(const Step& step, absl::Status status);
  // Copies that are not finished.
  size_t depth() const { return unfinished_; }

 private:
  struct Tenant {
    TenantShare share;
    double served = 0;                                         // bytes divided by weight
    std::array<std::deque<std::shared_ptr<Copy>>, 2> waiting;  // by urgency
    uint32_t urgent_in_a_row = 0;                              // steps
    bool empty() const { return waiting[false].empty() && waiting[true].empty(); }
  };
  Tenant& Next();

  std::map<size_t, Tenant> tenants_;
  size_t waiting_ = 0;  // copies with bytes that no step has taken
  size_t unfinished_ = 0;
  std::map<uint32_t, double> served_;  // by priority: `served` of the tenant that was served last
};

// Number of threads when the configuration gives none: a quarter of the processors, 2 to 16.
size_t DefaultCopyThreads();

// Threads "copy-<i>". Short copies are made inside Submit(), since a wake of a thread takes longer.
class ThreadCopier final : public Copier {
 public:
  // Limits of all short copies together, until TakeResult() has nothing more.
  static constexpr uint64_t kShortBytes = 32 << 10;
  static constexpr size_t kShortPieces = 64;

  ThreadCopier(size_t threads, WakeEvent* engine_wake);
  ~ThreadCopier() override;
  void Submit(CopyTask task) override;
  bool TakeResult(CopyResult* result) override;
  size_t depth() const override;
  void Run(absl::AnyInvocable<void()> chore, std::optional<JobTag> job = std::nullopt) override;
  size_t threads() const { return threads_.size(); }
  // Turns that the thread has begun: at least one a second. Any thread.
  uint64_t turns(size_t thread) const { return turns_[thread].load(std::memory_order_relaxed); }

 private:
  struct Chore {
    absl::AnyInvocable<void()> work;
    std::optional<JobTag> job;
  };
  void Loop(size_t index);
  // False when it is not short.
  bool CopyShort(const CopyTask& task);
  void Tell(CopyResult result);  // with mutex_
  WakeEvent* const engine_wake_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  CopyQueue queue_;                 // guarded by mutex_
  std::deque<CopyResult> results_;  // guarded by mutex_
  std::deque<Chore> chores_;        // guarded by mutex_
  bool stop_ = false;               // guarded by mutex_
  std::atomic<size_t> result_count_{0};
  uint64_t short_bytes_left_ = kShortBytes;   // the engine's
  size_t short_pieces_left_ = kShortPieces;   // the engine's
  std::vector<std::atomic<uint64_t>> turns_;  // by thread
  std::vector<std::thread> threads_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_COPIER_H_
