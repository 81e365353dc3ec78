// This project's planner and late binding.
//
// planner_static: BuildPlan() of agent/plan, linked. Nothing moves afterwards.
// own_rail: `pinned` of the same planner, which the daemon has for comparison. Nothing moves.
// planner: planner_static and late binding: bytes on a rail that dies move to the others at once, and a dry rail takes
// a part from the rail that would end last. Linked code of agent/rails decides which rail gives, and how much. The rest
// of LateBinder needs the engine and is written again here: AnyLags() and look_again_ as OnPeriod(), IsDry() as
// OnIdle(), MostLeft() under the same name. Two facts are not modelled: a move takes two messages, and a rail that
// waits for a move asks for no other.
//
// As in the daemon, a rail is dry once all is posted, and takes nothing from a rail that ends sooner than it does.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "agent/plan/plan.h"
#include "agent/rails/rail_progress.h"
#include "agent/rails/rail_scheduler.h"
#include "sim/policies/flows.h"
#include "sim/policies/plan_builder.h"
#include "sim/policies/plan_pairs.h"
#include "sim/policies/spread.h"

namespace railsd::sim {
namespace {

class LateBinding : public Reaction {
  RailProgress& Progress(size_t node, size_t rail) { return progress_[fabric_.Nic(node, rail)]; }
  auto At(size_t node) {  // before its first use, because its type is deduced
    return [this, node](size_t rail) -> const RailProgress& { return Progress(node, rail); };
  }

 public:
  explicit LateBinding(const PolicyInput& input)
      : fabric_(input.fabric), progress_(input.fabric.nics()), dry_(input.fabric.nics(), false) {
    const std::vector<double> nominal = NominalSpeeds(SpeedPeriods(input.fabric));
    for (size_t nic = 0; nic < progress_.size(); ++nic) {
      // The scheduler's constructor sets the bytes that are worth moving. A NIC that is never alive gives and takes
      // none.
      if (nominal[nic] <= 0) continue;
      RailScheduler({.speed_bytes_per_s = nominal[nic], .chunk_bytes = input.chunk_bytes}, &progress_[nic]);
      period_ = std::min(period_, static_cast<double>(progress_[nic].movable_bytes) / nominal[nic]);
    }
    period_ = std::max(period_, kLeastPeriodSeconds);
  }

  double PeriodSeconds() const override { return period_; }

  // A rail may begin to lag after others have run dry.
  void OnPeriod(size_t node, NetworkView& view) override {
    for (size_t rail = 0; rail < fabric_.rails(); ++rail) {
      if (dry_[fabric_.Nic(node, rail)]) OnIdle(node, rail, view);
    }
  }

  void OnChange(size_t node, NetworkView& view) override {
    LeaveDeadRails(fabric_, node, view);
    Observe(node, view);
    for (size_t rail = 0; rail < fabric_.rails(); ++rail) {
      if (Left(node, rail) == 0) OnIdle(node, rail, view);
    }
  }

  void OnIdle(size_t node, size_t dry, NetworkView& view) override {
    if (view.SpeedOf(fabric_.Nic(node, dry)) <= 0) return;
    Observe(node, view);
    dry_[fabric_.Nic(node, dry)] = Left(node, dry) == 0;
    if (Left(node, dry) > 0) return;
    std::vector<bool> tried(fabric_.rails(), false);
    tried[dry] = true;
    while (true) {
      const size_t worst = RailToRelieve(fabric_.rails(), dry, At(node), [&](size_t rail) { return !tried[rail]; });
      if (worst == dry) return;
      const uint32_t most = MostLeft(node, worst, dry, view);
      if (most != kNone) return Take(most, dry, view);
      tried[worst] = true;
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // LateBinder has the same limits.
  static constexpr double kLeastPeriodSeconds = 200e-6, kMostPeriodSeconds = 10e-3;

  uint64_t Left(size_t node, size_t rail) {
    return Progress(node, rail).unposted_bytes.load(std::memory_order_relaxed);
  }

  // Fills in the bytes left and the speeds of the node's rails.
  void Observe(size_t node, NetworkView& view) {
    std::vector<double> left(fabric_.rails(), 0);
    for (const uint32_t transfer : view.ActiveFrom(node)) {
      left[view.PathOf(transfer).source_rail] += view.BytesLeft(transfer);
    }
    for (size_t rail = 0; rail < fabric_.rails(); ++rail) {
      RailProgress& progress = Progress(node, rail);
      progress.unposted_bytes.store(static_cast<uint64_t>(left[rail]), std::memory_order_relaxed);
      progress.in_flight_bytes.store(view.PostedBytes(fabric_.Nic(node, rail)), std::memory_order_relaxed);
      progress.rate_bytes_per_s.store(static_cast<uint64_t>(view.SendRate(fabric_.Nic(node, rail))),
                                      std::memory_order_relaxed);
    }
  }

  uint32_t MostLeft(size_t node, size_t worst, size_t dry, NetworkView& view) {
    uint32_t best = kNone;
    for (const uint32_t transfer : view.ActiveFrom(node)) {
      const Path& path = view.PathOf(transfer);
      if (path.source_rail != worst) continue;
      if (PairSpeed(fabric_, view, node, path.destination_node, dry) <= 0) continue;
      if (best == kNone || view.BytesLeft(transfer) > view.BytesLeft(best)) best = transfer;
    }
    return best;
  }

  void Take(uint32_t transfer, size_t to, NetworkView& view) {
    Path path = view.PathOf(transfer);
    const size_t node = path.source_node, from = path.source_rail;
    const auto takes = [&](size_t rail) {
      return Left(node, rail) <= Progress(node, rail).movable_bytes &&
             PairSpeed(fabric_, view, node, path.destination_node, rail) > 0;
    };
    const uint64_t bytes = BytesToMove(fabric_.rails(), from, to, At(node), takes);
    path.source_rail = path.destination_rail = static_cast<uint16_t>(to);
    view.Move(transfer, static_cast<double>(bytes), path);
  }

  const Fabric& fabric_;
  std::vector<RailProgress> progress_;  // by NIC
  std::vector<bool> dry_;               // by NIC: it had nothing left when it was last looked at
  double period_ = kMostPeriodSeconds;
};

}  // namespace

// The flows of a pair as the stream of an exchange: by destination, then source.
class Stream {
 public:
  void Take(absl::Span<const GpuFlow> flows) {
    flows_.assign(flows.begin(), flows.end());
    std::sort(flows_.begin(), flows_.end(), [](const GpuFlow& a, const GpuFlow& b) {
      return std::pair(a.destination_gpu, a.source_gpu) < std::pair(b.destination_gpu, b.source_gpu);
    });
    ends_.clear();
    for (const GpuFlow& flow : flows_) ends_.push_back(bytes() + flow.bytes);
  }
  uint64_t bytes() const { return ends_.empty() ? 0 : ends_.back(); }
  // Calls visit(flow, bytes) for each flow with bytes in [begin, begin + length).
  template <typename Visit>
  void ForEach(uint64_t begin, uint64_t length, Visit visit) const {
    auto end = std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (const uint64_t stop = begin + length; begin < stop; ++end) {
      const uint64_t until = std::min(stop, *end);
      visit(flows_[static_cast<size_t>(end - ends_.begin())], until - begin);
      begin = until;
    }
  }

