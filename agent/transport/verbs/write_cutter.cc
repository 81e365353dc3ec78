#include "agent/transport/verbs/write_cutter.h"

#include <algorithm>

namespace railsd::verbs {

CutResult CutWrite(const SendStream& stream, RailIndex rail, uint64_t offset_bytes, uint64_t limit_bytes,
                   absl::Span<LocalPiece> local, RemoteWrite* write) {
  const std::vector<RemoteZone::Piece>& remote = stream.remote.pieces;
  auto there = std::upper_bound(remote.begin(), remote.end(), offset_bytes,
                                [](uint64_t offset, const RemoteZone::Piece& p) { return offset < p.offset_bytes; });
  if (there == remote.begin() || rail.value() >= stream.remote.keys.size()) return CutResult::kNotReachable;
  --there;
  const uint64_t skip = offset_bytes - there->offset_bytes;
  const auto piece = static_cast<size_t>(there - remote.begin());
  const std::vector<uint32_t>& keys = stream.remote.keys[rail.value()];
  if (skip >= there->length_bytes || piece >= keys.size()) return CutResult::kNotReachable;
  if (offset_bytes >= stream.memory.total_bytes()) return CutResult::kNotRegistered;

  uint64_t left = std::min({limit_bytes, there->length_bytes - skip, stream.memory.total_bytes() - offset_bytes});
  *write = {there->address + skip, keys[piece], 0, 0, true};
  auto here = stream.memory.PieceAt(offset_bytes);
  uint64_t here_skip = offset_bytes - here->offset_bytes;
  for (; left > 0 && write->pieces < local.size(); ++here, here_skip = 0) {
    const Registration* registration = here->segment->registration(rail.value());
    if (registration == nullptr) return CutResult::kNotRegistered;
    const uint64_t take = std::min(left, here->length_bytes - here_skip);
    local[write->pieces++] = {reinterpret_cast<uint64_t>(here->address) + here_skip, static_cast<uint32_t>(take),
                              registration->local_key()};
    write->length_bytes += take;
    write->copyable = write->copyable && here->segment->kind() != MemoryKind::kDmaBuf;
    left -= take;
  }
  return CutResult::kOk;
}

}  // namespace railsd::verbs
