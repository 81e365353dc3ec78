// Spraying: the pieces of every flow over all rails.
//
// round_robin: `round_robin` of this project's planner. Chunks go in turn over the rails that join two nodes, and the
// turn goes on from destination to destination. It does not count bytes, so short last chunks make it uneven.
// reps: Bonato et al., "REPS: Recycled Entropy Packet Spraying", arXiv 2407.21625. Packets are sprayed over all paths;
// an acknowledgement without a mark puts its path back into use, one with a mark does not. A path thus carries as much
// as it acknowledges, and a slow one less than others, whether the sender's NIC or a switch limits it. This model works
// in rounds: it divides the bytes left of a pair of nodes over the rails by their latest rates; the marked part of a
// rate counts half. Senders leave a path that dies at once (REPS: in less than 100 us). A path that comes up gets its
// part of the bytes left, because packets draw it again.
#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/plan/plan.h"
#include "sim/policies/flows.h"
#include "sim/policies/plan_builder.h"
#include "sim/policies/plan_pairs.h"
#include "sim/policies/spread.h"

namespace railsd::sim {
namespace {

constexpr double kRepsRoundSeconds = 10e-6;
constexpr double kRepsMostRounds = 200;
constexpr double kMarkedPart = 0.5;   // part of a marked rate that does not count
constexpr double kLeastBytes = 4096;  // about a packet; less does not move
constexpr double kLeastPart = 0.01;   // of the bytes left of a transfer; less does not move

class Reps : public Reaction {
 public:
  explicit Reps(const PolicyInput& input)
      : fabric_(input.fabric),
        period_(std::max(kRepsRoundSeconds, input.bound_seconds / kRepsMostRounds)),
        by_destination_(input.fabric.nodes) {}

  double PeriodSeconds() const override { return period_; }

  void OnPeriod(size_t node, NetworkView& view) override {
    SortByDestination(node, view);
    for (const std::vector<uint32_t>& transfers : by_destination_) Shift(transfers, view);
  }

  void OnChange(size_t node, NetworkView& view) override {
    LeaveDeadRails(fabric_, node, view);
    SortByDestination(node, view);
    for (const std::vector<uint32_t>& transfers : by_destination_) SprayOverNew(transfers, view);
  }

 private:
  void SortByDestination(size_t node, NetworkView& view) {
    for (std::vector<uint32_t>& transfers : by_destination_) transfers.clear();
    for (const uint32_t transfer : view.ActiveFrom(node)) {
      by_destination_[view.PathOf(transfer).destination_node].push_back(transfer);
    }
  }

  // Moves a part of the bytes left of a pair to the live rails on which it has none.
  void SprayOverNew(const std::vector<uint32_t>& transfers, NetworkView& view) {
    if (transfers.empty()) return;
    std::vector<bool> used(fabric_.rails(), false);
    for (const uint32_t transfer : transfers) used[view.PathOf(transfer).source_rail] = true;
    clear_.clear();
    Path to = view.PathOf(transfers.front());
    for (size_t rail = 0; rail < used.size(); ++rail) {
      if (used[rail] || PairSpeed(fabric_, view, to.source_node, to.destination_node, rail) <= 0) continue;
      to.source_rail = to.destination_rail = static_cast<uint16_t>(rail);
      clear_.push_back(to);
    }
    for (const uint32_t transfer : transfers) {
      const double part = view.BytesLeft(transfer) / static_cast<double>(transfers.size() + clear_.size());
      if (part < kLeastBytes) continue;
      for (const Path& path : clear_) view.Move(transfer, part, path);
    }
  }

  struct Share {
    uint32_t transfer = 0;
    Path path;
    double left = 0;
    double weight = 0;   // rate at which packets return without marks
    double surplus = 0;  // bytes above the share by weight; negative: below
  };

  // Divides the bytes left of a pair over its rails by weight.
  void Shift(const std::vector<uint32_t>& transfers, NetworkView& view) {
    double left = 0, weight = 0, missing = 0;
    shares_.clear();
    for (const uint32_t transfer : transfers) {
      if (view.Rate(transfer) <= 0) continue;  // new: no packet of it has returned
      const double rate = view.Rate(transfer) * (1 - kMarkedPart * view.Congestion(transfer));
      shares_.push_back(
          {.transfer = transfer, .path = view.PathOf(transfer), .left = view.BytesLeft(transfer), .weight = rate});
      left += shares_.back().left;
      weight += rate;
    }
    if (weight <= 0) return;
    for (Share& share : shares_) {
      share.surplus = share.left - left * share.weight / weight;
      missing += std::max(0.0, -share.surplus);
    }
    for (const Share& from : shares_) {
      if (from.surplus < std::max(kLeastBytes, kLeastPart * from.left)) continue;
      for (const Share& to : shares_) {
        if (to.surplus < 0) view.Move(from.transfer, from.surplus * -to.surplus / missing, to.path);
      }
    }
  }

  const Fabric& fabric_;
  const double period_;
  std::vector<std::vector<uint32_t>> by_destination_;
  std::vector<Share> shares_;
  std::vector<Path> clear_;
};

}  // namespace

absl::StatusOr<TransferPlan> PlanRoundRobin(const PolicyInput& input) { return PlanPairs(input, Policy::kRoundRobin); }

absl::StatusOr<TransferPlan> PlanReps(const PolicyInput& input) {
  PlanBuilder builder(input, Sharing::kByWeight);
  const absl::Status status = ForEachPair(input, [&](size_t source, size_t destination, const auto& flows) {
    const absl::StatusOr<std::vector<uint16_t>> usable = UsableRails(input, source, destination);
    if (!usable.ok()) return usable.status();
    builder.Begin(source, destination);
    for (const GpuFlow& flow : flows) {
      const double part = static_cast<double>(flow.bytes) / static_cast<double>(usable->size());
      for (const uint16_t rail : *usable) builder.Add(flow.source_gpu, flow.destination_gpu, rail, part);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  TransferPlan plan = builder.Take();
  // Each flow has one connection, whose share is spread over the rails.
  for (Transfer& transfer : plan.transfers) transfer.weight /= static_cast<float>(input.fabric.rails());
  return plan;
}

std::unique_ptr<Reaction> ReactAsReps(const PolicyInput& input) { return std::make_unique<Reps>(input); }

}  // namespace railsd::sim
