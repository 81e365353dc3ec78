// FakeTransport: zones with keys, and peers that write by them.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/fake/fake_transport.h"

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
int Copy(const iovec& from, uint64_t to) {
  const iovec remote{reinterpret_cast<void*>(to),
                     from.iov_len};  // NOLINT(performance-no-int-to-ptr): as a device has it
  return ::process_vm_writev(::getpid(), &from, 1, &remote, 1, 0) == static_cast<ssize_t>(from.iov_len) ? 0 : -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Registration>> FakeRegistrar::Register(const Segment& segment) {
  if (refuses) {
    return absl::ResourceExhaustedError(
        absl::StrCat("segment ", segment.id().value(), " cannot be registered on ", address_, ": refused by the test"));
  }
  // The device reaches memory that the processor cannot reach.
  if (segment.kind() == MemoryKind::kDmaBuf && ::mmap(segment.base(), segment.length_bytes(), PROT_READ | PROT_WRITE,
                                                      MAP_SHARED | MAP_FIXED, segment.fd(), 0) == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "mmap");
  }
  return std::make_unique<FakeRegistration>(shared_from_this());
}

void FakeTransport::Bind(std::shared_ptr<const ReceiveZone> zone) {
  std::lock_guard lock(fabric_->mutex);
  const auto link = links_.find(zone->peer);
  const bool up = link != links_.end() && link->second.far != nullptr;
  RailEvent event;
  event.kind = RailEvent::Kind::kZoneOpened;
  event.peer = zone->peer;
  event.zone = zone->ref;
  event.connection = up ? link->second.connection : 0;
  // As over verbs, where a window is bound by the connection.
  event.error_number = open_error_ == 0 && !up ? ENOTCONN : open_error_;
  if (bound_.contains(zone->ref)) event.error_number = EEXIST;  // what is bound stays as it is
  if (event.error_number != 0) return Push(event);
  bound_.insert(zone->ref);
  std::vector<uint32_t>& keys = zone->keys[options_.rail.value()];
  keys.clear();
  for (const MemoryRanges::Piece& piece : zone->memory.pieces()) {
    uint32_t key = 0;
    while (key == 0 || keys_.contains(key)) key = static_cast<uint32_t>(random_());
    keys_[key] = {zone->peer, reinterpret_cast<uintptr_t>(piece.address), piece.length_bytes, zone->ref};
    keys.push_back(key);
    if (options_.weak_zones) AddTo(counters_.weak_zones, 1);
  }
  Push(event);
}

void FakeTransport::Unbind(ZoneRef zone, bool writers_stopped) {
  std::lock_guard lock(fabric_->mutex);
  bound_.erase(zone);
  PeerIndex peer;
  const size_t taken = std::erase_if(keys_, [&](const auto& entry) {
    if (entry.second.zone != zone) return false;
    peer = entry.second.peer;
    return true;
  });
  const auto link = links_.find(peer);
  if (taken > 0 && options_.weak_zones && !writers_stopped && link != links_.end() && link->second.far != nullptr) {
    EndpointError(link->second, ECONNABORTED);
  }
  Push({.kind = RailEvent::Kind::kZoneClosed, .zone = zone});
}

void FakeTransport::DropKeys(PeerIndex peer) {
  if (options_.weak_zones) return;  // those are the segments' own
  std::erase_if(keys_, [&](const auto& key) { return key.second.peer == peer; });
}

bool FakeTransport::EndpointError(Link& link, int error_number) {
  AddTo(counters_.endpoint_errors, 1);
  AddTo(link.far->counters_.endpoint_errors, 1);
  Break(link, error_number);
  return false;
}

bool FakeTransport::WritePart(Link& link, Pending& pending, uint64_t* budget_bytes) {
  const SendStream& stream = *pending.order.stream;
  const uint64_t at = pending.order.offset_bytes + pending.done_bytes;
  const size_t rail = options_.rail.value();
  const RemoteZone& remote = stream.remote;
  const auto piece = std::find_if(remote.pieces.begin(), remote.pieces.end(), [&](const RemoteZone::Piece& p) {
    return at >= p.offset_bytes && at - p.offset_bytes < p.length_bytes;
  });
  const auto index = static_cast<size_t>(piece - remote.pieces.begin());
  if (piece == remote.pieces.end() || rail >= remote.keys.size() || index >= remote.keys[rail].size()) {
    return EndpointError(link, EINVAL);
  }
  if (stream.memory.PieceAt(at)->segment->registration(rail) == nullptr) return EndpointError(link, EACCES);
  const uint64_t into_piece = at - piece->offset_bytes;
  uint64_t want = std::min(*budget_bytes, pending.order.length_bytes - pending.done_bytes);
  iovec local;
  stream.memory.FillIovecs(at, std::min(want, piece->length_bytes - into_piece), {&local, 1}, &want);
  const uint64_t to = piece->address + into_piece;
  const auto key = keys_.find(remote.keys[rail][index]);
  const bool allowed = key != keys_.end() && key->second.peer == link.peer.peer && to >= key->second.address &&
                       want <= key->second.length_bytes && to - key->second.address <= key->second.length_bytes - want;
  if (!allowed) {
    Blame(link, EACCES);
    return false;
  }
  if (Copy(local, to) != 0) {
    if (IsReadable(stream.memory, at)) return EndpointError(link, EFAULT);
    EndAtReceiver(link, SendResult::kMemoryFault, EFAULT);
    return false;
  }
  pending.done_bytes += want;
  *budget_bytes -= want;
  return true;
}

}  // namespace railsd
