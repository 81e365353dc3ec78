// The thread of a group: takes its jobs through their slices, in the order of their submission.
//
// A slice has a buffer from its start to its end: copied out of the device, exchanged by a job of the daemon, copied
// into the device. The daemon's jobs have the same order on every rank, because a job's slices start one after the
// other, those of the next job after them, and the copies out keep that order.
#ifndef RAILS_CLIENT_CUDA_WORKER_H_
#define RAILS_CLIENT_CUDA_WORKER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/cuda/buffers.h"
#include "client/cuda/copier.h"
#include "client/cuda/inbox.h"
#include "client/cuda/local_peers.h"
#include "client/cuda/operation.h"
#include "client/cuda/slices.h"
#include "client/src/deadline.h"
#include "rails/client.h"

namespace rails::cuda {

// The part of the worker that callers see. Thread-safe.
class WorkerState {
 public:
  // Jobs of a group that have not ended.
  static constexpr uint32_t kMaxUnfinished = 64;

  // Numbers the operation and puts it into `inbox`. Waits for room until `deadline`: UNAVAILABLE. FAILED_PRECONDITION:
  // the group is over.
  absl::Status Submit(std::shared_ptr<Operation> operation, Inbox* inbox, internal::Deadline deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished() ABSL_LOCKS_EXCLUDED(mutex_);
  // The group takes no more jobs. The first reason counts.
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  internal::WaitQueue changed_;
  uint64_t last_seq_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status over_ ABSL_GUARDED_BY(mutex_);
};

// One thread makes it and runs it, in the device's context.
class Worker {
 public:
  Worker(rails::Group* group, const SliceSizes& sizes, std::unique_ptr<Buffers> buffers, uint32_t buffer_count,
         std::unique_ptr<Copier> copier, std::unique_ptr<LocalPeers> peers, std::shared_ptr<Inbox> inbox,
         std::shared_ptr<WorkerState> state)
      : group_(*group),
        sizes_(sizes),
        buffers_(std::move(buffers)),
        peers_(std::move(peers)),
        copier_(std::move(copier)),
        inbox_(std::move(inbox)),
        state_(std::move(state)),
        active_(buffer_count) {}

  // Returns after kStop, when no operation is unfinished.
  void Run();

 private:
  // The slice that has a buffer.
  struct Slice {
    std::shared_ptr<Operation> operation{};  // null: the buffer is free
    uint32_t number = 0;
    SliceFlows sends{}, receives{};
    std::shared_ptr<rails::Job> job{};  // null: not with the daemon
  };

  void Handle(Message message);
  // Starts as many slices as there are buffers.
  void Advance();
  absl::Status StartSlice(const std::shared_ptr<Operation>& operation);
  // Before the copies out of the first slice.
  absl::Status BeginOperation(Operation& operation);
  // The daemon copies between ranks of a node, and cannot touch memory of a device.
  void StageInNode(Flow* flow) const;
  absl::Status WriteNotes(Operation& operation, const SliceFlows& sends);
  // Submits the slices that are copied out, in their order.
  void SubmitCopied();
  // False: try again when a slice that is with the daemon has ended.
  bool SubmitSlice(uint32_t buffer);
  void OnEnded(uint32_t buffer, const JobReport& report);
  // The number of further slices that this rank needs, told in the job of one that leads.
  uint32_t VoteIn(const Slice& slice) const;
  // Takes from a slice that leads how many slices there are.
  absl::Status TakeVote(Operation& operation, const Slice& slice, const JobReport& report);
  // Takes what the first slice has told: the true lengths of flows, and notes.
  absl::Status TakeFirst(Slice& slice, uint32_t buffer, const JobReport& report);
  absl::Status TakeLengths(Slice& slice, const JobReport& report);
  absl::Status ReadNotes(Slice& slice, const JobReport& report);
  // Ends a slice whose bytes are not copied into the device. If it is the first, waits for the copies of the rank's own
  // bytes and of those of its node.
  void DropSlice(uint32_t buffer);
  void EndSlice(uint32_t buffer);
  // The job fails, and with it the group.
  void Fail(Operation& operation, const absl::Status& why);
  // The driver refuses or the device has failed: no copy is done any more.
  void Break(const absl::Status& why);
  void Finish(const std::shared_ptr<Operation>& operation, const absl::Status& status);
  // After kStop: ends what still runs.
  void Stop();
  bool AnyActive() const;
  bool AnySubmitted() const;

  rails::Group& group_;
  const SliceSizes sizes_;
  const std::unique_ptr<Buffers> buffers_;
  const std::unique_ptr<LocalPeers> peers_;
  const std::unique_ptr<Copier> copier_;  // ends its copies before the memory that they use
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<WorkerState> state_;
  std::vector<Slice> active_;                        // by buffer
  std::deque<uint32_t> copied_;                      // buffers whose bytes are copied out, not with the daemon yet
  std::deque<std::shared_ptr<Operation>> starting_;  // operations with slices that have not started
  absl::Status over_, broken_;
  bool stopping_ = false;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_WORKER_H_
