#include "agent/transport/verbs/peer_queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/memory/guarded_copy.h"
#include "agent/transport/verbs/fence.h"
#include "agent/transport/verbs/queue_pair.h"

namespace railsd::verbs {

PeerQueuePair::PeerQueuePair(RailContext* context, QueuePairId id, Endpoint* endpoint, uint32_t psn)
    : context_(*context),
      id_(id),
      endpoint_(endpoint),
      psn_(psn),
      queue_(context_.tuning.send_queue_depth, &context_.room) {
  context_.room.Take(1);  // for the completion that ends the drain
  context_.busy.reserve(++context_.queue_pairs);
}

PeerQueuePair::~PeerQueuePair() {
  Destroy();
  context_.room.Give(1);
  --context_.queue_pairs;
  if (busy_) std::erase(context_.busy, this);
}

void PeerQueuePair::Destroy() {
  if (handle_ == nullptr) return;
  handle_.reset();
  SubtractFrom(context_.counters.queue_pairs, 1);
}

absl::StatusOr<std::unique_ptr<PeerQueuePair>> PeerQueuePair::Create(RailContext* context, QueuePairId id,
                                                                     Endpoint* endpoint, uint32_t psn) {
  const std::string& who = context->device->who();
  if (context->room.free() < 2) {
    return absl::ResourceExhaustedError(absl::StrCat(
        who, ": the completion queue has no room for another queue pair: raise verbs.completion_queue_depth"));
  }
  std::unique_ptr<PeerQueuePair> queue_pair(new PeerQueuePair(context, id, endpoint, psn));
  ibv_qp_init_attr make{};
  make.send_cq = make.recv_cq = context->completions.get();
  make.srq = context->receives.get();
  make.qp_type = IBV_QPT_RC;
  make.cap.max_send_wr = context->tuning.send_queue_depth + 1;  // and the one that ends the drain
  make.cap.max_send_sge = context->max_pieces;
  make.cap.max_inline_data = context->tuning.inline_bytes;
  queue_pair->handle_.reset(ibv_create_qp(context->device->domain(), &make));
  if (queue_pair->handle_ == nullptr) return CallFailed(who, "ibv_create_qp", errno);
  queue_pair->number_ = queue_pair->handle_->qp_num;
  AddTo(context->counters.queue_pairs, 1);
  // A peer may write and not read: regions of device memory may be read, by this node's own flushes (flush.h).
  if (absl::Status status = MoveToInit(*context->device, queue_pair->handle_.get(), IBV_ACCESS_REMOTE_WRITE);
      !status.ok()) {
    return status;
  }
  return queue_pair;
}

absl::Status PeerQueuePair::Connect(const RdmaDevice::Address& own, const EndpointAddress& own_end,
                                    const EndpointAddress& peer, size_t index) {
  const EndpointAddress::QueuePair& other = peer.queue_pairs[index];
  const absl::Status status =
      MoveToSending(*context_.device, context_.tuning, handle_.get(),
                    {own, peer.gid, peer.lid, std::min(own_end.mtu_bytes, peer.mtu_bytes), other.number, other.psn,
                     psn_, own_end.max_dest_rd_atomic, std::min(own_end.max_dest_rd_atomic, peer.max_dest_rd_atomic)});
  if (!status.ok()) return status;
  connected_ = true;
  return absl::OkStatus();
}

bool PeerQueuePair::IsInError() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr made{};
  if (!connected_ || draining_) return false;
  return ibv_query_qp(handle_.get(), &attributes, IBV_QP_STATE, &made) != 0 || attributes.qp_state == IBV_QPS_ERR ||
         attributes.qp_state == IBV_QPS_SQE;
}

ibv_send_wr& PeerQueuePair::NextRequest(size_t at, ibv_wr_opcode opcode) {
  ibv_send_wr& request = context_.requests[at];
  request = {};
  request.wr_id = Encode({WorkRequestId::Kind::kSend, id_, queue_.Next()});
  request.opcode = opcode;
  request.sg_list = context_.pieces[at].data();
  return request;
}

void PeerQueuePair::AddLocal(size_t at) {
  const LocalOperation operation = local_.front();
  local_.pop_front();
  ibv_mw* const window = operation.zone->windows[operation.window].get();
  if (operation.bind) {
    ibv_send_wr& request = NextRequest(at, IBV_WR_BIND_MW);
    const ZonePlan::Window& where = operation.zone->plan.windows[operation.window];
    request.bind_mw.mw = window;
    request.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    request.bind_mw.bind_info = {static_cast<const DeviceRegistration*>(where.registration)->region(), where.address,
                                 where.length_bytes, IBV_ACCESS_REMOTE_WRITE};
  } else {
    NextRequest(at, IBV_WR_LOCAL_INV).invalidate_rkey = window->rkey;
  }
  local_posted_.push_back({operation.zone, queue_.last()});
}

