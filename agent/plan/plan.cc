#include "agent/plan/plan.h"

#include <algorithm>
#include <cmath>
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

bool IsSpeed(double bytes_per_s) { return std::isfinite(bytes_per_s) && bytes_per_s >= 0; }

absl::Status CheckRails(absl::Span<const PlanRail> rails, Ledger* ledger) {
  for (size_t i = 0; i < rails.size(); ++i) {
    if (!IsSpeed(rails[i].source_speed)) {
      return absl::InvalidArgumentError(absl::StrCat("rail ", i, ": source_speed ", rails[i].source_speed,
                                                     " bytes/s is not a finite number of 0 or more"));
    }
    if (!IsSpeed(rails[i].destination_speed)) {
      return absl::InvalidArgumentError(absl::StrCat("rail ", i, ": destination_speed ", rails[i].destination_speed,
                                                     " bytes/s is not a finite number of 0 or more"));
    }
  }
  if (ledger->Sender().size() != rails.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ledger is for ", ledger->Sender().size(), " rails, the plan for ", rails.size()));
  }
  return absl::OkStatus();
}

// Fills `order` (unsorted) and returns the sum of bytes.
absl::StatusOr<uint64_t> CollectFlows(absl::Span<const PlanFlow> flows, PlanWorkspace* w) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 63;
  uint64_t total = 0;
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
  return total;
}

// Lists the usable rails and their speeds relative to the fastest: equal rails get exactly 1, so that loads of equal
// rails compare without rounding.
void CollectRails(absl::Span<const PlanRail> rails, PlanWorkspace* w) {
  w->usable.clear();
  w->speed.clear();
  double fastest = 0;
  for (size_t i = 0; i < rails.size(); ++i) {
    const double speed = std::min(rails[i].source_speed, rails[i].destination_speed);
    if (!rails[i].usable || speed <= 0) continue;
    w->usable.push_back(static_cast<uint32_t>(i));
    w->speed.push_back(speed);
    fastest = std::max(fastest, speed);
  }
  for (double& speed : w->speed) {
    // A rail too slow for the ratio to be a normal number would get no bytes anyway.
    speed = std::max(speed / fastest, std::numeric_limits<double>::min());
  }
}

// The result: pending runs grouped by rail. Runs of flows laid whole by LPT, the smallest, come last on their rail.
void Emit(size_t rails, size_t whole, PlanWorkspace* w) {
  w->rail_bytes.assign(rails, 0);
  w->cursor.assign(rails + 1, 0);
  for (size_t b = 0; b < w->usable.size(); ++b) w->rail_bytes[w->rail_of_bin[b]] = w->bin_bytes[b];
  for (const PlanRun& run : w->pending) ++w->cursor[w->rail_of_bin[run.rail.value()] + 1];
  for (size_t i = 1; i <= rails; ++i) w->cursor[i] += w->cursor[i - 1];
  w->runs.resize(w->pending.size());
  const auto put = [w](const PlanRun& run) {
    const uint32_t rail = w->rail_of_bin[run.rail.value()];
    PlanRun& out = w->runs[w->cursor[rail]++];
    out = run;
    out.rail = RailIndex(rail);
  };
  for (size_t i = whole; i < w->pending.size(); ++i) put(w->pending[i]);
  for (size_t i = 0; i < whole; ++i) put(w->pending[i]);
}

void SortFlows(PlanWorkspace* w) {
  const auto before = [](const PlanWorkspace::SizedFlow& a, const PlanWorkspace::SizedFlow& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.flow < b.flow;
  };
  if (!std::is_sorted(w->order.begin(), w->order.end(), before)) std::sort(w->order.begin(), w->order.end(), before);
}

void Lay(const Problem& problem, Policy policy, PlanWorkspace* w) {
  size_t whole = 0;
  const bool lpt = policy == Policy::kLpt || policy == Policy::kLptFlow;
  switch (policy) {
    case Policy::kLpt:
      plan_internal::LayLpt(problem, 2 * problem.min_bytes, &whole, w);
      break;
    case Policy::kLptFlow:
      plan_internal::LayLpt(problem, std::numeric_limits<uint64_t>::max(), &whole, w);
      break;
    case Policy::kPinned:
      plan_internal::LayPinned(problem, w);
      break;
    case Policy::kAligned:
      plan_internal::LayAligned(problem, w);
      break;
    case Policy::kEcmp:
      plan_internal::LayEcmp(problem, w);
      break;
    case Policy::kRoundRobin:
      plan_internal::LayRoundRobin(problem, w);
      break;
  }
  w->rail_of_bin.assign(w->usable.begin(), w->usable.end());
  if (lpt) plan_internal::MatchBinsToRails(problem, w);
  Emit(problem.rails.size(), whole, w);
}

}  // namespace

std::string_view PolicyName(Policy policy) {
  switch (policy) {
    case Policy::kLpt:
      return "lpt";
    case Policy::kPinned:
      return "pinned";
    case Policy::kAligned:
      return "aligned";
    case Policy::kEcmp:
      return "ecmp";
    case Policy::kRoundRobin:
      return "round_robin";
    case Policy::kLptFlow:
      return "lpt_flow";
  }
  return "unknown";
}

absl::StatusOr<Policy> ParsePolicy(std::string_view name) {
  std::string names;
  for (const Policy policy : kAllPolicies) {
    if (name == PolicyName(policy)) return policy;
    if (!names.empty()) names += ", ";
    names += PolicyName(policy);
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
  if (absl::Status status = CheckRails(rails, ledger); !status.ok()) return status;
  const absl::StatusOr<uint64_t> total = CollectFlows(flows, &w);
  if (!total.ok()) return total.status();
  if (*total == 0) return absl::OkStatus();
  CollectRails(rails, &w);
  if (w.usable.empty()) {
    return absl::UnavailableError(
        absl::StrCat("none of the ", rails.size(), " rails is usable at both ends for ", *total, " bytes"));
  }
  const Problem problem{.flows = flows,
                        .rails = rails,
                        .destination = destination,
                        .chunk_bytes = options.chunk_bytes,
                        .min_bytes = plan_internal::EffectiveMinBytes(options),
                        .total_bytes = *total,
                        .ledger = ledger};
  w.bin_bytes.assign(w.usable.size(), 0);
  if (options.policy == Policy::kLpt || options.policy == Policy::kLptFlow) SortFlows(&w);
  Lay(problem, options.policy, &w);
  return absl::OkStatus();
}

}  // namespace railsd
