#include "client/src/submission.h"

#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "rails/cuda.h"

namespace rails::internal {
namespace {

// Checks the flows of one direction and writes them as columns.
class DirectionBuilder {
 public:
  DirectionBuilder(const char* field, const SegmentTable* table, uint32_t world_size,
                   absl::flat_hash_set<const SegmentCore*>* seen, Submission* submission)
      : field_(field),
        table_(table),
        world_size_(world_size),
        seen_(seen),
        submission_(submission),
        peers_(world_size, false) {}

  absl::Status Build(const std::vector<FlowRanges>& flows, google::protobuf::RepeatedPtrField<v1::FlowRanges>* out) {
    out->Reserve(static_cast<int>(flows.size()));
    for (size_t i = 0; i < flows.size(); ++i) {
      const FlowRanges& flow = flows[i];
      if (flow.rank >= world_size_) {
        return Error(i, absl::StrCat(".rank ", flow.rank, " is outside the world of ", world_size_, " ranks"));
      }
      if (peers_[flow.rank]) return Error(i, absl::StrCat(".rank ", flow.rank, " appears twice"));
      peers_[flow.rank] = true;
      if (flow.ranges.empty()) continue;
      if (absl::Status status = BuildFlow(i, flow, out->Add()); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status BuildFlow(size_t index, const FlowRanges& flow, v1::FlowRanges* columns) {
    columns->set_peer_rank(flow.rank);
    columns->mutable_offsets_bytes()->Reserve(static_cast<int>(flow.ranges.size()));
    columns->mutable_lengths_bytes()->Reserve(static_cast<int>(flow.ranges.size()));
    uint64_t total_bytes = 0;
    for (size_t i = 0; i < flow.ranges.size(); ++i) {
      const Range& range = flow.ranges[i];
      if (range.segment.get() != segment_ || segment_ == nullptr) {
        absl::Status status = TakeSegment(index, i, range);
        if (!status.ok()) return status;
      }
      if (range.offset_bytes > length_bytes_ || range.length_bytes > length_bytes_ - range.offset_bytes) {
        return Error(index, absl::StrCat(".ranges[", i, "]: offset_bytes ", range.offset_bytes, " + length_bytes ",
                                         range.length_bytes, " is past the end of segment ", core_->id(), " (",
                                         length_bytes_, " bytes)"));
      }
      if (range.length_bytes > std::numeric_limits<uint64_t>::max() - total_bytes) {
        return Error(index,
                     absl::StrCat(".ranges[", i, "]: length_bytes ", range.length_bytes, " brings the flow past 2^64"));
      }
      total_bytes += range.length_bytes;
      AddRange(range, i, columns);
    }
    return absl::OkStatus();
  }

  // Writes one segment id for all ranges until a range has another segment; from then on one id for each range.
  void AddRange(const Range& range, size_t index, v1::FlowRanges* columns) {
    auto* ids = columns->mutable_segment_ids();
    if (index == 0) {
      ids->Add(core_->id());
    } else if (ids->size() > 1 || ids->Get(0) != core_->id()) {
      if (ids->size() == 1) {
        const uint32_t first = ids->Get(0);  // a copy, because the array grows
        ids->Reserve(columns->offsets_bytes().Capacity());
        ids->Resize(static_cast<int>(index), first);
      }
      ids->Add(core_->id());
    }
    columns->mutable_offsets_bytes()->AddAlreadyReserved(range.offset_bytes);
    columns->mutable_lengths_bytes()->AddAlreadyReserved(range.length_bytes);
  }

  // Makes the segment of `range` the current one. Checks first that this client owns it and may use it.
  absl::Status TakeSegment(size_t flow, size_t index, const Range& range) {
    const std::string where = absl::StrCat(".ranges[", index, "].segment");
    if (range.segment == nullptr) return Error(flow, absl::StrCat(where, " is null"));
    if (dynamic_cast<const cuda::Memory*>(range.segment.get()) != nullptr) {
      return Error(flow,
                   absl::StrCat(where, " is memory of a device: join the group by rails::cuda::Device::JoinGroup()"));
    }
    const auto* handle = dynamic_cast<const SegmentHandle*>(range.segment.get());
    if (handle == nullptr) return Error(flow, absl::StrCat(where, " was not made by this library"));
    if (handle->core()->table() != table_) {
      return Error(flow, absl::StrCat(where, " ", handle->id(), " belongs to another client"));
    }
    segment_ = range.segment.get();
    core_ = handle->core().get();
    length_bytes_ = core_->memory().bytes().size();
    if (!seen_->insert(core_).second) return absl::OkStatus();
    if (absl::Status status = core_->CheckUsable(); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(field_, "[", flow, "]", where, ": ", status.message()));
    }
    submission_->segments.push_back(handle->core());
    return absl::OkStatus();
  }

  absl::Status Error(size_t flow, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(field_, "[", flow, "]", what));
  }

  const char* const field_;
  const SegmentTable* const table_;
  const uint32_t world_size_;
  absl::flat_hash_set<const SegmentCore*>* const seen_;
  Submission* const submission_;
  std::vector<bool> peers_;
  // The segment of the last range. The next range usually has the same.
  const Segment* segment_ = nullptr;
  SegmentCore* core_ = nullptr;
  uint64_t length_bytes_ = 0;
};

}  // namespace

absl::Status BuildSubmission(const AllToAllv& exchange, const SegmentTable* table, uint32_t world_size,
                             Submission* submission) {
  if (exchange.timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("timeout ", absl::FormatDuration(exchange.timeout), " is negative"));
  }
  absl::flat_hash_set<const SegmentCore*> seen;
  DirectionBuilder sends("sends", table, world_size, &seen, submission);
  absl::Status status = sends.Build(exchange.sends, submission->request->mutable_sends());
  if (!status.ok()) return status;
  DirectionBuilder receives("receives", table, world_size, &seen, submission);
  status = receives.Build(exchange.receives, submission->request->mutable_receives());
  if (!status.ok()) return status;
  submission->request->set_capacities(exchange.capacities);
  submission->request->set_tag(exchange.tag);
  submission->request->set_vote(exchange.vote);
  submission->request->set_urgent(exchange.urgent);
  if (exchange.timeout != absl::InfiniteDuration()) {
    const absl::Duration whole = absl::Ceil(exchange.timeout, absl::Milliseconds(1));
    submission->request->set_timeout_milliseconds(static_cast<uint64_t>(absl::ToInt64Milliseconds(whole)));
  }
  return absl::OkStatus();
}

}  // namespace rails::internal
