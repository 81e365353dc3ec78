// How flows are cut into pieces. Both ends of a flow cut it alike, knowing only its length, Staging::piece_bytes and
// how many pieces the job has.
//
// Piece 0 has the first `piece_bytes / world_size` bytes of each flow, so that it fits into a slot whatever the other
// flows are. In its job every rank says how many further pieces its remaining bytes need (AllToAllv::vote); the highest
// number counts. These pieces have equal parts of what remains of each flow.
//
// A flow between ranks of one node that needs no staging (local_peers.h) has a note in piece 0, and an acknowledgement,
// the other way round, in the last piece. So a job with such a flow has two pieces or more.
#ifndef RAILS_CLIENT_CUDA_PIECES_H_
#define RAILS_CLIENT_CUDA_PIECES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/cuda/flows.h"
#include "rails/cuda.h"

namespace rails::cuda {

// The sizes that all ranks of a group agree on.
class PieceSizes {
 public:
  // `note_bytes`: of a note. `local_ranks`: other ranks of this node.
  PieceSizes(uint64_t piece_bytes, uint32_t world_size, uint64_t note_bytes, uint32_t local_ranks)
      : piece_bytes_(piece_bytes),
        first_bytes_(piece_bytes / world_size),
        world_size_(world_size),
        note_bytes_(note_bytes),
        local_ranks_(local_ranks) {}

  // Room for the staged bytes of one direction of any piece: the parts of a flow are rounded up to a byte, and a flow
  // may have a prefix or a note.
  uint64_t slot_bytes() const { return piece_bytes_ + world_size_ * (1 + kPrefixBytes) + local_ranks_ * note_bytes_; }
  uint64_t note_bytes() const { return note_bytes_; }
  // Where piece `piece` of a flow of `total_bytes` begins; it ends where the next one begins. `pieces`: of the job, 1
  // if piece 0 is the only one.
  uint64_t Begin(uint64_t total_bytes, uint32_t piece, uint32_t pieces) const;
  // The pieces that flows need after piece 0. Bytes that are not staged need no slot, so one piece holds any number.
  uint32_t FurtherPieces(const std::vector<Flow>& flows) const;

  // A flow whose receiver gives a capacity begins with its true length, in the machine's byte order.
  static constexpr uint64_t kPrefixBytes = 8;
  static constexpr uint64_t kAcknowledgementBytes = 8;

 private:
  const uint64_t piece_bytes_, first_bytes_, world_size_, note_bytes_, local_ranks_;
};

// A part of a slot.
struct SlotSpan {
  std::shared_ptr<Segment> segment{};
  uint64_t offset_bytes = 0;

  std::byte* begin() const { return segment->bytes().data() + offset_bytes; }
};

// One direction of one piece.
struct PieceFlows {
  std::vector<FlowRanges> flows{};  // for the job of the daemon
  std::vector<Copy> copies{};       // `to` is the slot's address for sends, `from` for receives
  uint64_t staged_bytes = 0;
  // Where in the slot the prefix or note of each flow is, in piece 0; null: it has none.
  std::vector<std::byte*> heads{};
};

// Which piece, and of which job.
struct PieceKind {
  uint32_t number = 0;
  uint32_t pieces = 2;    // of the job; where piece 0 ends does not depend on it
  bool sent = false;      // the bytes are sent
  bool prefixed = false;  // each flow begins with a prefix and has the space of its capacity; copies move its length

  bool last() const { return number > 0 && number + 1 == pieces; }
};

// Lays a piece of `flows` out. `others`: the flows of the other direction, whose acknowledgements go along with the
// last piece.
PieceFlows LayOut(const std::vector<Flow>& flows, const std::vector<Flow>& others, const PieceSizes& sizes,
                  const PieceKind& kind, const SlotSpan& slot);

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_PIECES_H_
