#include "agent/job/copier.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

namespace railsd {
namespace {

// Between two looks at the stop flag.
constexpr uint64_t kStepBytes = 8 << 20;
// Only the watch over threads that hang depends on it.
constexpr std::chrono::seconds kMaxWait(1);
constexpr int kNice = 5;

template <typename OnStep>
CopyResult RunSteps(const CopyTask& task, OnStep on_step) {
  CopyResult result{task.job, task.index, absl::OkStatus()};
  uint64_t done = 0;
  while (done < task.from->total_bytes() && result.status.ok()) {
    on_step();
    if (task.stop->load(std::memory_order_relaxed)) {
      result.status = absl::CancelledError("copy stopped");
    } else {
      result.status = CopyBetweenRanges(*task.from, *task.to, kStepBytes, &done);
    }
  }
  return result;
}

}  // namespace

ThreadCopier::ThreadCopier(size_t threads, WakeEvent* engine_wake) : engine_wake_(engine_wake), turns_(threads) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { Run(i); });
}

ThreadCopier::~ThreadCopier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadCopier::Submit(CopyTask task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  work_.notify_one();
}

bool ThreadCopier::TakeResult(CopyResult* result) {
  if (result_count_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard lock(mutex_);
  *result = std::move(results_.front());
  results_.pop_front();
  result_count_.fetch_sub(1, std::memory_order_release);
  return true;
}

size_t ThreadCopier::depth() const {
  std::lock_guard lock(mutex_);
  return tasks_.size();
}

void ThreadCopier::Run(size_t index) {
  pthread_setname_np(pthread_self(), ("copy-" + std::to_string(index)).c_str());
  // Copies are done long before the network is, unless they take the processor from it.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  std::unique_lock lock(mutex_);
  while (true) {
    const auto turn = [&] { turns_[index].fetch_add(1, std::memory_order_relaxed); };
    turn();
    if (!work_.wait_for(lock, kMaxWait, [this] { return stop_ || !tasks_.empty(); })) continue;
    if (stop_) return;
    CopyTask task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    CopyResult result = RunSteps(task, turn);
    lock.lock();
    results_.push_back(std::move(result));
    result_count_.fetch_add(1, std::memory_order_release);
    engine_wake_->Wake();
  }
}

void InlineCopier::Submit(CopyTask task) {
  results_.push_back(RunSteps(task, [] {}));
}

bool InlineCopier::TakeResult(CopyResult* result) {
  if (held || results_.empty()) return false;
  *result = std::move(results_.front());
  results_.pop_front();
  return true;
}

}  // namespace railsd
