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
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/base/ids.h"
#include "agent/memory/memory_ranges.h"
#include "agent/transport/verbs/rail_context.h"
#include "agent/transport/verbs/work_request_id.h"
#include "agent/transport/verbs_tuning.h"

namespace railsd::verbs {

// The reads that flush one zone.
struct FlushPlan {
  struct Read {
    uint64_t address = 0;
    uint32_t key = 0;
  };
  ZoneRef zone;
  // Keeps the memory registered until the reads are done: the zone may be closed before, and gives its own up.
  MemoryRanges memory;
  std::vector<Read> reads;  // at least one
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

// Fences in the order of their arrival, and the queue pair that carries their reads. Belongs to the rail's thread.
class FlushQueue {
 public:
  // `own`: the port's address. At most `max_fences` wait at once. `context` and `completions` outlive the queue.
  static absl::StatusOr<std::unique_ptr<FlushQueue>> Create(RailContext* context, ibv_cq* completions,
                                                            const VerbsTuning& tuning, LaneId id,
                                                            const RdmaDevice::Address& own, size_t max_fences);
  FlushQueue(const FlushQueue&) = delete;
  FlushQueue& operator=(const FlushQueue&) = delete;

  LaneId id() const { return id_; }
  const RdmaDevice::Address& own() const { return own_; }
  bool empty() const { return first_ == end_; }
  bool full() const { return end_ - first_ == fences_.size(); }
  // The queue pair is of no use any more.
  bool failed() const { return failed_; }
  // A fence of the endpoint waits.
  bool HasFenceOf(const Endpoint& endpoint) const;

  // The queue is not full.
  void Add(UnflushedFence fence) { At(end_++) = std::move(fence); }
  // Posts reads as much as fits. Returns 0, or an errno.
  int Pump();
  // Read `sequence` and all before it are done.
  void Complete(uint32_t sequence) { queue_.Complete(sequence); }
  // Takes the oldest fence if its reads are done.
  bool TakeFlushed(UnflushedFence* fence);
  // Takes the oldest fence, flushed or not, after a failure: a read has failed, or could not be posted.
  bool TakeFailed(UnflushedFence* fence);
  void Fail() { failed_ = true; }
  // The fences of the endpoint are not to be reported. Calls `visit` for each that was to be.
  template <typename Visit>
  void Forget(const Endpoint& endpoint, Visit visit) {
    for (uint64_t i = first_; i != end_; ++i) {
      if (At(i).endpoint != &endpoint) continue;
      visit(At(i));
      At(i).endpoint = nullptr;
    }
  }

 private:
  FlushQueue(RailContext* context, LaneId id, const RdmaDevice::Address& own, uint32_t depth, size_t max_fences)
      : context_(*context), id_(id), own_(own), queue_(depth, &context->room), fences_(max_fences) {}
  UnflushedFence& At(uint64_t number) { return fences_[number % fences_.size()]; }
  const UnflushedFence& At(uint64_t number) const { return fences_[number % fences_.size()]; }

  RailContext& context_;
  const LaneId id_;
  const RdmaDevice::Address own_;
  uint64_t landed_ = 0;  // where reads land; its value means nothing
  SendQueue queue_;
  // Fences are numbered. From `first_` on their reads are posted, from `next_` on not all of them.
  std::vector<UnflushedFence> fences_;
  uint64_t first_ = 0, next_ = 0, end_ = 0;
  bool failed_ = false;
  RegionHandle region_;
  QueuePairHandle queue_pair_;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_FLUSH_H_
