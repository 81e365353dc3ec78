#include "sim/network/fair_rates.h"

#include <algorithm>
#include <functional>

namespace railsd::sim {
namespace {

constexpr double kRises = -1;  // the rate of a flow that still rises
// A flow with less than this part of its share has lost the rest to rounding errors. It gets more when other flows end.
constexpr double kMostOfIt = 0.999;

}  // namespace

FairRates::FairRates(size_t resources, Sharing sharing, bool keep_limits)
    : sharing_(sharing), keep_limits_(keep_limits), users_(resources), resources_(resources) {}

uint32_t FairRates::Add(uint32_t sender, uint32_t receiver, absl::Span<const uint32_t> links, float weight,
                        double bytes) {
  const auto number = static_cast<uint32_t>(flows_.size());
  Flow flow{.sender = sender, .receiver = receiver, .weight = weight, .left = bytes};
  if (!links.empty()) {
    flow.links = static_cast<uint32_t>(links_.size());
    links_.push_back({links[0], links[1]});
    users_[links[0]].push_back(number);
    users_[links[1]].push_back(number);
  }
  users_[sender].push_back(number);
  users_[receiver].push_back(number);
  flows_.push_back(flow);
  if (keep_limits_) limits_.push_back(sender);
  return number;
}

template <typename Visit>
void FairRates::ForEachResource(const Flow& flow, Visit visit) {
  visit(resources_[flow.sender]);
  visit(resources_[flow.receiver]);
  if (flow.links == kNone) return;
  for (const uint32_t link : links_[flow.links]) visit(resources_[link]);
}

void FairRates::CollectWeights(absl::Span<const uint32_t> active, absl::Span<const uint32_t> resources) {
  for (const uint32_t number : resources) {
    Resource& resource = resources_[number];
    resource.spare = resource.capacity;
    resource.taken = 0;
    resource.rising = 0;
    resource.rising_flows = 0;
  }
  for (const uint32_t number : active) {
    Flow& flow = flows_[number];
    flow.rate = kRises;
    ForEachResource(flow, [weight = WeightOf(flow)](Resource& resource) {
      resource.rising += weight;
      ++resource.rising_flows;
    });
  }
}

FairRates::Ends FairRates::Allocate(absl::Span<const uint32_t> active, absl::Span<const uint32_t> resources) {
  CollectWeights(active, resources);
  ends_ = Ends{.lasting = sharing_ == Sharing::kByBytesLeft};
  filled_.clear();
  levels_.clear();
  for (const uint32_t number : resources) {
    if (resources_[number].rising_flows > 0) levels_.emplace_back(resources_[number].Level(), number);
  }
  std::make_heap(levels_.begin(), levels_.end(), std::greater<>());
  while (!levels_.empty()) {
    std::pop_heap(levels_.begin(), levels_.end(), std::greater<>());
    const auto [level, number] = levels_.back();
    if (resources_[number].rising_flows == 0) {
      levels_.pop_back();
      continue;
    }
    // Flows that stopped at lower levels leave more to the others, so the level of a resource can only have risen.
    const double now = resources_[number].Level();
    if (now > level) {
      levels_.back().first = now;
      std::push_heap(levels_.begin(), levels_.end(), std::greater<>());
      continue;
    }
    levels_.pop_back();
    Fill(number, level);
  }
  return ends_;
}

void FairRates::SetRate(Flow* flow, double level, double end) {
  const double weight = WeightOf(*flow);
  // A rounding error in the sum of weights can make the share larger than the spare capacity.
  const double spare = std::max(0.0, std::min(resources_[flow->sender].spare, resources_[flow->receiver].spare));
  flow->rate = std::min(weight * level, spare);
  if (flow->rate < kMostOfIt * weight * level) ends_.lasting = false;
  if (sharing_ == Sharing::kByWeight || flow->rate == spare) {
    end = flow->rate > 0 ? flow->left / flow->rate : std::numeric_limits<double>::infinity();
  }
  ends_.first = std::min(ends_.first, end);
  if (flow->rate > 0) ends_.last = std::max(ends_.last, end);
  ForEachResource(*flow, [weight, flow](Resource& resource) { resource.Take(weight, flow->rate); });
}

void FairRates::Release(uint32_t flow, double rate) {
  ForEachResource(flows_[flow], [rate](Resource& resource) { resource.taken = std::max(0.0, resource.taken - rate); });
}

void FairRates::Fill(uint32_t resource, double level) {
  const double end = level > 0 ? 1 / level : std::numeric_limits<double>::infinity();
  if (sharing_ == Sharing::kByBytesLeft && level > 0) filled_.push_back(end);
  std::vector<uint32_t>& users = users_[resource];
  size_t kept = 0;
  for (const uint32_t number : users) {
    Flow& flow = flows_[number];
    if (flow.left <= 0) continue;
    users[kept++] = number;
    if (flow.rate != kRises) continue;
    SetRate(&flow, level, end);
    if (keep_limits_) limits_[number] = resource;
  }
  users.resize(kept);
}

double FairRates::LastEndBy(double latest, absl::Span<const uint32_t> active) const {
  double last = 0;
  for (const uint32_t number : active) {
    const Flow& flow = flows_[number];
    if (flow.left <= latest * flow.rate) last = std::max(last, flow.left / flow.rate);
  }
  return last;
}

}  // namespace railsd::sim
