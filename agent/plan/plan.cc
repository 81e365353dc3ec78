#include "agent/plan/plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "agent/plan/plan_internal.h"

namespace railsd {
namespace {

using plan_internal::Problem;

absl::Status CheckOptions(const PlanOptions& options) {
  if (options.chunk_bytes == 0) return absl::InvalidArgumentError("chunk_bytes is 0; give at least 1");
  if (options.min_chunk_bytes == 0) return absl::InvalidArgumentError("min_chunk_bytes is 0; give at least 1");
  if (options.min_chunk_bytes > options.chunk_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_chunk_bytes ", options.min_chunk_bytes, " is above chunk_bytes ", options.chunk_bytes));
  }
  return absl::OkStatus();
}

bool IsSpeed(double bytes_per_s) { return bytes_per_s >= 0 && bytes_per_s <= std::numeric_limits<double>::max(); }

absl::Status CheckRails(absl::Span<const PlanRail> rails) {
  for (size_t i = 0; i < rails.size(); ++i) {
    if (IsSpeed(rails[i].speed_bytes_per_s)) continue;
    return absl::InvalidArgumentError(absl::StrCat("rail ", i, ": speed_bytes_per_s ", rails[i].speed_bytes_per_s,
                                                   " is not a finite number of 0 or more"));
  }
  return absl::OkStatus();
}

// Fills `order` (unsorted) and `*sum`, in bytes.
absl::Status CollectFlows(absl::Span<const PlanFlow> flows, PlanWorkspace* w, uint64_t* sum) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 63;
  uint64_t& total = *sum;
  w->order.clear();
  for (size_t f = 0; f < flows.size(); ++f) {
    if (flows[f].bytes == 0) continue;
    if (flows[f].bytes > kMostBytes - total) {
      return absl::InvalidArgumentError(
          absl::StrCat("flow ", f, ": ", flows[f].bytes, " bytes take the plan past 2^63 bytes"));
    }
    total += flows[f].bytes;
    w->order.push_back({flows[f].bytes, static_cast<uint32_t>(f)});
  }
  return absl::OkStatus();
}

// Makes a bin of each usable rail. Speeds are relative to the fastest: equal rails get exactly 1, so that loads of
// equal rails compare without rounding.
void CollectRails(absl::Span<const PlanRail> rails, PlanWorkspace* w) {
  w->bins.clear();
  double fastest = 0;
  for (uint32_t i = 0; i < rails.size(); ++i) {
    const double speed = rails[i].speed_bytes_per_s;
    if (speed <= 0) continue;
    PlanWorkspace::Bin& bin = w->bins.emplace_back();
    bin.rail = bin.matched = i;
    bin.speed = speed;
    bin.backlog_bytes = rails[i].backlog_bytes;
    fastest = std::max(fastest, speed);
  }
  for (PlanWorkspace::Bin& bin : w->bins) {
    // A rail too slow for the ratio to be a normal number would get no bytes anyway.
    bin.speed = std::max(bin.speed / fastest, std::numeric_limits<double>::min());
  }
}

// The result: pending runs grouped by rail. Runs of flows laid whole by LPT, the smallest, come last on their rail.
void Emit(size_t whole, PlanWorkspace* w) {
  w->cursor.assign(w->rail_bytes.size() + 1, 0);
  for (const PlanWorkspace::Bin& bin : w->bins) w->rail_bytes[bin.matched] = bin.bytes;
  for (const PlanRun& run : w->pending) ++w->cursor[w->bins[run.rail.value()].matched + 1];
  for (size_t i = 1; i < w->cursor.size(); ++i) w->cursor[i] += w->cursor[i - 1];
  w->runs.resize(w->pending.size());
  const auto emit = [w](const PlanRun& run) {
    const uint32_t rail = w->bins[run.rail.value()].matched;
    PlanRun& out = w->runs[w->cursor[rail]++];
    out = run;
    out.rail = RailIndex(rail);
  };
  for (size_t i = whole; i < w->pending.size(); ++i) emit(w->pending[i]);
  for (size_t i = 0; i < whole; ++i) emit(w->pending[i]);
}

void SortFlows(PlanWorkspace* w) {
  const auto before = [](const PlanWorkspace::SizedFlow& a, const PlanWorkspace::SizedFlow& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.flow < b.flow;
  };
  if (!std::is_sorted(w->order.begin(), w->order.end(), before)) std::sort(w->order.begin(), w->order.end(), before);
}

// Plans over bins. LPT decides at the end which rail each bin stands for.
absl::Status PlanOverBins(const Problem& problem, Policy policy, absl::Span<const PlanRail> rails, uint64_t whole_below,
                          PlanWorkspace* w) {
  CollectRails(rails, w);
  if (w->bins.empty()) {
    return absl::UnavailableError(absl::StrCat("none of the ", rails.size(), " rails is usable at both ends for ",
                                               problem.total_bytes, " bytes"));
  }
  size_t whole = 0;
  switch (policy) {
    case Policy::kLpt:
    case Policy::kLptFlow:
      SortFlows(w);
      plan_internal::LayLpt(problem, whole_below, &whole, w);
      plan_internal::MatchBinsToRails(problem, w);
      break;
    case Policy::kPinned:
    case Policy::kAligned:
    case Policy::kEcmp:
      plan_internal::LayByName(problem, policy, w);
      break;
    case Policy::kRoundRobin:
      plan_internal::LayRoundRobin(problem, w);
  }
  Emit(whole, w);
  return absl::OkStatus();
}

constexpr std::string_view kNames[] = {"lpt", "pinned", "aligned", "ecmp", "round_robin", "lpt_flow"};

}  // namespace

