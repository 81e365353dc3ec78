#include "agent/transport/tcp/tcp_receiver.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace railsd::tcp {

// A whole header is in edge_.
TcpReceiver::Outcome TcpReceiver::BeginFrame() {
  if (!DecodeHeader(edge_.data() + kTrailerBytes, &header_)) return Outcome::kProtocol;
  if (header_.generation != generation_ || header_.number != frames_) return Outcome::kProtocol;
  if (header_.length_bytes == 0 || header_.length_bytes > kMaxFrameBytes) return Outcome::kProtocol;
  phase_ = Phase::kPayload;
  mode_ = Mode::kLook;
  payload_bytes_ = 0;
  parked_at_ = 0;
  edge_have_ = 0;
  return LookUp();
}

// kMore when the frame has somewhere to go.
TcpReceiver::Outcome TcpReceiver::LookUp() {
  const auto found = context_->zones.find({header_.zone.slot, header_.zone.generation});
  if (found == context_->zones.end()) {
    if (parked_at_ == 0) parked_at_ = context_->poll_number;
    if (parked_at_ == context_->poll_number) {
      context_->parked = true;
      return Outcome::kParked;
    }
    mode_ = Mode::kDrain;
    return Outcome::kMore;
  }
  const ReceiveSet& set = *found->second;
  if (set.peer != peer_) return Outcome::kProtocol;
  if (!set.gate.Enter()) {  // closed, but the command has not been seen yet
    mode_ = Mode::kDrain;
    return Outcome::kMore;
  }
  const uint64_t zone_bytes = header_.zone.index < set.zones.size() ? set.zones[header_.zone.index].total_bytes() : 0;
  set.gate.Leave();
  if (header_.length_bytes > zone_bytes || header_.offset_bytes > zone_bytes - header_.length_bytes) {
    return Outcome::kProtocol;
  }
  set_ = &set;
  mode_ = Mode::kLand;
  return Outcome::kMore;
}

void TcpReceiver::Close(const ReceiveSet* set) {
  if (mode_ != Mode::kLand || set_ != set) return;
  set_ = nullptr;
  if (phase_ != Phase::kHeader) mode_ = Mode::kDrain;
}

void TcpReceiver::OnFault() {
  mode_ = Mode::kFault;
  set_ = nullptr;
  RailEvent event;
  event.kind = RailEvent::Kind::kReceiveFault;
  event.peer = peer_;
  event.error_number = EFAULT;
  event.zone = header_.zone;
  event.offset_bytes = header_.offset_bytes;
  event.length_bytes = header_.length_bytes;
  context_->events.Push(event);
}

// A whole trailer is in edge_. False when it breaks the protocol.
bool TcpReceiver::EndFrame() {
  FrameTrailer trailer;
  if (!DecodeTrailer(edge_.data(), &trailer) || trailer.number != header_.number) return false;
  if (mode_ == Mode::kLand && trailer.status == FrameStatus::kOk) {
    RailEvent event;
    event.kind = RailEvent::Kind::kReceived;
    event.peer = peer_;
    event.zone = header_.zone;
    event.offset_bytes = header_.offset_bytes;
    event.length_bytes = header_.length_bytes;
    event.last = set_->left_bytes.fetch_sub(header_.length_bytes, std::memory_order_relaxed) == header_.length_bytes;
    hurry_ = hurry_ || event.last;
    context_->events.Push(event);
    Context::Add(context_->counters.rx_payload_bytes, header_.length_bytes);
    Context::Add(context_->counters.rx_chunks, 1);
  } else {
    hurry_ = true;
    Context::Add(context_->counters.rx_discarded_bytes, header_.length_bytes);
    if (mode_ == Mode::kDrain) statuses_[status_count_++] = {header_.number, FrameStatus::kZoneClosed};
    if (mode_ == Mode::kFault) statuses_[status_count_++] = {header_.number, FrameStatus::kZoneFault};
  }
  ++frames_;
  phase_ = Phase::kHeader;
  set_ = nullptr;
  return true;
}

// What the next receive fills: the rest of the payload, then the trailer and the header behind it.
size_t TcpReceiver::BuildIovecs(uint64_t* bytes) {
  size_t count = 0;
  *bytes = 0;
  if (phase_ == Phase::kPayload) {
    const uint64_t left = header_.length_bytes - payload_bytes_;
    count = set_->zones[header_.zone.index].FillIovecs(header_.offset_bytes + payload_bytes_, left,
                                                       absl::MakeSpan(context_->iovecs).first(kMaxIovecs - 1), bytes);
    if (*bytes < left) return count;
  }
  const size_t room = edge_.size() - edge_have_;
  context_->iovecs[count++] = {edge_.data() + edge_have_, room};
  *bytes += room;
  return count;
}

