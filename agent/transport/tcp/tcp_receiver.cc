#include "agent/transport/tcp/tcp_receiver.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace railsd::tcp {

// Leaves the zone. Tells the engine if the zone is closed and this rail was the last inside.
void TcpReceiver::LeaveZone() {
  if (!context_->options.zones->Leave(header_.zone)) return;
  context_->events.Push({.kind = RailEvent::Kind::kZoneQuiet, .zone = header_.zone});
}

// A whole header is in edge_. False when it breaks the protocol.
bool TcpReceiver::BeginFrame() {
  if (!DecodeHeader(edge_.data() + kTrailerBytes, &header_)) return false;
  if (header_.generation != generation_ || header_.number != frames_) return false;
  if (header_.length_bytes > kMaxFrameBytes) return false;
  FrameStatus fence_status = FrameStatus::kZoneClosed;
  const ReceiveZone* const zone = EnterZone();
  if (zone != nullptr) {
    const uint64_t zone_bytes = zone->memory.total_bytes();
    const bool fits = zone->peer == peer_ && header_.length_bytes <= zone_bytes &&
                      header_.offset_bytes <= zone_bytes - header_.length_bytes;
    if (fits && header_.is_fence()) fence_status = TakeFence(*zone);
    LeaveZone();
    if (!fits) return false;
  }
  if (header_.is_fence()) {
    EndFrame(fence_status);
    hurry_ = true;
    edge_have_ = kTrailerBytes;  // the next header follows at once
  } else {
    phase_ = Phase::kPayload;
    mode_ = zone != nullptr ? Mode::kLand : Mode::kDrain;
    payload_bytes_ = 0;
    edge_have_ = 0;
  }
  return true;
}

FrameStatus TcpReceiver::TakeFence(const ReceiveZone& zone) {
  if (zone.unwritable.load(std::memory_order_relaxed)) return FrameStatus::kZoneFault;
  context_->events.Push({.kind = RailEvent::Kind::kFence,
                         .peer = peer_,
                         .zone = header_.zone,
                         .connection = generation_,
                         .weight = header_.weight,
                         .round = header_.round});
  AddTo(context_->counters.rx_fences, 1);
  return FrameStatus::kOk;
}

void TcpReceiver::OnFault() {
  mode_ = Mode::kFault;
  context_->events.Push({.kind = RailEvent::Kind::kReceiveFault,
                         .peer = peer_,
                         .zone = header_.zone,
                         .offset_bytes = header_.offset_bytes,
                         .length_bytes = header_.length_bytes});
}

// A whole trailer is in edge_. False when it breaks the protocol.
bool TcpReceiver::EndData() {
  FrameTrailer trailer;
  if (!DecodeTrailer(edge_.data(), &trailer) || trailer.number != header_.number) return false;
  bool landed = false;
  if (mode_ == Mode::kLand && trailer.status == FrameStatus::kOk) {
    const ReceiveZone* const zone = EnterZone();
    landed = zone != nullptr;
    if (landed) {
      zone->AddLanded(context_->options.rail.value(), header_.offset_bytes, header_.length_bytes);
      LeaveZone();
    } else {
      mode_ = Mode::kDrain;
    }
  }
  if (landed) {
    AddTo(context_->counters.rx_payload_bytes, header_.length_bytes);
    AddTo(context_->counters.rx_chunks, 1);
  } else {
    AddTo(context_->counters.rx_discarded_bytes, header_.length_bytes);
    hurry_ = true;
  }
  EndFrame(mode_ == Mode::kDrain   ? FrameStatus::kZoneClosed
           : mode_ == Mode::kFault ? FrameStatus::kZoneFault
                                   : FrameStatus::kOk);
  return true;
}

void TcpReceiver::EndFrame(FrameStatus status) {
  if (status != FrameStatus::kOk) statuses_[status_count_++] = {header_.number, status};
  ++frames_;
  untold_bytes_ += header_.length_bytes;
  phase_ = Phase::kHeader;
}

// Memory for the next receive: the rest of the payload, then the trailer and the header behind it.
size_t TcpReceiver::BuildIovecs(const ReceiveZone* zone, uint64_t* bytes) {
  size_t count = 0;
  *bytes = 0;
  if (zone != nullptr) {
    const uint64_t left = header_.length_bytes - payload_bytes_;
    count = zone->memory.FillIovecs(header_.offset_bytes + payload_bytes_, left,
                                    absl::MakeSpan(context_->iovecs).first(kMaxIovecs - 1), bytes);
    if (*bytes < left) return count;
  }
  const size_t room = edge_.size() - edge_have_;
  context_->iovecs[count++] = {edge_.data() + edge_have_, room};
  *bytes += room;
  return count;
}