// Copies a small chunk, of which a page may be missing.
bool PeerQueuePair::CopyInline(const OrderSlot& slot, size_t at, uint64_t length_bytes) {
  std::array<iovec, kMaxPieces> from;
  uint64_t covered = 0;
  const size_t count = slot.order.stream->memory.FillIovecs(slot.order.offset_bytes + slot.cut_bytes, length_bytes,
                                                            absl::MakeSpan(from), &covered);
  const iovec to{context_.inlined.data() + at * context_.tuning.inline_bytes, length_bytes};
  if (GuardedCopy(absl::MakeSpan(from.data(), count), absl::MakeSpan(&to, 1)) != length_bytes) return false;
  context_.pieces[at][0] = {reinterpret_cast<uint64_t>(to.iov_base), static_cast<uint32_t>(length_bytes), 0};
  return true;
}

// Ends the first waiting order early: it gets no more work requests.
void PeerQueuePair::EndEarly(SendResult result, int error_number) {
  OrderPool& orders = context_.orders;
  const uint32_t index = waiting_.Pop(orders);
  if (!orders[index].begun) {
    context_.Finish(index, result, error_number);
    return;
  }
  orders[index].result = result;
  orders[index].error_number = error_number;
  posted_.Push(orders, index);
  ended_early_ = true;
}

// Cuts the next bytes of the first waiting order, for work request `at`. False: the order has ended instead.
bool PeerQueuePair::CutNext(const OrderSlot& slot, size_t at, RemoteWrite* write, bool* inlined) {
  const SendOrder& order = slot.order;
  const uint64_t left = std::min(order.length_bytes - slot.cut_bytes, context_.max_message_bytes);
  std::array<LocalPiece, kMaxPieces> local;
  const CutResult cut = CutWrite(*order.stream, context_.rail, order.offset_bytes + slot.cut_bytes, left,
                                 {local.data(), context_.max_pieces}, write);
  if (cut == CutResult::kNotReachable) {
    EndEarly(SendResult::kZoneClosed, EINVAL);
    return false;
  }
  *inlined = cut == CutResult::kOk && write->copyable && write->length_bytes <= context_.tuning.inline_bytes;
  if (cut != CutResult::kOk || (*inlined && !CopyInline(slot, at, write->length_bytes))) {
    order.stream->unreadable.store(true, std::memory_order_relaxed);
    EndEarly(SendResult::kMemoryFault, cut == CutResult::kOk ? EFAULT : EINVAL);
    return false;
  }
  if (*inlined) {
    write->pieces = 1;
    return true;
  }
  for (size_t i = 0; i < write->pieces; ++i) {
    context_.pieces[at][i] = {local[i].address, local[i].length_bytes, local[i].key};
  }
  return true;
}