std::string_view PolicyName(Policy policy) { return kNames[static_cast<size_t>(policy)]; }

absl::StatusOr<Policy> ParsePolicy(std::string_view name) {
  std::string names;
  for (const Policy policy : kAllPolicies) {
    if (name == PolicyName(policy)) return policy;
    names.append(names.empty() ? "" : ", ").append(PolicyName(policy));
  }
  return absl::InvalidArgumentError(absl::StrCat("policy \"", std::string(name), "\" is none of ", names));
}

absl::Status BuildPlan(absl::Span<const PlanFlow> flows, absl::Span<const PlanRail> rails, PeerIndex destination,
                       const PlanOptions& options, Ledger* ledger, PlanWorkspace* workspace) {
  PlanWorkspace& w = *workspace;
  w.runs.clear();
  w.pending.clear();
  w.rail_bytes.assign(rails.size(), 0);
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  if (ledger->Sender().size() != rails.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ledger is for ", ledger->Sender().size(), " rails, the plan for ", rails.size()));
  }
  uint64_t total = 0;
  if (absl::Status status = CollectFlows(flows, &w, &total); !status.ok()) return status;
  if (total == 0) return CheckRails(rails);
  const Problem problem{.flows = flows,
                        .rails = rails.size(),
                        .destination = destination,
                        .chunk_bytes = options.chunk_bytes,
                        .min_bytes = plan_internal::EffectiveMinBytes(options),
                        .total_bytes = total,
                        .first_rail = options.first_rail,
                        .ledger = ledger};
  const uint64_t whole_below =
      options.policy == Policy::kLpt ? 2 * problem.min_bytes : std::numeric_limits<uint64_t>::max();
  const bool by_ledger = options.policy == Policy::kLpt || options.policy == Policy::kLptFlow;
  const bool one_run = by_ledger && w.order.size() == 1 && total < whole_below;
  if (one_run && plan_internal::LayOneRun(problem, rails, &w)) return absl::OkStatus();
  if (absl::Status status = CheckRails(rails); !status.ok()) return status;
  return PlanOverBins(problem, options.policy, rails, whole_below, &w);
}

PlanOptions OptionsFor(const PlannedExchange& exchange, PlanOptions configured) {
  // The time in which the engine's thread gives a rail its share of an exchange and takes its reports: some 1,700
  // instructions. The rails' threads take no longer. With n rails, n - 1 further shares take n - 1 times as long; they
  // save n - 1 times the time in which all rails together carry the exchange.
  constexpr double kShareSeconds = 0.7e-6;
  const bool whole = static_cast<double>(exchange.bytes) <= kShareSeconds * exchange.speeds_bytes_per_s;
  if (configured.policy == Policy::kLpt && whole) configured.policy = Policy::kLptFlow;
  // The sum of both places spreads the senders of a receiver evenly over its rails. If the number of rails divides the
  // number of nodes, the sender's own place counts; otherwise it is skipped, which is nearly even.
  const bool skips = exchange.nodes % exchange.rails != 0 && exchange.destination > exchange.source;
  configured.first_rail =
      static_cast<uint32_t>((exchange.source + exchange.destination - (skips ? 1 : 0)) % exchange.rails);
  return configured;
}

double NodeBoundSeconds(uint64_t out_bytes, uint64_t in_bytes, double sum_of_speeds_bytes_per_s) {
  const uint64_t most = std::max(out_bytes, in_bytes);
  if (most == 0) return 0;
  if (!(sum_of_speeds_bytes_per_s > 0)) return std::numeric_limits<double>::infinity();
  return static_cast<double>(most) / sum_of_speeds_bytes_per_s;
}

absl::Span<double> Ledger::Pair(PeerIndex destination) {
  while (pairs_.size() <= destination.value()) pairs_.emplace_back(sender_.size(), 0.0);
  return absl::MakeSpan(pairs_[destination.value()]);
}

void Ledger::Forget(PeerIndex destination) {
  if (destination.value() < pairs_.size()) pairs_[destination.value()].assign(sender_.size(), 0);
}

}  // namespace railsd
