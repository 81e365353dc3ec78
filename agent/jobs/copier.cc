#include "agent/jobs/copier.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace railsd {
namespace {

// Bytes that a thread copies between two looks at the stop flag.
constexpr uint64_t kStepBytes = 8 << 20;
// A copy that is not urgent has its turn after so many steps of urgent ones: one of a job that has failed ends then.
constexpr uint32_t kUrgentInARow = 4;
// Longest sleep of a thread. Only the detection of threads that hang depends on it.
constexpr std::chrono::seconds kMaxWait(1);
constexpr int kNice = 5;

absl::Status RunStep(const CopyTask& task, uint64_t offset_bytes, uint64_t length_bytes) {
  if (task.stop->load(std::memory_order_relaxed)) return absl::CancelledError("copy stopped");
  uint64_t done = 0;
  return CopyRangeBytes(*task.from, *task.to, offset_bytes, length_bytes, &done);
}

}  // namespace

size_t DefaultCopyThreads() { return std::clamp<size_t>(std::thread::hardware_concurrency() / 4, 2, 16); }

void CopyQueue::Push(CopyTask task) {
  Tenant& tenant = tenants_[task.tenant];
  // A tenant saves up no share while it has nothing to copy. Values of different priorities cannot be compared.
  const double served = served_[task.share.priority];
  if (tenant.share.priority != task.share.priority) tenant.served = served;
  if (tenant.empty()) tenant.served = std::max(tenant.served, served);
  tenant.share = task.share;
  auto copy = std::make_shared<Copy>();
  copy->total_bytes = task.from->total_bytes();
  copy->task = std::move(task);
  tenant.waiting[copy->task.urgent].push_back(std::move(copy));
  ++waiting_;
  ++unfinished_;
}

CopyQueue::Tenant& CopyQueue::Next() {
  Tenant* next = nullptr;
  for (auto& [index, tenant] : tenants_) {
    if (tenant.empty()) continue;
    const bool before = next == nullptr || tenant.share.priority > next->share.priority ||
                        (tenant.share.priority == next->share.priority && tenant.served < next->served);
    if (before) next = &tenant;
  }
  return *next;
}

CopyQueue::Step CopyQueue::Take() {
  Tenant& tenant = Next();
  const bool turn = !tenant.waiting[false].empty() && tenant.urgent_in_a_row >= kUrgentInARow;
  const bool urgent = !tenant.waiting[true].empty() && !turn;
  tenant.urgent_in_a_row = urgent ? tenant.urgent_in_a_row + 1 : 0;
  const std::shared_ptr<Copy> copy = tenant.waiting[urgent].front();
  const uint64_t length = std::min(kStepBytes, copy->total_bytes - copy->taken_bytes);
  const Step step{copy, copy->taken_bytes, length};
  copy->taken_bytes += length;
  ++copy->running;
  served_[tenant.share.priority] = tenant.served;
  tenant.served += static_cast<double>(length) / std::max(1u, tenant.share.weight);
  if (copy->taken_bytes == copy->total_bytes) {
    tenant.waiting[urgent].pop_front();
    --waiting_;
  }
  return step;
}

std::optional<CopyResult> CopyQueue::Finish(const Step& step, absl::Status status) {
  Copy& copy = *step.copy;
  --copy.running;
  if (!status.ok() && copy.status.ok()) copy.status = std::move(status);
  if (!copy.status.ok() && copy.taken_bytes < copy.total_bytes) {
    copy.taken_bytes = copy.total_bytes;  // no further steps
    std::erase(tenants_.at(copy.task.tenant).waiting[copy.task.urgent], step.copy);
    --waiting_;
  }
  if (copy.running > 0 || copy.taken_bytes < copy.total_bytes) return std::nullopt;
  --unfinished_;
  return CopyResult{copy.task.job, copy.task.index, copy.status};
}

ThreadCopier::ThreadCopier(size_t threads, WakeEvent* engine_wake) : engine_wake_(engine_wake), turns_(threads) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { Loop(i); });
}

ThreadCopier::~ThreadCopier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadCopier::CopyShort(const CopyTask& task) {
  const uint64_t bytes = task.from->total_bytes();
  const size_t pieces = task.from->range_count() + task.to->range_count();
  if (bytes > short_bytes_left_ || pieces > short_pieces_left_) return false;
  short_bytes_left_ -= bytes;
  short_pieces_left_ -= pieces;
  CopyResult result{task.job, task.index, RunStep(task, 0, bytes)};
  std::lock_guard lock(mutex_);
  results_.push_back(std::move(result));
  result_count_.fetch_add(1, std::memory_order_release);  // no wake: the engine has submitted, and takes results next
  return true;
}

void ThreadCopier::Submit(CopyTask task) {
  if (CopyShort(task)) return;
  const bool shared = task.from->total_bytes() > kStepBytes;
  {
    std::lock_guard lock(mutex_);
    queue_.Push(std::move(task));
  }
  if (shared) {
    work_.notify_all();
  } else {
    work_.notify_one();
  }
}

bool ThreadCopier::TakeResult(CopyResult* result) {
  if (result_count_.load(std::memory_order_acquire) == 0) {
    short_bytes_left_ = kShortBytes;
    short_pieces_left_ = kShortPieces;
    return false;
  }
  std::lock_guard lock(mutex_);
  *result = std::move(results_.front());
  results_.pop_front();
  result_count_.fetch_sub(1, std::memory_order_release);
  return true;
}

size_t ThreadCopier::depth() const {
  std::lock_guard lock(mutex_);
  return queue_.depth();
}

void ThreadCopier::Run(absl::AnyInvocable<void()> chore, std::optional<JobTag> job) {
  {
    std::lock_guard lock(mutex_);
    chores_.push_back({std::move(chore), job});
  }
  work_.notify_one();
}

void ThreadCopier::Tell(CopyResult result) {
  results_.push_back(std::move(result));
  result_count_.fetch_add(1, std::memory_order_release);
  engine_wake_->Wake();
}

void ThreadCopier::Loop(size_t index) {
  pthread_setname_np(pthread_self(), ("copy-" + std::to_string(index)).c_str());
  // Copies end long before the network's work does. They must not take processors from the rails' threads.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  std::unique_lock lock(mutex_);
  while (true) {
    turns_[index].fetch_add(1, std::memory_order_relaxed);
    if (!work_.wait_for(lock, kMaxWait, [this] { return stop_ || !queue_.empty() || !chores_.empty(); })) continue;
    if (stop_) return;
    if (!chores_.empty()) {  // before copies, which may never run out
      Chore chore = std::move(chores_.front());
      chores_.pop_front();
      lock.unlock();
      chore.work();
      chore.work = nullptr;  // what it holds is freed here
      lock.lock();
      if (chore.job.has_value()) Tell({*chore.job, CopyResult::kChore, absl::OkStatus()});
      continue;
    }
    const CopyQueue::Step step = queue_.Take();
    lock.unlock();
    absl::Status status = RunStep(step.copy->task, step.offset_bytes, step.length_bytes);
    lock.lock();
    std::optional<CopyResult> result = queue_.Finish(step, std::move(status));
    if (result) Tell(*std::move(result));
  }
}

}  // namespace railsd
