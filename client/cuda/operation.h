// One job of a group: what it moves, how far it is, and who waits for it.
#ifndef RAILS_CLIENT_CUDA_OPERATION_H_
#define RAILS_CLIENT_CUDA_OPERATION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cuda/flows.h"
#include "client/cuda/open_device.h"
#include "client/cuda/scratch.h"
#include "client/src/deadline.h"
#include "rails/cuda.h"

namespace rails::cuda {

// Thread-safe. The group's worker alone uses `flows` and `course`.
class Operation {
 public:
  // How far the worker is.
  struct Course {
    uint32_t slices = 0;     // 0: not known before the slices that lead have ended
    uint32_t may_start = 1;  // until then: how many of them
    uint32_t vote = 0;       // of this rank, in the last one that has begun
    uint32_t started = 0, done = 0;
    uint32_t active = 0;  // slices between their start and their end
    bool began = false;   // the rank's own bytes are being copied
    bool read = false;    // this rank has read what ranks of its node send
    absl::Status failed;
    JobReport sum;
  };
  using Result = absl::StatusOr<JobReport>;

  // In the current context: `stream`, if any, has to come to this point before the job may begin.
  static absl::StatusOr<std::shared_ptr<Operation>> Make(std::shared_ptr<OpenDevice> device, const AllToAllv& exchange,
                                                         Flows flows, std::optional<Stream> stream);
  ~Operation();

  // Null: it may begin at once.
  Event start() const { return start_; }
  uint64_t tag() const { return exchange_.tag; }
  absl::Duration timeout() const { return exchange_.timeout; }
  bool capacities() const { return exchange_.capacities; }
  bool urgent() const { return exchange_.urgent; }
  uint32_t leading() const { return capacities() ? 2 : 1; }
  uint64_t seq() const { return seq_; }
  void set_seq(uint64_t seq) { seq_ = seq; }
  Flows flows;
  Course course;
  // Where the bytes of a flow of `flows.sends` are gathered; null: they are not. Goes back to the pool at the end.
  Scratch::Held gathered;
  void set_pool(std::shared_ptr<Scratch> pool) { pool_ = std::move(pool); }

  void AddCopies(const Copies& more) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets waiting streams go on. Again without effect.
  void LetStreamsGo() ABSL_LOCKS_EXCLUDED(mutex_);
  // The worker no longer uses the job's memory. Once.
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  bool ended() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return report_.has_value();
  }
  // As of Job.
  Result Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(std::function<void(Result)> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WaitOn(Stream stream) ABSL_LOCKS_EXCLUDED(mutex_);
  Copies copies() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Operation(std::shared_ptr<OpenDevice> device, const AllToAllv& exchange, Flows given_flows, Event start,
            std::optional<WaitWords::Word> word);
  void ReturnWord() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<OpenDevice> device_;
  AllToAllv exchange_;  // holds the memory until the end
  const Event start_;
  const std::optional<WaitWords::Word> word_;
  std::shared_ptr<Scratch> pool_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  uint64_t seq_ = 0;
  mutable absl::Mutex mutex_;
  internal::WaitQueue changed_;
  bool word_set_ ABSL_GUARDED_BY(mutex_) = false, word_returned_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<JobReport> report_ ABSL_GUARDED_BY(mutex_);  // set by Finish()
  Copies copies_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(Result)>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

// Adds the figures of one job of the daemon.
void AddReport(const JobReport& more, JobReport* sum);

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_OPERATION_H_
