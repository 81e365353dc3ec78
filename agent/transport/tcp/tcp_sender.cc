#include "agent/transport/tcp/tcp_sender.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace railsd::tcp {
namespace {

// Stands in for payload that cannot or must not be read any more.
constexpr size_t kZeroBytes = 64 << 10;
alignas(4096) const std::byte kZeros[kZeroBytes] = {};

}  // namespace

void TcpSender::Start(uint64_t generation, uint32_t max_frame_bytes) {
  generation_ = generation;
  frame_limit_bytes_ = static_cast<uint32_t>(std::min<uint64_t>(context_->options.frame_bytes, max_frame_bytes));
  acked_ = sent_ = begun_ = wire_bytes_ = 0;
  careful_ = false;
  ack_have_ = 0;
}

void TcpSender::Add(const SendOrder& order) {
  if (order.weight != 0 && order.stream->unreadable.load(std::memory_order_relaxed)) {
    return FinishOrder(context_->events, context_->counters, order, SendResult::kMemoryFault, EFAULT);
  }
  const uint32_t index = context_->orders.Take(order);
  context_->orders[index].previous = last_;
  if (last_ != kNoOrder) context_->orders[last_].next = index;
  last_ = index;
  if (first_ == kNoOrder) first_ = index;
  if (uncut_ == kNoOrder) uncut_ = index;
}

bool TcpSender::HasWork() const {
  return begun_ > sent_ || (uncut_ != kNoOrder && begun_ - acked_ < kMaxFramesInFlight);
}

void TcpSender::Unlink(uint32_t index) {
  auto& orders = context_->orders;
  OrderSlot& slot = orders[index];
  if (uncut_ == index) uncut_ = slot.next;
  (slot.previous == kNoOrder ? first_ : orders[slot.previous].next) = slot.next;
  (slot.next == kNoOrder ? last_ : orders[slot.next].previous) = slot.previous;
}

// Ends an order at once, even with frames under way. Frames in the socket lose their order, and a half-sent one is
// poisoned, so that nothing reads the stream's memory after this.
void TcpSender::End(uint32_t index, SendResult result, int error_number) {
  OrderSlot& slot = context_->orders[index];
  if (slot.frames_in_flight > 0) {
    for (uint64_t number = acked_; number < begun_; ++number) {
      Frame& frame = FrameAt(number);
      if (frame.order != index) continue;
      frame.order = kNoOrder;
      // A frame whose payload is wholly sent needs no poison, and a half-sent trailer must not change.
      if (number == sent_ && wire_bytes_ < kHeaderBytes + frame.header.length_bytes) {
        frame.status = FrameStatus::kPoisoned;
      }
    }
  }
  FinishOrder(context_->events, context_->counters, slot.order, result, error_number);
  Unlink(index);
  context_->orders.Free(index);
}

template <typename Wanted>
void TcpSender::EndAll(SendResult result, int error_number, Wanted wanted) {
  for (uint32_t index = first_; index != kNoOrder;) {
    const uint32_t next = context_->orders[index].next;
    if (wanted(context_->orders[index])) End(index, result, error_number);
    index = next;
  }
}

void TcpSender::Stop(JobTag job) {
  EndAll(SendResult::kStopped, 0, [&](const OrderSlot& slot) { return slot.order.stream->job == job; });
}

void TcpSender::StopAll() {
  EndAll(SendResult::kStopped, 0, [](const OrderSlot&) { return true; });
}

void TcpSender::Break(int error_number) {
  EndAll(SendResult::kRailFailed, error_number, [](const OrderSlot& slot) { return slot.begun(); });
  EndAll(SendResult::kNotSent, error_number, [](const OrderSlot&) { return true; });
  acked_ = sent_ = begun_ = wire_bytes_ = 0;
}

void TcpSender::AddBytes(const void* data, size_t length) {
  context_->iovecs[batch_.iovecs++] = {const_cast<void*>(data), length};
  batch_.bytes += length;
}