// Makes the next work request of the first waiting order. False: the order has ended instead.
bool PeerQueuePair::AddWrite(size_t at) {
  OrderSlot& slot = context_.orders[waiting_.front()];
  const SendOrder& order = slot.order;
  if (order.weight > 0 && order.stream->unreadable.load(std::memory_order_relaxed)) {
    EndEarly(SendResult::kMemoryFault, EFAULT);
    return false;
  }
  RemoteWrite write;
  bool inlined = false;
  if (slot.cut_bytes < order.length_bytes && !CutNext(slot, at, &write, &inlined)) return false;
  slot.cut_bytes += write.length_bytes;
  const bool ends = slot.cut_bytes == order.length_bytes;
  const bool fence = ends && order.weight > 0;
  ibv_send_wr& request = NextRequest(at, fence ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
  request.num_sge = static_cast<int>(write.pieces);
  request.wr.rdma.remote_addr = write.address;
  request.wr.rdma.rkey = write.key;
  if (inlined) request.send_flags = IBV_SEND_INLINE;
  if (fence) {
    const ZoneRef& zone = order.stream->zone;
    request.imm_data =
        htonl(EncodeFence({zone.slot, zone.short_generation(), static_cast<uint8_t>(order.round), order.weight}));
  }
  slot.begun = true;
  slot.last_sequence = queue_.last();
  AddTo(context_.counters.tx_frames, 1);
  if (ends) posted_.Push(context_.orders, waiting_.Pop(context_.orders));
  return true;
}

int PeerQueuePair::PostChain(size_t count, size_t orders_ended) {
  for (size_t i = 0; i + 1 < count; ++i) context_.requests[i].next = &context_.requests[i + 1];
  ibv_send_wr& last = context_.requests[count - 1];
  last.next = nullptr;
  last.send_flags |= IBV_SEND_SIGNALED;
  queue_.Signal();
  // With several orders the middle request is signalled, too: half of the orders are reported while the others are
  // under way, so that the next ones come in time.
  if (orders_ended > 1) context_.requests[(count - 1) / 2].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  AddTo(context_.counters.work_requests, count);
  AddTo(context_.counters.tx_system_calls, 1);
  const int error = ibv_post_send(handle_.get(), context_.requests.data(), &bad);
  if (error == 0) return 0;
  // Requests before `bad` were taken.
  const size_t taken = bad == nullptr ? 0 : static_cast<size_t>(bad - context_.requests.data());
  if (taken <= count) queue_.Unpost(static_cast<uint32_t>(count - taken));
  return error;
}

int PeerQueuePair::Pump() {
  while (HasWork() && queue_.Free() > 0) {
    size_t count = 0;
    size_t orders_ended = 0;
    while (count < kMaxChain && queue_.Free() > 0 && HasWork()) {
      if (!local_.empty()) {
        AddLocal(count);
      } else {
        const uint32_t order = waiting_.front();
        if (!AddWrite(count)) continue;
        orders_ended += waiting_.empty() || waiting_.front() != order;
      }
      if (queue_.MustSignal()) context_.requests[count].send_flags |= IBV_SEND_SIGNALED;
      ++count;
    }
    if (count == 0) break;
    // The provider needs a window's present key while it posts the bind. The new key counts after that.
    const int error = PostChain(count, orders_ended);
    for (size_t i = 0; i < count; ++i) {
      const ibv_send_wr& request = context_.requests[i];
      if (request.opcode == IBV_WR_BIND_MW) request.bind_mw.mw->rkey = request.bind_mw.rkey;
    }
    if (error != 0) return error;
  }
  if (ended_early_) PopDone();  // all posted requests of the order may be done, so that no completion follows
  return 0;
}

// Works around a race in Soft-RoCE of Linux 6.1. The requester checks whether an invalidation must wait for requests
// before it, and notes only after the check that it waits (rxe_req.c, wait_fence). If the completer takes the last
// acknowledgement in between (rxe_comp.c, do_complete), nothing runs the queue again: no packet is under way, so no
// timer runs either.
int PeerQueuePair::WakeIfStill(bool* woken) {
  *woken = false;
  const bool waits = queue_.outstanding() > 0 && connected_ && !draining_;
  const bool still = waits && waited_before_ && queue_.completed() == completed_before_;
  waited_before_ = waits;
  completed_before_ = queue_.completed();
  if (!still || queue_.Free() == 0) return 0;
  NextRequest(0, IBV_WR_RDMA_WRITE);  // without pieces it names no memory, here or there
  *woken = true;
  return PostChain(1, 0);
}

void PeerQueuePair::Stop(JobTag job) {
  OrderList kept;
  while (!waiting_.empty()) {
    const uint32_t index = waiting_.front();
    if (context_.orders[index].order.stream->job == job) {
      EndEarly(SendResult::kStopped, 0);
    } else {
      kept.Push(context_.orders, waiting_.Pop(context_.orders));
    }
  }
  waiting_ = kept;
  if (ended_early_) PopDone();
}

void PeerQueuePair::PopDone() {
  OrderPool& orders = context_.orders;
  ended_early_ = false;
  while (!posted_.empty() && queue_.IsDone(orders[posted_.front()].last_sequence)) {
    const uint32_t index = posted_.Pop(orders);
    context_.Finish(index, orders[index].result, orders[index].error_number);
  }
  while (!local_posted_.empty() && queue_.IsDone(local_posted_.front().sequence)) {
    BoundZone* const zone = local_posted_.front().zone;
    local_posted_.pop_front();
    if (--zone->pending == 0) context_.settled.push_back(zone);
  }
}

void PeerQueuePair::Complete(uint32_t sequence) {
  if (queue_.Complete(sequence)) PopDone();
}

void PeerQueuePair::CompleteFailed(uint32_t sequence, bool earlier_done) {
  // While draining nothing is completed here, because a flush does not prove that earlier requests are done.
  if (earlier_done && !draining_ && queue_.Complete(sequence - 1)) PopDone();
}

void PeerQueuePair::BeginDrain() {
  draining_ = true;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  if (ibv_modify_qp(handle_.get(), &attributes, IBV_QP_STATE) != 0 || !connected_) {
    drained_ = true;
    return;
  }
  ibv_send_wr marker{};
  marker.wr_id = Encode({WorkRequestId::Kind::kDrain, id_, 0});
  marker.opcode = IBV_WR_RDMA_WRITE;
  marker.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  drained_ = ibv_post_send(handle_.get(), &marker, &bad) != 0;
}

void PeerQueuePair::FailOrders(bool stopped, int error_number) {
  for (OrderList* list : {&posted_, &waiting_}) {
    while (!list->empty()) {
      const uint32_t index = list->Pop(context_.orders);
      const SendResult failed = context_.orders[index].begun ? SendResult::kRailFailed : SendResult::kNotSent;
      context_.Finish(index, stopped ? SendResult::kStopped : failed, error_number);
    }
  }
}

}  // namespace railsd::verbs
