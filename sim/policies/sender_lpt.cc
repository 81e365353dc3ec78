// Longest processing time first over all bytes that a node sends, by the loads of its own NICs alone.
//
// rails_paper: RailS as published (Xu et al., arXiv 2510.19262): each node cuts its flows into chunks and lays them on
// its rails, the longest first, each on the rail that then ends soonest. The loads of receiving NICs do not count.
// lpt_flows: the same over whole flows.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/policies/flows.h"
#include "sim/policies/plan_builder.h"

namespace railsd::sim {
namespace {

// More pieces at one node would take gigabytes, and more in all would take hours.
constexpr uint64_t kMostPiecesOfNode = 1 << 22, kMostPieces = 1 << 30;

struct Piece {
  uint32_t destination = 0;
  uint16_t source_gpu = 0, destination_gpu = 0;
  uint64_t bytes = 0;
  uint16_t rail = 0;
};

// Cuts the flows of a node into chunks, by destination, the node's successor first.
void CutFlows(const PolicyInput& input, size_t source, uint64_t chunk_bytes, std::vector<Piece>* pieces) {
  const size_t nodes = input.fabric.nodes;
  std::vector<GpuFlow> flows;
  pieces->clear();
  for (size_t step = 1; step < nodes; ++step) {
    const size_t destination = (source + step) % nodes;
    CollectFlows(input, source, destination, &flows);
    for (const GpuFlow& flow : flows) {
      Piece piece{.destination = static_cast<uint32_t>(destination),
                  .source_gpu = static_cast<uint16_t>(flow.source_gpu),
                  .destination_gpu = static_cast<uint16_t>(flow.destination_gpu)};
      for (uint64_t left = flow.bytes; left > 0; left -= piece.bytes) {
        piece.bytes = std::min(left, chunk_bytes);
        pieces->push_back(piece);
      }
    }
  }
}

// Checks that the chunks are few enough. The first chunk of each flow does not count, because longer chunks would not
// make it fewer.
absl::Status CheckPieces(const PolicyInput& input, uint64_t chunk_bytes) {
  std::vector<uint64_t> pieces(input.fabric.nodes, 0);
  const absl::Status status = ForEachPair(input, [&](size_t source, size_t /*destination*/, const auto& flows) {
    for (const GpuFlow& flow : flows) pieces[source] += (flow.bytes - 1) / chunk_bytes;
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  uint64_t sum = 0;
  for (size_t node = 0; node < pieces.size(); ++node) {
    sum += std::min(pieces[node], kMostPieces);
    if (pieces[node] <= kMostPiecesOfNode && sum <= kMostPieces) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "policy rails_paper would cut what node ", node, " sends into ", pieces[node], " chunks of ", chunk_bytes,
        " bytes; there may be ", kMostPiecesOfNode, " at a node and ", kMostPieces, " in all: give longer chunks"));
  }
  return absl::OkStatus();
}

// Lays the pieces, which are sorted, on the rails of their source.
absl::Status LayPieces(const PolicyInput& input, size_t source, std::vector<Piece>* pieces) {
  std::vector<double> seconds(input.fabric.rails(), 0);
  for (Piece& piece : *pieces) {
    double soonest = 0;
    bool found = false;
    for (uint16_t rail = 0; rail < seconds.size(); ++rail) {
      if (input.SpeedOf(source, piece.destination, rail) <= 0) continue;
      const double end =
          seconds[rail] + static_cast<double>(piece.bytes) / input.speeds[input.fabric.Nic(source, rail)];
      if (found && end >= soonest) continue;
      found = true;
      soonest = end;
      piece.rail = rail;
    }
    if (!found) return UsableRails(input, source, piece.destination).status();
    seconds[piece.rail] = soonest;
  }
  return absl::OkStatus();
}

absl::StatusOr<TransferPlan> PlanBySender(const PolicyInput& input, uint64_t chunk_bytes) {
  PlanBuilder builder(input, Sharing::kByBytesLeft);
  std::vector<Piece> pieces;
  for (size_t source = 0; source < input.fabric.nodes; ++source) {
    CutFlows(input, source, chunk_bytes, &pieces);
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.bytes > b.bytes; });
    if (absl::Status status = LayPieces(input, source, &pieces); !status.ok()) return status;
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.destination < b.destination; });
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i == 0 || pieces[i].destination != pieces[i - 1].destination) builder.Begin(source, pieces[i].destination);
      builder.Add(pieces[i].source_gpu, pieces[i].destination_gpu, pieces[i].rail,
                  static_cast<double>(pieces[i].bytes));
    }
  }
  return builder.Take();
}

}  // namespace

absl::StatusOr<TransferPlan> PlanLptFlows(const PolicyInput& input) { return PlanBySender(input, UINT64_MAX); }

absl::StatusOr<TransferPlan> PlanRailsPaper(const PolicyInput& input) {
  if (absl::Status status = CheckPieces(input, input.chunk_bytes); !status.ok()) return status;
  return PlanBySender(input, input.chunk_bytes);
}

}  // namespace railsd::sim
