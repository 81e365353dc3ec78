// Whole flows on paths that hashes choose. The paths between two nodes are the rails that join them, as in RailS
// (arXiv 2510.19262, theorem 1: parallel channels of equal capacity).
//
// ecmp: equal-cost multipath (RFC 2992): a hash of the flow selects its path, which never changes.
// plb: Kabbani et al., "PLB: Congestion Signals are Simple and Effective for Network Load Balancing", SIGCOMM 2022,
// with the constants of Linux (net.ipv4.tcp_plb_*): a round is congested when half of it or more was marked; after 12
// congested rounds in a row the flow draws another path, at random. PLB changes the path sooner when a flow is idle,
// but all-to-all flows never are. A flow whose path dies draws again at once, as after a timeout.
#include <cmath>
#include <memory>
#include <vector>

#include "sim/policies/flows.h"
#include "sim/policies/plan_builder.h"

namespace railsd::sim {
namespace {

constexpr double kCongestedPart = 0.5;
constexpr uint32_t kCongestedRounds = 12;
// A round trip in a network with short queues. Long exchanges have longer rounds: at most kPlbMostRounds in the time of
// the bound.
constexpr double kPlbRoundSeconds = 10e-6;
constexpr double kPlbMostRounds = 500;

class Plb : public Reaction {
 public:
  explicit Plb(const PolicyInput& input)
      : period_(std::max(kPlbRoundSeconds, input.bound_seconds / kPlbMostRounds)),
        draws_(MixHash(input.seed)),
        fabric_(input.fabric) {}

  double PeriodSeconds() const override { return period_; }

  void OnPeriod(size_t node, NetworkView& view) override {
    const absl::Span<const uint32_t> active = view.ActiveFrom(node);
    for (const uint32_t transfer : std::vector<uint32_t>(active.begin(), active.end())) {
      if (transfer >= congested_.size()) congested_.resize(transfer + 1, 0);
      if (view.Congestion(transfer) < kCongestedPart) {
        congested_[transfer] = 0;
      } else if (++congested_[transfer] >= kCongestedRounds) {
        congested_[transfer] = 0;
        Repath(transfer, view);
      }
    }
  }

  void OnChange(size_t node, NetworkView& view) override {
    const absl::Span<const uint32_t> active = view.ActiveFrom(node);
    for (const uint32_t transfer : std::vector<uint32_t>(active.begin(), active.end())) {
      const Path now = view.PathOf(transfer);
      if (IsAlive(now, view)) continue;
      const Path to = DrawPath(now, view);
      if (IsAlive(to, view)) view.Move(transfer, view.BytesLeft(transfer), to);
    }
  }

 private:
  bool IsAlive(const Path& path, const NetworkView& view) const {
    return view.SpeedOf(fabric_.Nic(path.source_node, path.source_rail)) > 0 &&
           view.SpeedOf(fabric_.Nic(path.destination_node, path.destination_rail)) > 0;
  }

  // Draws one of the paths that are alive. Returns the same path if none is.
  Path DrawPath(const Path& path, const NetworkView& view) {
    alive_.clear();
    Path other = path;
    for (size_t rail = 0; rail < fabric_.rails(); ++rail) {
      other.source_rail = other.destination_rail = static_cast<uint16_t>(rail);
      if (IsAlive(other, view)) alive_.push_back(other);
    }
    draws_ = MixHash(draws_);
    return alive_.empty() ? path : alive_[draws_ % alive_.size()];
  }

  // Draws another path for one of the flows that are merged in the transfer.
  void Repath(uint32_t transfer, NetworkView& view) {
    const Path from = view.PathOf(transfer);
    const Path to = DrawPath(from, view);
    if (to == from || !IsAlive(to, view)) return;
    const double flows = std::max(1.0, std::round(view.WeightOf(transfer)));
    view.Move(transfer, view.BytesLeft(transfer) / flows, to);
  }

  const double period_;
  uint64_t draws_;
  const Fabric& fabric_;
  std::vector<uint32_t> congested_;  // by transfer: congested rounds in a row
  std::vector<Path> alive_;          // the choices of one draw
};

}  // namespace

absl::StatusOr<TransferPlan> PlanEcmp(const PolicyInput& input) {
  const size_t gpus = input.fabric.gpus_per_node;
  PlanBuilder builder(input, Sharing::kByWeight);
  const absl::Status status = ForEachPair(input, [&](size_t source, size_t destination, const auto& flows) {
    const absl::StatusOr<std::vector<uint16_t>> usable = UsableRails(input, source, destination);
    if (!usable.ok()) return usable.status();
    builder.Begin(source, destination);
    for (const GpuFlow& flow : flows) {
      const uint64_t hash =
          FlowHash(source * gpus + flow.source_gpu, destination * gpus + flow.destination_gpu, input.seed);
      builder.Add(flow.source_gpu, flow.destination_gpu, (*usable)[hash % usable->size()],
                  static_cast<double>(flow.bytes));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return builder.Take();
}

std::unique_ptr<Reaction> ReactAsPlb(const PolicyInput& input) { return std::make_unique<Plb>(input); }

}  // namespace railsd::sim