// Adds payload from `skip_bytes` on. False when the iovecs did not suffice.
bool TcpSender::AddPayload(const Frame& frame, uint64_t skip_bytes) {
  uint64_t left = frame.header.length_bytes - skip_bytes;
  const size_t room = kMaxIovecs - 1 - batch_.iovecs;  // one is kept for the trailer
  if (frame.status == FrameStatus::kPoisoned) {
    for (size_t used = 0; left > 0 && used < room; ++used) {
      const size_t part = std::min<uint64_t>(left, kZeroBytes);
      AddBytes(kZeros, part);
      left -= part;
    }
    return left == 0;
  }
  uint64_t covered = 0;
  const MemoryRanges& memory = context_->orders[frame.order].order.stream->memory;
  const size_t used = memory.FillIovecs(frame.header.offset_bytes + skip_bytes, left,
                                        absl::MakeSpan(context_->iovecs).subspan(batch_.iovecs, room), &covered);
  batch_.iovecs += used;
  batch_.bytes += covered;
  return covered == left;
}

// Adds a frame from its wire byte `skip_bytes` on, with the header and trailer of `slot`. False when it did not fit
// whole, or only one piece was wanted.
bool TcpSender::AddFrame(const Frame& frame, uint64_t skip_bytes, size_t slot) {
  if (skip_bytes < kHeaderBytes) {
    auto& header = batch_.headers[slot];
    EncodeHeader(frame.header, header.data());
    AddBytes(header.data() + skip_bytes, kHeaderBytes - skip_bytes);
    skip_bytes = kHeaderBytes;
    if (careful_) return false;
  }
  if (frame.header.is_fence()) return true;
  const uint64_t trailer_at = kHeaderBytes + frame.header.length_bytes;
  if (skip_bytes < trailer_at) {
    if (!AddPayload(frame, skip_bytes - kHeaderBytes) || careful_) return false;
    skip_bytes = trailer_at;
  }
  auto& trailer = batch_.trailers[slot];
  EncodeTrailer(
      {frame.header.number, frame.status == FrameStatus::kPoisoned ? FrameStatus::kPoisoned : FrameStatus::kOk},
      trailer.data());
  AddBytes(trailer.data() + (skip_bytes - trailer_at), kTrailerBytes - (skip_bytes - trailer_at));
  return !careful_;
}

// Plans further frames of the orders. Commit() makes a planned frame real when the socket has taken its first byte.
void TcpSender::PlanFrames(uint64_t budget_bytes) {
  uint32_t index = uncut_;
  uint64_t cut = index == kNoOrder ? 0 : context_->orders[index].cut_bytes;
  uint64_t number = begun_;
  while (index != kNoOrder && batch_.bytes < budget_bytes && batch_.frames < kMaxFramesPerCall &&
         number - acked_ < kMaxFramesInFlight && batch_.iovecs + 3 <= kMaxIovecs) {
    const OrderSlot& slot = context_->orders[index];
    const SendOrder& order = slot.order;
    const bool data = cut < order.length_bytes;
    if (!slot.refused) {
      Frame& frame = batch_.planned[batch_.frames++];
      frame = {.header = {.generation = generation_, .number = number++, .zone = order.stream->zone}, .order = index};
      if (data) {
        frame.header.offset_bytes = order.offset_bytes + cut;
        frame.header.length_bytes =
            static_cast<uint32_t>(std::min<uint64_t>(frame_limit_bytes_, order.length_bytes - cut));
        cut += frame.header.length_bytes;
      } else {
        frame.header.weight = order.weight;
        frame.header.round = order.round;
      }
      if (!AddFrame(frame, 0, batch_.frames)) return;
    }
    const bool more = data && (cut < order.length_bytes || order.weight != 0);
    if (more && !slot.refused) continue;
    index = slot.next;
    cut = 0;
  }
}

void TcpSender::BuildBatch(uint64_t budget_bytes) {
  batch_.iovecs = 0;
  batch_.bytes = 0;
  batch_.frames = 0;
  if (begun_ > sent_ && !AddFrame(FrameAt(sent_), wire_bytes_, 0)) return;
  PlanFrames(budget_bytes);
}

