#include "agent/transport/verbs/flush.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "agent/transport/verbs/queue_pair.h"
#include "agent/transport/verbs/work_request_id.h"

namespace railsd::verbs {
namespace {

// Reads under way at once. Each also takes a place in the completion queue, which the rail's other requests share.
constexpr uint32_t kDepth = 16;

}  // namespace

FlushQueue::FlushQueue(RailContext* context) : context_(*context), queue_(kDepth, &context->room) {}

absl::Status FlushQueue::MakeQueuePair(const RdmaDevice::Address& own) {
  const RdmaDevice& device = *context_.device;
  const uint8_t reads = MaxReads(device);  // not 0: such a device registers no memory that needs flushes
  const int access = IBV_ACCESS_LOCAL_WRITE;
  if (region_ == nullptr) region_.reset(ibv_reg_mr(device.domain(), &landed_, sizeof(landed_), access));
  if (region_ == nullptr) return CallFailed(device.who(), "ibv_reg_mr of a flush's buffer", errno);
  ibv_qp_init_attr make{};
  make.send_cq = make.recv_cq = context_.completions.get();
  make.qp_type = IBV_QPT_RC;
  make.cap.max_send_wr = kDepth;
  make.cap.max_recv_wr = make.cap.max_send_sge = make.cap.max_recv_sge = 1;
  QueuePairHandle made(ibv_create_qp(device.domain(), &make));
  if (made == nullptr) return CallFailed(device.who(), "ibv_create_qp for flushes", errno);
  if (absl::Status status = MoveToInit(device, made.get(), IBV_ACCESS_REMOTE_READ); !status.ok()) return status;
  const QueuePairPath itself{own, own.gid.bytes, own.lid, own.mtu_bytes, made->qp_num, 0, 0, reads, reads};
  if (absl::Status status = MoveToSending(device, context_.tuning, made.get(), itself); !status.ok()) return status;
  own_ = own;
  queue_pair_ = std::move(made);
  return absl::OkStatus();
}

bool FlushQueue::HasFenceOf(const Endpoint& endpoint) const {
  return std::any_of(fences_.begin(), fences_.end(), [&](const auto& fence) { return fence.endpoint == &endpoint; });
}

int FlushQueue::Pump() {
  while (!failed_ && posted_ < (alone_ > 0 ? 1 : fences_.size()) && queue_.Free() > 0) {
    UnflushedFence& fence = fences_[posted_];
    const ZonePlan::Flush& read = fence.plan->reads[fence.read];
    ibv_sge into{reinterpret_cast<uint64_t>(&landed_), 1, region_->lkey};
    ibv_send_wr request{};
    request.wr_id = Encode({WorkRequestId::Kind::kFlush, QueuePairId(0), queue_.Next()});
    queue_.Signal();
    request.sg_list = &into;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = read.address;
    request.wr.rdma.rkey = static_cast<const DeviceRegistration*>(read.registration)->remote_key();
    ibv_send_wr* bad = nullptr;
    AddTo(context_.counters.work_requests, 1);
    if (const int error = ibv_post_send(queue_pair_.get(), &request, &bad); error != 0) {
      queue_.Unpost(1);
      return error;
    }
    if (++fence.read < fence.plan->reads.size()) continue;
    fence.last_sequence = queue_.last();
    ++posted_;
  }
  return 0;
}

bool FlushQueue::TakeFlushed(UnflushedFence* fence) {
  if (posted_ == 0 || !queue_.IsDone(fences_.front().last_sequence)) return false;
  *fence = TakeOldest();
  return true;
}

UnflushedFence FlushQueue::TakeOldest() {
  UnflushedFence fence = std::move(fences_.front());
  fences_.pop_front();
  posted_ -= posted_ > 0;
  alone_ -= alone_ > 0;
  return fence;
}

bool FlushQueue::FailRead() {
  failed_ = true;
  if (alone_ > 0) return true;
  alone_ = fences_.size();
  return false;
}

void FlushQueue::Restart() {
  queue_.Complete(queue_.last());
  std::erase_if(fences_, [](const UnflushedFence& fence) { return fence.endpoint == nullptr; });
  for (UnflushedFence& fence : fences_) fence.read = 0;
  alone_ = std::min(alone_, fences_.size());
  posted_ = 0;
  failed_ = false;
}

}  // namespace railsd::verbs
