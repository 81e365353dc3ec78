// How flows are cut into slices. Both ends of a flow cut it alike, knowing only its length, Staging::slice_bytes and
// how many slices the job has.
//
// Slice 0 leads: it has the first `slice_bytes / world_size` bytes of each flow, so that it fits into a buffer whatever
// the other flows are. In its job every rank says how many further slices its remaining bytes need (AllToAllv::vote);
// the highest number counts. These slices have equal parts of what remains of each flow.
//
// With capacities two slices lead, because receivers cannot say so before slice 0 has told them the lengths. There is
// no slice but the first if senders have no more.
//
// A flow between ranks of one node that needs no staging (local_peers.h) has a note in slice 0, and an acknowledgement,
// the other way round, in the last slice. A job with such a flow has two slices or more.
#ifndef RAILS_CLIENT_CUDA_SLICES_H_
#define RAILS_CLIENT_CUDA_SLICES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/cuda/flows.h"
#include "rails/cuda.h"

namespace rails::cuda {

// The sizes that all ranks of a group agree on.
class SliceSizes {
 public:
  // `note_bytes`: of a note. `local_ranks`: other ranks of this node.
  SliceSizes(uint64_t slice_bytes, uint32_t world_size, uint64_t note_bytes, uint32_t local_ranks)
      : slice_bytes_(slice_bytes),
        first_bytes_(slice_bytes / world_size),
        world_size_(world_size),
        note_bytes_(note_bytes),
        local_ranks_(local_ranks) {}

  // Room for the staged bytes of one direction of any slice: the parts of a flow are rounded up to a byte, and a flow
  // may have a prefix or a note.
  uint64_t buffer_bytes() const { return slice_bytes_ + world_size_ * (1 + kPrefixBytes) + local_ranks_ * note_bytes_; }
  uint64_t note_bytes() const { return note_bytes_; }
  // Where slice `slice` of a flow of `total_bytes` begins; it ends where the next one begins. `leading`: slices that
  // lead. `slices`: of the job; any number for the slices that lead.
  uint64_t Begin(uint64_t total_bytes, uint32_t slice, uint32_t slices, uint32_t leading) const;
  // The slices that flows need after those that lead. Bytes that are not staged need no buffer, so one slice holds any
  // number.
  uint32_t FurtherSlices(const std::vector<Flow>& flows, uint32_t leading) const;

  // A flow whose receiver gives a capacity begins with its true length, in the machine's byte order.
  static constexpr uint64_t kPrefixBytes = 8;
  static constexpr uint64_t kAcknowledgementBytes = 8;

 private:
  const uint64_t slice_bytes_, first_bytes_, world_size_, note_bytes_, local_ranks_;
};

// A part of a buffer.
struct BufferSpan {
  std::shared_ptr<Segment> segment{};
  uint64_t offset_bytes = 0;

  std::byte* begin() const { return segment->bytes().data() + offset_bytes; }
};

// One direction of one slice.
struct SliceFlows {
  std::vector<FlowRanges> flows{};  // for the job of the daemon
  std::vector<Copy> copies{};       // `to` is the buffer's address for sends, `from` for receives
  uint64_t staged_bytes = 0;
  // Where in the buffer the prefix or note of each flow is, in slice 0; null: it has none.
  std::vector<std::byte*> heads{};
};

// Which slice, and of which job.
struct SliceKind {
  uint32_t number = 0;
  uint32_t slices = 0;  // of the job; 0: not known yet
  uint32_t leading = 1;
  bool sent = false;      // the bytes are sent
  bool prefixed = false;  // each flow begins with a prefix and has the space of its capacity; copies move its length

  bool last() const { return number > 0 && number + 1 == slices; }
};

// Lays a slice of `flows` out. `others`: the flows of the other direction, whose acknowledgements go along with the
// last slice.
SliceFlows LayOut(const std::vector<Flow>& flows, const std::vector<Flow>& others, const SliceSizes& sizes,
                  const SliceKind& kind, const BufferSpan& buffer);

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_SLICES_H_
