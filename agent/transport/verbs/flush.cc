#include "agent/transport/verbs/flush.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/queue_pair.h"

namespace railsd::verbs {
namespace {

// Reads under way at once. Each also takes a place in the completion queue, which the rail's other requests share.
constexpr uint32_t kDepth = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<FlushQueue>> FlushQueue::Create(RailContext* context, ibv_cq* completions,
                                                               const VerbsTuning& tuning, LaneId id,
                                                               const RdmaDevice::Address& own, size_t max_fences) {
  const RdmaDevice& device = *context->device;
  const uint8_t reads = MaxReads(device);  // not 0: such a device registers no memory that needs flushes
  std::unique_ptr<FlushQueue> queue(new FlushQueue(context, id, own, kDepth, max_fences));
  const int access = IBV_ACCESS_LOCAL_WRITE;
  queue->region_.reset(ibv_reg_mr(device.domain(), &queue->landed_, sizeof(queue->landed_), access));
  if (queue->region_ == nullptr) return CallFailed(device.who(), "ibv_reg_mr of a flush's buffer", errno);
  ibv_qp_init_attr make{};
  make.send_cq = make.recv_cq = completions;
  make.qp_type = IBV_QPT_RC;
  make.cap.max_send_wr = kDepth;
  make.cap.max_recv_wr = make.cap.max_send_sge = make.cap.max_recv_sge = 1;
  ibv_qp* const pair = ibv_create_qp(device.domain(), &make);
  if (pair == nullptr) return CallFailed(device.who(), "ibv_create_qp for flushes", errno);
  queue->queue_pair_.reset(pair);
  if (absl::Status status = MoveToInit(device, pair, IBV_ACCESS_REMOTE_READ); !status.ok()) return status;
  const QueuePairPath itself{own, own.gid.bytes, own.lid, own.mtu_bytes, pair->qp_num, 0, 0, reads, reads};
  if (absl::Status status = MoveToSending(device, tuning, pair, itself); !status.ok()) return status;
  return queue;
}

bool FlushQueue::HasFenceOf(const Endpoint& endpoint) const {
  for (uint64_t i = first_; i != end_; ++i) {
    if (At(i).endpoint == &endpoint) return true;
  }
  return false;
}

int FlushQueue::Pump() {
  while (next_ != end_ && queue_.Free() > 0 && !failed_) {
    UnflushedFence& fence = At(next_);
    const FlushPlan::Read& read = fence.plan->reads[fence.read];
    ibv_sge into{reinterpret_cast<uint64_t>(&landed_), 1, region_->lkey};
    ibv_send_wr request{};
    request.wr_id = Encode({WorkRequestId::Kind::kFlush, id_, queue_.Next()});
    queue_.Signal();
    request.sg_list = &into;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = read.address;
    request.wr.rdma.rkey = read.key;
    ibv_send_wr* bad = nullptr;
    AddTo(context_.counters.work_requests, 1);
    if (const int error = ibv_post_send(queue_pair_.get(), &request, &bad); error != 0) {
      queue_.Unpost(1);
      return error;
    }
    if (++fence.read < fence.plan->reads.size()) continue;
    fence.last_sequence = queue_.last();
    ++next_;
  }
  return 0;
}

bool FlushQueue::TakeFlushed(UnflushedFence* fence) {
  if (failed_ || first_ == next_ || !queue_.IsDone(At(first_).last_sequence)) return false;
  *fence = std::exchange(At(first_++), {});
  return true;
}

bool FlushQueue::TakeFailed(UnflushedFence* fence) {
  if (first_ == end_) return false;
  *fence = std::exchange(At(first_++), {});
  next_ = std::max(next_, first_);
  return true;
}

}  // namespace railsd::verbs
