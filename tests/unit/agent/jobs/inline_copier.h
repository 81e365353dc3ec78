// Makes copies inside Submit(), on the caller's thread.
#ifndef RAILSD_TESTS_UNIT_AGENT_JOBS_INLINE_COPIER_H_
#define RAILSD_TESTS_UNIT_AGENT_JOBS_INLINE_COPIER_H_

#include <deque>
#include <optional>
#include <utility>

#include "agent/jobs/copier.h"

namespace railsd::testing {

class InlineCopier final : public Copier {
 public:
  void Submit(CopyTask task) override {
    uint64_t done = 0;
    const bool stopped = task.stop->load(std::memory_order_relaxed);
    results_.push_back({task.job, task.index,
                        stopped ? absl::CancelledError("copy stopped")
                                : CopyRangeBytes(*task.from, *task.to, 0, task.from->total_bytes(), &done)});
  }
  bool TakeResult(CopyResult* result) override {
    if (held || results_.empty()) return false;
    *result = std::move(results_.front());
    results_.pop_front();
    return true;
  }
  size_t depth() const override { return results_.size(); }
  void Run(absl::AnyInvocable<void()> chore, std::optional<JobTag> job = std::nullopt) override {
    chore();
    if (job.has_value()) results_.push_back({*job, CopyResult::kChore, absl::OkStatus()});
  }
  // While set, results are kept back.
  bool held = false;

 private:
  std::deque<CopyResult> results_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_JOBS_INLINE_COPIER_H_