ssize_t TcpReceiver::ReceiveOnce(int bulk, uint64_t* wanted_bytes) {
  Context::Add(context_->counters.rx_system_calls, 1);
  if (phase_ == Phase::kPayload && mode_ != Mode::kLand) {
    *wanted_bytes = header_.length_bytes - payload_bytes_;
    if (!context_->scratch.empty()) {
      *wanted_bytes = std::min<uint64_t>(*wanted_bytes, context_->scratch.size());
      return ::recv(bulk, context_->scratch.data(), *wanted_bytes, MSG_DONTWAIT);
    }
    // TCP drops the bytes without a copy. Not recv(): sanitizers take its buffer, which does not exist here, for
    // written.
    return ::syscall(SYS_recvfrom, bulk, nullptr, *wanted_bytes, MSG_DONTWAIT | MSG_TRUNC, nullptr, nullptr);
  }
  const bool lands = phase_ == Phase::kPayload;
  if (lands && !set_->gate.Enter()) {  // closed, but the command has not been seen yet
    Close(set_);
    return ReceiveOnce(bulk, wanted_bytes);
  }
  msghdr message{};
  message.msg_iov = context_->iovecs.data();
  message.msg_iovlen = BuildIovecs(wanted_bytes);
  const ssize_t got = ::recvmsg(bulk, &message, MSG_DONTWAIT);
  if (lands) set_->gate.Leave();
  return got;
}

// `bytes` arrived where the last ReceiveOnce() wanted them. kMore unless the frame that begins cannot go on.
TcpReceiver::Outcome TcpReceiver::OnBytes(uint64_t bytes) {
  if (phase_ == Phase::kPayload) {
    const uint64_t take = std::min<uint64_t>(bytes, header_.length_bytes - payload_bytes_);
    payload_bytes_ += take;
    bytes -= take;
    if (payload_bytes_ == header_.length_bytes) phase_ = Phase::kTrailer;
  }
  edge_have_ += bytes;
  if (phase_ == Phase::kTrailer && edge_have_ >= kTrailerBytes && !EndFrame()) return Outcome::kProtocol;
  if (phase_ == Phase::kHeader && edge_have_ == edge_.size()) return BeginFrame();
  return Outcome::kMore;
}

TcpReceiver::Outcome TcpReceiver::Receive(int bulk, uint64_t budget_bytes, int* error_number) {
  uint64_t received = 0;
  while (received < budget_bytes) {
    // One receive ends at most one frame, and that may take one event and one status.
    if (!context_->events.CanReceive() || status_count_ == kMaxStatuses) return Outcome::kPaused;
    if (phase_ == Phase::kPayload && mode_ == Mode::kLook) {
      if (const Outcome found = LookUp(); found != Outcome::kMore) return found;
    }
    uint64_t wanted = 0;
    const ssize_t got = ReceiveOnce(bulk, &wanted);
    if (got == 0) {
      *error_number = ECONNRESET;
      return Outcome::kClosed;
    }
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Outcome::kDrained;
      if (errno == EFAULT && mode_ == Mode::kLand && phase_ == Phase::kPayload) {
        OnFault();
        continue;
      }
      *error_number = errno;
      return Outcome::kClosed;
    }
    received += static_cast<uint64_t>(got);
    if (const Outcome next = OnBytes(static_cast<uint64_t>(got)); next != Outcome::kMore) return next;
    // Fewer bytes than wanted: the socket is empty, or the next page is bad, which the next call will tell.
    // With records there is no second look at what is left (TcpRail::ReadEvents()), so that is asked at once.
    if (static_cast<uint64_t>(got) < wanted && context_->scratch.empty()) return Outcome::kDrained;
  }
  return Outcome::kMore;
}

int TcpReceiver::SendAcks(int small) {
  while (HasAcks()) {
    if (acks_begin_ == acks_end_) {
      acks_begin_ = acks_end_ = 0;
      const auto add = [&](const AckRecord& record) {
        EncodeAck(record, acks_.data() + acks_end_);
        acks_end_ += kAckBytes;
      };
      for (size_t i = 0; i < status_count_; ++i) add({false, statuses_[i].status, generation_, statuses_[i].number});
      status_count_ = 0;
      hurry_ = false;
      add({true, FrameStatus::kOk, generation_, frames_});
      told_ = frames_;
    }
    Context::Add(context_->counters.tx_system_calls, 1);
    const ssize_t sent =
        ::send(small, acks_.data() + acks_begin_, acks_end_ - acks_begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EWOULDBLOCK ? EAGAIN : errno;
    }
    acks_begin_ += static_cast<size_t>(sent);
  }
  return 0;
}

}  // namespace railsd::tcp
