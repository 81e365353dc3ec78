#include "agent/transport/verbs/write_cutter.h"

#include <algorithm>

namespace railsd::verbs {

CutResult CutWrite(const SendFlow& flow, RailIndex rail, uint64_t offset_bytes, uint64_t limit_bytes,
                   absl::Span<LocalPiece> local, RemoteWrite* write) {
  const std::vector<RemoteZone::Piece>& remote = flow.remote.pieces;
  auto there = std::upper_bound(remote.begin(), remote.end(), offset_bytes,
                                [](uint64_t offset, const RemoteZone::Piece& p) { return offset < p.offset_bytes; });
  if (there == remote.begin()) return CutResult::kNotReachable;
  --there;
  const uint64_t skip = offset_bytes - there->offset_bytes;
  const uint64_t key_index = uint64_t{there->first_key} + rail.value();
  if (skip >= there->length_bytes || key_index >= flow.remote.keys.size()) return CutResult::kNotReachable;
  if (offset_bytes >= flow.memory.total_bytes()) return CutResult::kNotRegistered;

  uint64_t left = std::min({limit_bytes, there->length_bytes - skip, flow.memory.total_bytes() - offset_bytes});
  *write = {there->address + skip, flow.remote.keys[key_index], 0, 0, true};
  auto here = flow.memory.PieceAt(offset_bytes);
  uint64_t here_skip = offset_bytes - here->flow_offset_bytes;
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