 private:
  std::vector<GpuFlow> flows_;
  std::vector<uint64_t> ends_;
};

absl::StatusOr<TransferPlan> PlanPairs(const PolicyInput& input, Policy policy) {
  const Fabric& fabric = input.fabric;
  const bool by_flow = policy != Policy::kLpt;  // kLpt plans the exchange as a whole
  const PlanOptions configured{
      .policy = policy, .chunk_bytes = input.chunk_bytes, .min_chunk_bytes = input.min_chunk_bytes};
  PlanWorkspace workspace;
  std::vector<PlanFlow> planned;
  std::vector<PlanRail> rails(fabric.rails());
  Ledger ledger(fabric.rails());  // of the node `owner`
  size_t owner = 0;
  Stream stream;
  PlanBuilder builder(input, Sharing::kByBytesLeft);
  const absl::Status status = ForEachPair(input, [&](size_t source, size_t destination, const auto& flows) {
    planned.clear();
    stream.Take(flows);
    if (!by_flow) planned.push_back({.bytes = stream.bytes()});
    for (size_t f = 0; by_flow && f < flows.size(); ++f) {
      planned.push_back({.bytes = flows[f].bytes,
                         .source_local_rank = flows[f].source_gpu,
                         .destination_local_rank = flows[f].destination_gpu});
    }
    double speeds = 0;
    for (size_t rail = 0; rail < rails.size(); ++rail) {
      rails[rail].speed_bytes_per_s = input.SpeedOf(source, destination, rail);
      speeds += rails[rail].speed_bytes_per_s;
    }
    if (std::exchange(owner, source) != source) ledger = Ledger(fabric.rails());
    const PlanOptions options =
        OptionsFor({stream.bytes(), speeds, source, destination, fabric.nodes, rails.size()}, configured);
    const absl::Status planning =
        BuildPlan(planned, rails, PeerIndex(static_cast<uint32_t>(destination)), options, &ledger, &workspace);
    if (!planning.ok()) return planning;
    builder.Begin(source, destination);
    for (const PlanRun& run : workspace.runs) {
      const auto add = [&](const GpuFlow& flow, uint64_t bytes) {
        builder.Add(flow.source_gpu, flow.destination_gpu, static_cast<uint16_t>(run.rail.value()),
                    static_cast<double>(bytes));
      };
      if (by_flow) {
        add(flows[run.flow], run.length_bytes);
      } else {
        stream.ForEach(run.offset_bytes, run.length_bytes, add);
      }
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return builder.Take();
}

absl::StatusOr<TransferPlan> PlanByPlanner(const PolicyInput& input) { return PlanPairs(input, Policy::kLpt); }

absl::StatusOr<TransferPlan> PlanOwnRail(const PolicyInput& input) { return PlanPairs(input, Policy::kPinned); }

std::unique_ptr<Reaction> ReactByLateBinding(const PolicyInput& input) { return std::make_unique<LateBinding>(input); }

}  // namespace railsd::sim
