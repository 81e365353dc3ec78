#include "client/cuda/slices.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace rails::cuda {
namespace {

// Writes one direction of a slice, flow after flow.
class Writer {
 public:
  Writer(bool sent, const BufferSpan& buffer, SliceFlows* out)
      : sent_(sent),
        segment_(buffer.segment),
        base_(reinterpret_cast<Address>(buffer.segment->bytes().data())),
        next_(buffer.offset_bytes),
        out_(*out) {}

  void BeginFlow(uint32_t rank) { out_.flows.push_back({rank, {}}); }
  // Bytes that no copy of the device touches.
  std::byte* AddOwn(uint64_t bytes) {
    std::byte* const at = segment_->bytes().data() + next_;
    AddBufferBytes(bytes);
    return at;
  }
  // Bytes [begin, end) of the flow, and space up to `space_end`.
  void Add(const Flow& flow, uint64_t begin, uint64_t end, uint64_t space_end) {
    uint64_t at = 0;
    for (const Part& part : flow.parts) {
      const uint64_t from = std::max(at, begin), until = std::min(at + part.length_bytes, space_end);
      if (from < until) AddPart(part, from - at, until - from, std::clamp(end, from, until) - from);
      at += part.length_bytes;
      if (at >= space_end) break;
    }
  }

 private:
  // `bytes` of a part, of which `copied` are copied if it is staged.
  void AddPart(const Part& part, uint64_t skip, uint64_t bytes, uint64_t copied) {
    if (part.range.segment != nullptr) {
      out_.flows.back().ranges.push_back({part.range.segment, part.range.offset_bytes + skip, bytes});
      return;
    }
    const Address device = part.address + skip, host = base_ + next_;
    const Copy copy = sent_ ? Copy{host, device, copied} : Copy{device, host, copied};
    AddBufferBytes(bytes);
    if (copied == 0) return;
    out_.staged_bytes += copied;
    if (Copy* last = out_.copies.empty() ? nullptr : &out_.copies.back();
        last != nullptr && last->to + last->bytes == copy.to && last->from + last->bytes == copy.from) {
      last->bytes += copied;
    } else {
      out_.copies.push_back(copy);
    }
  }
  void AddBufferBytes(uint64_t bytes) {
    std::vector<Range>& ranges = out_.flows.back().ranges;
    if (!ranges.empty() && ranges.back().segment == segment_ &&
        ranges.back().offset_bytes + ranges.back().length_bytes == next_) {
      ranges.back().length_bytes += bytes;
    } else {
      ranges.push_back({segment_, next_, bytes});
    }
    next_ += bytes;
  }

  const bool sent_;
  const std::shared_ptr<Segment>& segment_;
  const Address base_;
  uint64_t next_;
  SliceFlows& out_;
};

}  // namespace

uint64_t SliceSizes::Begin(uint64_t total_bytes, uint32_t slice, uint32_t slices, uint32_t leading) const {
  if (slice <= leading) return std::min(total_bytes, slice * first_bytes_);
  const uint64_t first = std::min(total_bytes, leading * first_bytes_), rest = total_bytes - first;
  const uint64_t parts = slices - leading, part = slice - leading;  // part * (rest % parts) is below 2^64
  return first + rest / parts * part + rest % parts * part / parts;
}

uint32_t SliceSizes::FurtherSlices(const std::vector<Flow>& flows, uint32_t leading) const {
  uint64_t staged_bytes = 0;
  bool more = false;
  for (const Flow& flow : flows) {
    if (flow.local) {
      more = more || flow.total_bytes > 0;
      continue;
    }
    const uint64_t rest = flow.total_bytes - Begin(flow.total_bytes, leading, 0, leading);
    more = more || rest > 0;
    if (flow.staged) staged_bytes += rest;
  }
  if (!more) return 0;
  const uint64_t slices = (staged_bytes + slice_bytes_ - 1) / slice_bytes_;
  return static_cast<uint32_t>(std::clamp<uint64_t>(slices, 1, std::numeric_limits<uint32_t>::max() - 1));
}

SliceFlows LayOut(const std::vector<Flow>& flows, const std::vector<Flow>& others, const SliceSizes& sizes,
                  const SliceKind& kind, const BufferSpan& buffer) {
  SliceFlows out;
  Writer writer(kind.sent, buffer, &out);
  for (const Flow& flow : flows) {
    if (kind.number == 0) out.heads.push_back(nullptr);
    if (flow.local && kind.number > 0) continue;
    const uint64_t begin = sizes.Begin(flow.total_bytes, kind.number, kind.slices, kind.leading);
    const uint64_t end = sizes.Begin(flow.total_bytes, kind.number + 1, kind.slices, kind.leading);
    if (begin == end && !kind.prefixed) continue;
    writer.BeginFlow(flow.rank);
    if (flow.local) {
      out.heads.back() = writer.AddOwn(sizes.note_bytes());
      continue;
    }
    if (kind.prefixed) out.heads.back() = writer.AddOwn(SliceSizes::kPrefixBytes);
    writer.Add(flow, begin, end, kind.prefixed ? sizes.Begin(flow.room_bytes, 1, 0, kind.leading) : end);
  }
  for (const Flow& flow : others) {
    if (!flow.local || flow.total_bytes == 0 || !kind.last()) continue;
    writer.BeginFlow(flow.rank);
    writer.AddOwn(SliceSizes::kAcknowledgementBytes);
  }
  return out;
}

}  // namespace rails::cuda
