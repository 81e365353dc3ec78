// Proves that bytes written into the memory of another device have arrived there.
//
// A fence's completion is in the memory of the host, and PCIe does not order it after writes to another device. A read
// is ordered after them: a read request does not overtake writes of the same device, and its completion comes back from
// the memory itself. Before the fence of a zone in device memory is reported, the rail therefore reads one byte of each
// of the zone's regions there, with RDMA READs over a queue pair that is connected to itself. docs/verbs.md has the
// sources.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_FLUSH_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_FLUSH_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "agent/base/ids.h"
#include "agent/memory/memory_ranges.h"
#include "agent/transport/verbs/rail_context.h"

namespace railsd::verbs {

// The reads that flush one zone.
struct FlushPlan {
  ZoneRef zone;
  // Keeps the memory registered until the reads are done: the zone may be closed before, and gives its own up.
  MemoryRanges memory;
  std::vector<ZonePlan::Flush> reads;  // at least one
};

// A fence whose zone must be flushed before the fence is reported.
struct UnflushedFence {
  std::shared_ptr<const FlushPlan> plan;
  Endpoint* endpoint = nullptr;  // null: the fence is not reported
  uint8_t weight = 0;
  uint8_t round = 0;
  uint32_t read = 0;           // of the plan: the next to be posted
  uint32_t last_sequence = 0;  // of its work requests, when all are posted
};

// Fences in the order of their arrival, and the queue pair that carries their reads. After a failure the owner destroys
// the queue pair and makes another, which reads for all fences again: a read changes nothing. Belongs to the rail's
// thread.
class FlushQueue {
 public:
  explicit FlushQueue(RailContext* context);  // outlives the queue
  FlushQueue(const FlushQueue&) = delete;
  FlushQueue& operator=(const FlushQueue&) = delete;

  // Makes the queue pair, for the port's address `own`.
  absl::Status MakeQueuePair(const RdmaDevice::Address& own);
  bool has_queue_pair() const { return queue_pair_ != nullptr; }
  // False: no queue pair was made yet, and no fence waits.
  bool used() const { return region_ != nullptr; }
  // The port's address that the last queue pair was made for.
  const RdmaDevice::Address& own() const { return own_; }
  bool empty() const { return fences_.empty(); }
  // A fence of the endpoint waits.
  bool HasFenceOf(const Endpoint& endpoint) const;

  void Add(UnflushedFence fence) { fences_.push_back(std::move(fence)); }
  // Posts reads as much as fits; none after Fail(). Returns 0, or an errno.
  int Pump();
  // Read `sequence` has not ended.
  bool IsUnderWay(uint32_t sequence) const { return !failed_ && !queue_.IsDone(sequence); }
  // Read `sequence` and all before it are done.
  void Complete(uint32_t sequence) { queue_.Complete(sequence); }
  // Takes the oldest fence if its reads are done.
  bool TakeFlushed(UnflushedFence* fence);
  // Takes the oldest fence, flushed or not. There is one.
  UnflushedFence TakeOldest();

  // The queue pair is of no use any more. DestroyQueuePair() and Restart() follow.
  void Fail() { failed_ = true; }
  // Fail() for a read that has failed or could not be posted. True if it was of the oldest fence for certain. Else the
  // fences that wait are read one at a time from now on: if a queue pair that is connected to itself refuses a read, it
  // may go into error before the answers of earlier reads have come.
  bool FailRead();
  bool failed() const { return failed_; }
  void DestroyQueuePair() { queue_pair_.reset(); }
  // Called when the queue pair has no completion in the completion queue any more.
  void Restart();

  // The fences of the endpoint are not to be reported. Calls `visit` for each that was to be. Calls Fail() if there was
  // one: its reads may never end, and others wait behind them.
  template <typename Visit>
  void Forget(const Endpoint& endpoint, Visit visit) {
    for (UnflushedFence& fence : fences_) {
      if (fence.endpoint != &endpoint) continue;
      visit(fence);
      fence.endpoint = nullptr;
      failed_ = true;
    }
  }

 private:
  RailContext& context_;
  RdmaDevice::Address own_;
  uint64_t landed_ = 0;  // where reads land; its value means nothing
  SendQueue queue_;
  std::deque<UnflushedFence> fences_;  // oldest first
  size_t posted_ = 0;                  // the first so many have all their reads posted
  size_t alone_ = 0;                   // the first so many are read one at a time
  bool failed_ = false;
  RegionHandle region_;
  QueuePairHandle queue_pair_;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_FLUSH_H_