// Discards payload that no zone takes.
ssize_t TcpReceiver::Drain(int socket, uint64_t* wanted_bytes) {
  *wanted_bytes = header_.length_bytes - payload_bytes_;
  if (!context_->scratch.empty()) {
    *wanted_bytes = std::min<uint64_t>(*wanted_bytes, context_->scratch.size());
    return ::recv(socket, context_->scratch.data(), *wanted_bytes, MSG_DONTWAIT);
  }
  // TCP drops the bytes without a copy. A raw system call, because sanitizers take the buffer of recv(), which is null
  // here, for written.
  return ::syscall(SYS_recvfrom, socket, nullptr, *wanted_bytes, MSG_DONTWAIT | MSG_TRUNC, nullptr, nullptr);
}

ssize_t TcpReceiver::ReceiveOnce(int socket, uint64_t* wanted_bytes) {
  AddTo(context_->counters.rx_system_calls, 1);
  const ReceiveZone* zone = nullptr;
  if (phase_ == Phase::kPayload) {
    if (mode_ == Mode::kLand) zone = EnterZone();
    if (mode_ == Mode::kLand && zone == nullptr) mode_ = Mode::kDrain;  // closed meanwhile
    if (zone == nullptr) return Drain(socket, wanted_bytes);
  }
  msghdr message{};
  message.msg_iov = context_->iovecs.data();
  message.msg_iovlen = BuildIovecs(zone, wanted_bytes);
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT);
  const int error = got < 0 ? errno : 0;
  if (zone != nullptr) {
    if (error == EFAULT) zone->unwritable.store(true, std::memory_order_relaxed);
    LeaveZone();
  }
  errno = error;
  return got;
}

// `bytes` arrived where the last ReceiveOnce() wanted them. False when they break the protocol.
bool TcpReceiver::OnBytes(uint64_t bytes) {
  if (phase_ == Phase::kPayload) {
    const uint64_t take = std::min<uint64_t>(bytes, header_.length_bytes - payload_bytes_);
    payload_bytes_ += take;
    bytes -= take;
    if (payload_bytes_ == header_.length_bytes) phase_ = Phase::kTrailer;
  }
  edge_have_ += bytes;
  if (phase_ == Phase::kTrailer && edge_have_ >= kTrailerBytes && !EndData()) return false;
  return phase_ != Phase::kHeader || edge_have_ < edge_.size() || BeginFrame();
}

TcpReceiver::Outcome TcpReceiver::Receive(int socket, uint64_t budget_bytes, int* error_number) {
  uint64_t charged = 0;
  const uint64_t last_event = context_->events.pushed() + kEventsPerTurn;
  while (charged < budget_bytes && context_->events.pushed() < last_event) {
    // One receive ends at most the frame under way and a fence behind it.
    if (!context_->events.CanReceive() || status_count_ + 2 > kMaxStatuses) return Outcome::kPaused;
    uint64_t wanted = 0;
    const ssize_t got = ReceiveOnce(socket, &wanted);
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
    const uint64_t frames_before = frames_;
    if (!OnBytes(static_cast<uint64_t>(got))) return Outcome::kProtocol;
    charged += std::max(static_cast<uint64_t>(got), kLeastCharge * std::max<uint64_t>(1, frames_ - frames_before));
    // Fewer bytes than wanted: the socket is empty, or the next page is bad, which the next call will tell. With TLS
    // the socket is read until it is empty, because no edge reports bytes that are left (TcpRail::ReadEvents()).
    if (static_cast<uint64_t>(got) < wanted && context_->scratch.empty()) return Outcome::kDrained;
  }
  return Outcome::kMore;
}

int TcpReceiver::SendAcks(int socket) {
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
      untold_bytes_ = 0;
    }
    AddTo(context_->counters.tx_system_calls, 1);
    const ssize_t sent =
        ::send(socket, acks_.data() + acks_begin_, acks_end_ - acks_begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EWOULDBLOCK ? EAGAIN : errno;
    }
    acks_begin_ += static_cast<size_t>(sent);
  }
  return 0;
}

}  // namespace railsd::tcp
