#include "client/cuda/flows.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cuda/device_memory.h"

namespace rails::cuda {
namespace {

// Bytes in the memory of the process or of the device, with the field that names them.
struct Place {
  Address begin = 0, end = 0;
  bool received = false;
  const char* field = "";
  size_t flow = 0, range = 0;
};

std::string FieldOf(const char* field, size_t flow, size_t range) {
  return absl::StrCat(field, "[", flow, "].ranges[", range, "]");
}

// Checks one direction.
class Direction {
 public:
  Direction(const char* field, uint32_t world_size, const void* device, std::vector<Place>* places)
      : field_(field), device_(device), seen_(world_size, false), places_(places) {}

  absl::Status Check(const std::vector<FlowRanges>& flows, uint32_t rank, std::vector<Flow>* others, Flow* own) {
    for (size_t i = 0; i < flows.size(); ++i) {
      const uint32_t peer = flows[i].rank;
      if (peer >= seen_.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat(field_, "[", i, "].rank ", peer, " is outside the world of ", seen_.size(), " ranks"));
      }
      if (seen_[peer]) {
        return absl::InvalidArgumentError(absl::StrCat(field_, "[", i, "].rank ", peer, " appears twice"));
      }
      seen_[peer] = true;
      Flow flow{.rank = peer};
      for (size_t r = 0; r < flows[i].ranges.size(); ++r) {
        if (absl::Status status = AddRange(flows[i].ranges[r], i, r, &flow); !status.ok()) return status;
      }
      flow.room_bytes = flow.total_bytes;
      if (peer == rank) {
        *own = std::move(flow);
      } else if (flow.total_bytes > 0) {
        others->push_back(std::move(flow));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status AddRange(const Range& range, size_t flow_index, size_t index, Flow* flow) {
    const auto where = [&] { return FieldOf(field_, flow_index, index); };
    if (range.segment == nullptr) return absl::InvalidArgumentError(absl::StrCat(where(), ".segment is null"));
    const auto* memory = dynamic_cast<const DeviceMemory*>(range.segment.get());
    if (memory != nullptr && memory->device() != device_) {
      return absl::InvalidArgumentError(absl::StrCat(where(), ".segment is memory of another device"));
    }
    if (memory == nullptr && range.segment->bytes().data() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(where(), ".segment ", range.segment->id(),
                                                     " is a dma-buf: name its memory by Device::Import()"));
    }
    const uint64_t size = memory != nullptr ? memory->length_bytes() : range.segment->bytes().size();
    if (range.offset_bytes > size || range.length_bytes > size - range.offset_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(where(), ": offset_bytes ", range.offset_bytes, " + length_bytes ",
                                                     range.length_bytes, " is past the end of its ", size, " bytes"));
    }
    if (range.length_bytes == 0) return absl::OkStatus();
    if (range.length_bytes > std::numeric_limits<int64_t>::max() - flow->total_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(where(), ": length_bytes ", range.length_bytes, " brings the flow past 2^63"));
    }
    Part part{.length_bytes = range.length_bytes};
    if (memory != nullptr) {
      part.address = memory->address() + range.offset_bytes;
      part.range = memory->Shared(range.offset_bytes, range.length_bytes);
      flow->staged = flow->staged || part.staged();
    } else {
      part.range = range;
    }
    const Address begin = part.begin();
    places_->push_back({begin, begin + range.length_bytes, field_[0] == 'r', field_, flow_index, index});
    flow->total_bytes += range.length_bytes;
    flow->parts.push_back(std::move(part));
    return absl::OkStatus();
  }

  const char* const field_;
  const void* const device_;
  std::vector<bool> seen_;
  std::vector<Place>* const places_;
};

// INVALID_ARGUMENT if a received place overlaps another one.
absl::Status CheckOverlap(std::vector<Place> places) {
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  const Place *last = nullptr, *last_received = nullptr;  // those that reach furthest so far
  for (const Place& place : places) {
    const Place* const before = place.received ? last : last_received;
    if (before != nullptr && place.begin < before->end) {
      return absl::InvalidArgumentError(absl::StrCat(FieldOf(place.field, place.flow, place.range), " overlaps ",
                                                     FieldOf(before->field, before->flow, before->range),
                                                     ": received bytes need a place of their own"));
    }
    if (last == nullptr || place.end > last->end) last = &place;
    if (place.received && (last_received == nullptr || place.end > last_received->end)) last_received = &place;
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Copy> CopiesBetween(const Flow& from, const Flow& to) {
  std::vector<Copy> copies;
  uint64_t read = 0, written = 0;  // of the present parts
  for (size_t f = 0, t = 0; f < from.parts.size() && t < to.parts.size();) {
    const Part &source = from.parts[f], &target = to.parts[t];
    const uint64_t bytes = std::min(source.length_bytes - read, target.length_bytes - written);
    const Copy copy{target.begin() + written, source.begin() + read, bytes};
    if (copy.to != copy.from) copies.push_back(copy);
    read += bytes;
    written += bytes;
    if (read == source.length_bytes) ++f, read = 0;
    if (written == target.length_bytes) ++t, written = 0;
  }
  return copies;
}

absl::StatusOr<Flows> CheckExchange(const AllToAllv& exchange, uint32_t world_size, uint32_t rank, const void* device) {
  if (exchange.timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("timeout ", absl::FormatDuration(exchange.timeout), " is negative"));
  }
  if (exchange.vote != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("vote ", exchange.vote, ": it must be 0, because a group on device memory votes itself"));
  }
  Flows flows;
  Flow own_send, own_receive;
  std::vector<Place> places;
  absl::Status status =
      Direction("sends", world_size, device, &places).Check(exchange.sends, rank, &flows.sends, &own_send);
  if (!status.ok()) return status;
  status =
      Direction("receives", world_size, device, &places).Check(exchange.receives, rank, &flows.receives, &own_receive);
  if (!status.ok()) return status;
  const uint64_t sent = own_send.total_bytes, received = own_receive.total_bytes;
  if (exchange.capacities ? sent > received : sent != received) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " sends ", sent, " bytes to itself, and receives ",
                                                   exchange.capacities ? "at most " : "", received));
  }
  flows.own = CopiesBetween(own_send, own_receive);
  flows.own_bytes = sent;
  if (flows.own.empty()) {  // they stay where they are
    std::erase_if(places,
                  [&](const Place& place) { return place.received && exchange.receives[place.flow].rank == rank; });
  }
  status = CheckOverlap(std::move(places));
  if (!status.ok()) return status;
  return flows;
}

}  // namespace rails::cuda
