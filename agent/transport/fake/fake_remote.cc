// FakeTransport: writing into remote memory.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/fake/fake_transport.h"

namespace railsd {
namespace {

class FakeRegistration final : public Registration {
 public:
  explicit FakeRegistration(std::shared_ptr<FakeRegistrar> registrar) : registrar_(std::move(registrar)) {
    ++registrar_->alive;
  }
  ~FakeRegistration() override { --registrar_->alive; }
  uint32_t local_key() const override { return 1; }

 private:
  const std::shared_ptr<FakeRegistrar> registrar_;
};

// Copies within this process by a system call that reports a bad page; 0, or -1 for one.
int Copy(std::byte* from, uint64_t to, uint64_t length) {
  const iovec local{from, length};
  const iovec remote{reinterpret_cast<void*>(to), length};  // NOLINT(performance-no-int-to-ptr): as a device has it
  return ::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(length) ? 0 : -1;
}

bool IsReadable(std::byte* address) {
  std::byte byte{};
  const iovec local{&byte, 1}, remote{address, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Registration>> FakeRegistrar::Register(const Segment& segment) {
  if (refuses) {
    return absl::ResourceExhaustedError(
        absl::StrCat("segment ", segment.id().value(), " cannot be registered on ", address_, ": refused by the test"));
  }
  return std::make_unique<FakeRegistration>(shared_from_this());
}

void FakeTransport::OpenRemote(const ReceiveSet& set) {
  RailEvent event;
  event.kind = RailEvent::Kind::kZonesOpened;
  event.peer = set.peer;
  event.zone.slot = set.slot;
  event.zone.generation = set.generation;
  // As over verbs, where a window is bound by the connection.
  const auto link = links_.find(set.peer);
  const bool up = link != links_.end() && link->second.up;
  event.error_number = open_error_ == 0 && !up ? ENOTCONN : open_error_;
  for (uint32_t zone = 0; zone < set.zones.size() && event.error_number == 0; ++zone) {
    for (const MemoryRanges::Piece& piece : set.zones[zone].pieces()) {
      uint32_t key = 0;
      while (key == 0 || keys_.contains(key)) key = static_cast<uint32_t>(random_());
      keys_[key] = {set.peer, reinterpret_cast<uintptr_t>(piece.address), piece.length_bytes, set.slot, set.generation};
      set.keys[options_.rail.value()].push_back(key);
      if (options_.weak_zones) CountUp(counters_.weak_zones, 1);
    }
    if (set.zones[zone].total_bytes() == 0) continue;
    const FenceSlot fence = set.fences[zone];
    fences_[fence.slot] = {set.peer, fence.generation, {set.slot, set.generation, zone}};
  }
  Push(event);
}

void FakeTransport::DropKeys(PeerIndex peer) {
  if (options_.weak_zones) return;  // those are the segments' own
  std::erase_if(keys_, [&](const auto& key) { return key.second.peer == peer; });
}

void FakeTransport::CloseRemote(const ReceiveSet& set, bool writers_stopped) {
  std::erase_if(keys_, [&](const auto& entry) {
    return entry.second.slot == set.slot && entry.second.generation == set.generation;
  });
  std::erase_if(fences_, [&](const auto& entry) {
    return entry.second.zone.slot == set.slot && entry.second.zone.generation == set.generation;
  });
  if (writers_stopped || !options_.weak_zones) return;
  for (FakeTransport* sender : fabric_->transports) {
    for (auto& [index, link] : sender->links_) {
      auto back = links_.find(set.peer);
      if (link.peer.address != address_ || back == links_.end()) continue;
      if (back->second.peer.address == sender->address_) Break(*sender, link, set.peer, ECONNABORTED, /*blame=*/false);
    }
  }
}

void FakeTransport::Break(FakeTransport& sender, Link& link, PeerIndex from, int error_number, bool blame) {
  if (blame) {
    CountUp(counters_.protocol_errors, 1);
    RailEvent event;
    event.kind = RailEvent::Kind::kBadPeer;
    event.peer = from;
    event.error_number = error_number;
    Push(event);
  }
  CountUp(counters_.endpoint_errors, 1);
  CountUp(sender.counters_.endpoint_errors, 1);
  sender.Disconnect(link, error_number);
  auto back = links_.find(from);
  if (back != links_.end()) Disconnect(back->second, error_number);
}

bool FakeTransport::WritePart(FakeTransport& sender, Link& link, PeerIndex from, uint64_t* budget_bytes) {
  Pending& pending = link.orders.front();
  const SendOrder order = pending.order;
  const uint64_t at = order.offset_bytes + pending.done_bytes;
  const RemoteZone& remote = order.flow->remote;
  const auto piece = std::find_if(remote.pieces.begin(), remote.pieces.end(), [&](const RemoteZone::Piece& p) {
    return at >= p.offset_bytes && at - p.offset_bytes < p.length_bytes;
  });
  const size_t rail = options_.rail.value();
  if (piece == remote.pieces.end() || piece->first_key + rail >= remote.keys.size()) {
    Break(sender, link, from, EINVAL, /*blame=*/false);
    return false;
  }
  const MemoryRanges::Piece& local = *order.flow->memory.PieceAt(at);
  if (local.segment->registration(rail) == nullptr) {
    Break(sender, link, from, EACCES, /*blame=*/false);
    return false;
  }
  const uint64_t into_piece = at - piece->offset_bytes, into_local = at - local.flow_offset_bytes;
  const uint64_t want = std::min({*budget_bytes, order.length_bytes - pending.done_bytes,
                                  piece->length_bytes - into_piece, local.length_bytes - into_local});
  const uint64_t to = piece->address + into_piece;
  const auto key = keys_.find(remote.keys[piece->first_key + rail]);
  const bool allowed = key != keys_.end() && key->second.peer == from && to >= key->second.address &&
                       want <= key->second.length_bytes && to - key->second.address <= key->second.length_bytes - want;
  if (!allowed) {
    Break(sender, link, from, EACCES, /*blame=*/true);
    return false;
  }
  if (Copy(local.address + into_local, to, want) != 0) {
    if (IsReadable(local.address + into_local)) {
      Break(sender, link, from, EFAULT, /*blame=*/false);
    } else {
      link.orders.pop_front();
      sender.FinishSend(order, SendResult::kMemoryFault, EFAULT);
    }
    return false;
  }
  pending.done_bytes += want;
  *budget_bytes -= want;
  return pending.done_bytes == order.length_bytes;
}

FakeTransport::Step FakeTransport::ReceiveRemote(FakeTransport& sender, Link& link, uint64_t* budget_bytes) {
  if (!link.up || link.orders.empty()) return Step::kNothing;
  const SendOrder order = link.orders.front().order;
  PeerIndex from;
  for (const auto& [index, back] : links_) {
    if (back.peer.address == sender.address_) from = index;
  }
  if (link.orders.front().done_bytes < order.length_bytes) {
    if (*budget_bytes == 0) return Step::kNothing;
    if (!WritePart(sender, link, from, budget_bytes)) return Step::kProgress;
  }
  if (sender.fault_.result != SendResult::kAcknowledged && sender.fault_.orders_before-- == 0) {
    const auto fault = std::exchange(sender.fault_, {});
    if (fault.result == SendResult::kRailFailed) {
      Break(sender, link, from, fault.error_number, /*blame=*/false);
    } else {
      link.orders.pop_front();
      sender.FinishSend(order, fault.result, fault.error_number);
    }
    return Step::kProgress;
  }
  if (order.fences > 0) {
    const FenceSlot fence = order.flow->remote.fence;
    auto open = fences_.find(fence.slot);
    if (open == fences_.end() || open->second.generation != fence.generation || open->second.peer != from) {
      Break(sender, link, from, EPROTO, /*blame=*/true);
      return Step::kProgress;
    }
    RailEvent event;
    event.kind = RailEvent::Kind::kFence;
    event.peer = from;
    event.zone = open->second.zone;
    event.fences = order.fences;
    event.round = order.round;
    CountUp(counters_.rx_fences, 1);
    Push(event);
  }
  link.orders.pop_front();
  sender.FinishSend(order, SendResult::kAcknowledged, 0);
  return Step::kProgress;
}

}  // namespace railsd