// The socket took `bytes` of the batch.
void TcpSender::Commit(uint64_t bytes) {
  const auto advance = [&](const Frame& frame) {
    const uint64_t whole = frame.header.wire_bytes();
    const uint64_t take = std::min(bytes, whole - wire_bytes_);
    wire_bytes_ += take;
    bytes -= take;
    if (wire_bytes_ < whole) return;
    wire_bytes_ = 0;
    ++sent_;
    careful_ = false;
    AddTo(context_->counters.tx_frames, 1);
  };
  if (begun_ > sent_) advance(FrameAt(sent_));
  for (size_t i = 0; i < batch_.frames && bytes > 0; ++i) {
    const Frame& frame = FrameAt(begun_++) = batch_.planned[i];
    OrderSlot& slot = context_->orders[frame.order];
    slot.cut_bytes += frame.header.length_bytes;
    slot.fence_cut = frame.header.is_fence();
    ++slot.frames_in_flight;
    while (uncut_ != frame.order) uncut_ = context_->orders[uncut_].next;  // past refused ones
    if (slot.wholly_cut()) uncut_ = slot.next;
    advance(frame);
  }
}

// Handles EFAULT of sendmsg(). True when something can be sent now.
bool TcpSender::OnFault() {
  if (!careful_) {
    careful_ = true;  // header, payload and trailer in calls of their own, to find the bad page
    return true;
  }
  // Headers, trailers and zeros are our own memory, so the bad page is in the payload of the half-sent frame.
  if (begun_ == sent_ || FrameAt(sent_).order == kNoOrder) return false;
  const uint32_t index = FrameAt(sent_).order;
  const SendStream* const stream = context_->orders[index].order.stream;
  End(index, SendResult::kMemoryFault, EFAULT);
  // Fences of the stream end, too, because they would say that these bytes are in the receiver's memory.
  stream->unreadable.store(true, std::memory_order_relaxed);
  EndAll(SendResult::kMemoryFault, EFAULT, [&](const OrderSlot& slot) {
    return slot.order.stream == stream && slot.order.weight != 0 && !slot.fence_cut;
  });
  return true;
}

TcpSender::Outcome TcpSender::Send(int socket, uint64_t budget_bytes, int* error_number) {
  uint64_t charged = 0;
  while (charged < budget_bytes) {
    BuildBatch(budget_bytes - charged);
    if (batch_.bytes == 0) return Outcome::kIdle;
    msghdr message{};
    message.msg_iov = context_->iovecs.data();
    message.msg_iovlen = batch_.iovecs;
    AddTo(context_->counters.tx_system_calls, 1);
    const ssize_t taken = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken >= 0) {
      const uint64_t begun_before = begun_;
      Commit(static_cast<uint64_t>(taken));
      charged += std::max(static_cast<uint64_t>(taken), kLeastCharge * std::max<uint64_t>(1, begun_ - begun_before));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Outcome::kBlocked;
    if (errno == EFAULT && OnFault()) continue;
    *error_number = errno;
    return Outcome::kFailed;
  }
  return HasWork() ? Outcome::kMore : Outcome::kIdle;
}

// Settles an acknowledged frame. Ends its order if that was the order's last frame, or if the order was refused and no
// other frame of it is under way.
void TcpSender::SettleFrame(Frame& frame) {
  if (frame.order == kNoOrder) return;
  const uint32_t index = frame.order;
  OrderSlot& slot = context_->orders[index];
  frame.order = kNoOrder;
  --slot.frames_in_flight;
  if (frame.status != FrameStatus::kOk) slot.refused = true;
  if (slot.frames_in_flight > 0 || (!slot.refused && !slot.wholly_cut())) return;
  End(index, slot.refused ? SendResult::kZoneClosed : SendResult::kAcknowledged, 0);
}

bool TcpSender::OnAck(const AckRecord& ack) {
  if (ack.generation != generation_) return false;
  if (!ack.cumulative) {
    if (ack.number < acked_ || ack.number >= sent_) return false;
    FrameAt(ack.number).status = ack.status;
    return true;
  }
  if (ack.number < acked_ || ack.number > sent_) return false;
  while (acked_ < ack.number) SettleFrame(FrameAt(acked_++));
  return true;
}

bool TcpSender::OnAckBytes(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t take = std::min(bytes.size(), kAckBytes - ack_have_);
    std::memcpy(ack_buffer_.data() + ack_have_, bytes.data(), take);
    ack_have_ += take;
    bytes.remove_prefix(take);
    if (ack_have_ < kAckBytes) return true;
    ack_have_ = 0;
    AckRecord ack;
    if (!DecodeAck(ack_buffer_.data(), &ack) || !OnAck(ack)) return false;
  }
  return true;
}

}  // namespace railsd::tcp
