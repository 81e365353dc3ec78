#include "sim/network/fluid.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "sim/network/fair_rates.h"
#include "sim/network/resources.h"
#include "sim/network/tally.h"

namespace railsd::sim {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Less than this many bytes is rounding.
constexpr double kNothing = 1e-6;
constexpr double kSameTime = 1e-12;    // times that differ by less than this part are the same
constexpr float kLeastWeight = 1e-6F;  // of a transfer of which most bytes were moved

// A set of nodes and a set of rails that transfers join, and the flows between these NICs.
struct Plane {
  std::vector<uint32_t> nodes, rails;
  std::vector<uint32_t> resources;
  std::vector<uint32_t> active;  // flows
  double updated = 0;            // the time for which the flows' bytes left are right
  double next_end = kNever;      // of the flows that end next
  bool lasting = false;          // the rates are right until the flows end
  std::vector<double> ends;      // if `lasting`: when flows end, the latest first
  bool changed = false;          // the rates are out of date
};

// Sets of numbers that are joined two by two.
class Groups {
 public:
  explicit Groups(size_t size) : leader_(size) { std::iota(leader_.begin(), leader_.end(), 0); }
  void Join(uint32_t a, uint32_t b) { leader_[Find(a)] = Find(b); }
  // Numbers the sets from 0 on and writes the number of each element's set. Returns how many sets there are.
  size_t Number(std::vector<uint32_t>* places) {
    std::vector<uint32_t> place_of(leader_.size(), UINT32_MAX);
    uint32_t count = 0;
    places->clear();
    for (uint32_t i = 0; i < leader_.size(); ++i) {
      uint32_t& place = place_of[Find(i)];
      if (place == UINT32_MAX) place = count++;
      places->push_back(place);
    }
    return count;
  }

 private:
  uint32_t Find(uint32_t i) {
    while (leader_[i] != i) i = leader_[i] = leader_[leader_[i]];
    return i;
  }
  std::vector<uint32_t> leader_;
};

class FluidNetwork : public NetworkView {
 public:
  FluidNetwork(const Fabric& fabric, TransferPlan plan, const FluidOptions& options, size_t timeline_bins,
               Reaction* reaction);
  Outcome Run();

  double Now() const override { return now_; }
  absl::Span<const uint32_t> ActiveFrom(size_t node) override;
  const Path& PathOf(uint32_t transfer) const override { return transfers_[transfer].path; }
  double BytesLeft(uint32_t transfer) const override;
  double WeightOf(uint32_t transfer) const override { return rates_.flow(transfer).weight; }
  double Rate(uint32_t transfer) const override { return std::max(0.0, rates_.flow(transfer).rate); }
  double Congestion(uint32_t transfer) const override { return resources_.IsSender(rates_.LimitOf(transfer)) ? 0 : 1; }
  double SpeedOf(size_t nic) const override { return periods_[period_].speeds[nic]; }
  double SendRate(size_t nic) const override {
    return active_at_[nic] > 0 ? std::min(rates_.used(static_cast<uint32_t>(nic)), SpeedOf(nic)) : 0;
  }
  uint64_t PostedBytes(size_t) const override { return 0; }
  void Move(uint32_t transfer, double bytes, const Path& to) override;

 private:
  void FormPlanes();
  void SetCapacities();
  void AddResources(bool spines, Plane* plane);
  size_t PlaceOfPlane(const Path& path) const {
    return group_of_node_[path.source_node] * rail_groups_ + group_of_rail_[path.source_rail];
  }
  Plane& PlaneOf(const Path& path) { return planes_[PlaceOfPlane(path)]; }
  void MarkChanged(Plane* plane);
  void Start(uint32_t transfer);
  void Index(uint32_t transfer);
  void IndexAll();
  void StartStage();
  void AdvanceTo(double time, Plane* plane);
  void Ended(uint32_t transfer, double at);
  void Allocate(Plane* plane);
  double NextOfEnds(Plane* plane) const;
  void SetNextEnd(double end, Plane* plane);
  double NextEvent();
  void AdvanceEnding();
  void ChangeSpeeds();
  void TellPeriod();
  void TellIdle();
  void AddToTally(double from, double to, const Plane& plane);
  Outcome Finish();

  const Fabric& fabric_;
  const FluidOptions options_;
  const Resources resources_;
  Reaction* const reaction_;
  const std::vector<SpeedPeriod> periods_;
  std::vector<Transfer> transfers_;  // each one that has started has a flow of the same number
  FairRates rates_;
  Tally tally_;
  std::vector<Plane> planes_;
  std::vector<uint32_t> group_of_node_, group_of_rail_;
  size_t rail_groups_ = 0;
  std::vector<uint32_t> changed_;                   // planes
  std::vector<std::pair<double, uint32_t>> ends_;   // a heap of planes by next_end, the soonest first; some are stale
  std::vector<uint32_t> active_at_;                 // by sending NIC: flows
  std::vector<double> unused_;                      // by resource: bytes of rate x step after the ends of flows
  std::vector<std::pair<uint32_t, double>> ended_;  // flows that end in the present step, and when
  // Flows that have ended, and their rates. SendRate() of a NIC with other flows includes them until the time goes on.
  std::vector<std::pair<uint32_t, double>> released_;
  std::vector<size_t> idle_;                 // NICs that have just ended their last flow
  bool indexed_ = false;                     // the two tables below are filled
  std::vector<std::vector<uint32_t>> from_;  // by node: active flows, and some that have ended
  absl::flat_hash_map<uint64_t, uint32_t> by_path_;
  double now_ = 0;
  double next_period_ = kNever;
  size_t period_ = 0;
  size_t started_ = 0;  // of the transfers of the plan
  size_t active_ = 0;
};

FluidNetwork::FluidNetwork(const Fabric& fabric, TransferPlan plan, const FluidOptions& options, size_t timeline_bins,
                           Reaction* reaction)
    : fabric_(fabric),
      options_(options),
      resources_(fabric),
      reaction_(reaction),
      periods_(SpeedPeriods(fabric)),
      transfers_(std::move(plan.transfers)),
      rates_(resources_.count(), plan.sharing, reaction != nullptr),
      tally_(fabric, timeline_bins),
      active_at_(resources_.nics(), 0),
      unused_(resources_.count(), 0),
      from_(fabric.nodes) {
  // Puts the flows of a rail side by side in memory, because they are computed together.
  std::stable_sort(transfers_.begin(), transfers_.end(), [](const Transfer& a, const Transfer& b) {
    return std::pair(a.stage, a.path.source_rail) < std::pair(b.stage, b.path.source_rail);
  });
  rates_.Reserve(transfers_.size());
  FormPlanes();
  SetCapacities();
  if (reaction_ != nullptr && reaction_->PeriodSeconds() > 0) next_period_ = reaction_->PeriodSeconds();
}

// Makes groups of nodes that transfers join, directly or through others, and groups of rails in the same way. If a
// transfer crosses a spine, all nodes are one group, because they share the links to spines.
void FluidNetwork::FormPlanes() {
  Groups nodes(fabric_.nodes), rails(fabric_.rails());
  bool spines = false;
  for (const Transfer& transfer : transfers_) {
    const Path& path = transfer.path;
    nodes.Join(path.source_node, path.destination_node);
    rails.Join(path.source_rail, path.destination_rail);
    spines = spines || path.spine != Path::kNoSpine;
  }
  for (uint32_t node = 1; spines && node < fabric_.nodes; ++node) nodes.Join(0, node);
  const size_t node_groups = nodes.Number(&group_of_node_);
  rail_groups_ = rails.Number(&group_of_rail_);
  planes_.resize(node_groups * rail_groups_);
  for (size_t i = 0; i < planes_.size(); ++i) {
    for (uint32_t node = 0; node < fabric_.nodes; ++node) {
      if (group_of_node_[node] == i / rail_groups_) planes_[i].nodes.push_back(node);
    }
    for (uint32_t rail = 0; rail < fabric_.rails(); ++rail) {
      if (group_of_rail_[rail] == i % rail_groups_) planes_[i].rails.push_back(rail);
    }
    AddResources(spines, &planes_[i]);
  }
}

void FluidNetwork::AddResources(bool spines, Plane* plane) {
  for (const uint32_t rail : plane->rails) {
    for (const uint32_t node : plane->nodes) {
      plane->resources.push_back(resources_.Sender(node, rail));
      plane->resources.push_back(resources_.Receiver(node, rail));
    }
    for (size_t spine = 0; spines && spine < fabric_.spines; ++spine) {
      plane->resources.push_back(resources_.Up(rail, spine));
      plane->resources.push_back(resources_.Down(rail, spine));
    }
  }
}

void FluidNetwork::MarkChanged(Plane* plane) {
  if (plane->changed) return;
  plane->changed = true;
  changed_.push_back(static_cast<uint32_t>(plane - planes_.data()));
}

void FluidNetwork::SetCapacities() {
  for (size_t node = 0; node < fabric_.nodes; ++node) {
    for (size_t rail = 0; rail < fabric_.rails(); ++rail) {
      const double speed = SpeedOf(fabric_.Nic(node, rail));
      rates_.capacity(resources_.Sender(node, rail)) = speed;
      rates_.capacity(resources_.Receiver(node, rail)) = speed;
    }
  }
  for (size_t rail = 0; rail < fabric_.rails(); ++rail) {
    for (size_t spine = 0; spine < fabric_.spines; ++spine) {
      rates_.capacity(resources_.Up(rail, spine)) = fabric_.SpineLinkSpeed();
      rates_.capacity(resources_.Down(rail, spine)) = fabric_.SpineLinkSpeed();
    }
  }
}

void FluidNetwork::Start(uint32_t transfer) {
  const Transfer& t = transfers_[transfer];
  std::array<uint32_t, 2> links{};
  absl::Span<const uint32_t> crossed;
  if (t.path.spine != Path::kNoSpine) {
    links = resources_.Links(t.path);
    crossed = links;
  }
  const uint32_t sender = resources_.Sender(t.path.source_node, t.path.source_rail);
  const uint32_t flow = rates_.Add(sender, resources_.Receiver(t.path.destination_node, t.path.destination_rail),
                                   crossed, t.weight, t.bytes);
  Plane& plane = PlaneOf(t.path);
  plane.active.push_back(flow);
  MarkChanged(&plane);
  ++active_;
  ++active_at_[sender];
  if (indexed_) Index(flow);
}

void FluidNetwork::Index(uint32_t transfer) {
  const Path& path = transfers_[transfer].path;
  from_[path.source_node].push_back(transfer);
  by_path_[RailPathKey(path)] = transfer;
}

// Fills the tables at the first reaction, because most exchanges end without one.
void FluidNetwork::IndexAll() {
  if (std::exchange(indexed_, true)) return;
  for (uint32_t flow = 0; flow < rates_.size(); ++flow) {
    if (rates_.flow(flow).left > 0) Index(flow);
  }
}

void FluidNetwork::StartStage() {
  const uint32_t stage = transfers_[started_].stage;
  while (started_ < transfers_.size() && transfers_[started_].stage == stage) {
    Start(static_cast<uint32_t>(started_++));
  }
  for (Plane& plane : planes_) plane.updated = now_;
}

absl::Span<const uint32_t> FluidNetwork::ActiveFrom(size_t node) {
  IndexAll();
  std::vector<uint32_t>& from = from_[node];
  from.erase(std::remove_if(from.begin(), from.end(), [this](uint32_t flow) { return rates_.flow(flow).left <= 0; }),
             from.end());
  return from;
}

double FluidNetwork::BytesLeft(uint32_t transfer) const {
  const FairRates::Flow& flow = rates_.flow(transfer);
  const Plane& plane = planes_[PlaceOfPlane(transfers_[transfer].path)];
  return std::max(0.0, flow.left - std::max(0.0, flow.rate) * (now_ - plane.updated));
}

void FluidNetwork::Ended(uint32_t transfer, double at) {
  const Path& path = transfers_[transfer].path;
  FairRates::Flow& flow = rates_.flow(transfer);
  released_.emplace_back(transfer, Rate(transfer));
  flow.left = flow.rate = 0;
  --active_;
  if (--active_at_[flow.sender] == 0) idle_.push_back(flow.sender);
  tally_.Finish(path.source_node, path.destination_node, at + PropagationSeconds(path, fabric_));
}

// Adds the bytes that the plane's NICs carried from `from` to `to`.
void FluidNetwork::AddToTally(double from, double to, const Plane& plane) {
  for (const uint32_t rail : plane.rails) {
    for (const uint32_t node : plane.nodes) {
      const size_t nic = fabric_.Nic(node, rail);
      const auto carried = [&](uint32_t resource) {
        return std::max(0.0, rates_.used(resource) * (to - from) - std::exchange(unused_[resource], 0));
      };
      tally_.AddSent(nic, carried(resources_.Sender(node, rail)), SpeedOf(nic), from, to);
      tally_.AddReceived(nic, carried(resources_.Receiver(node, rail)), SpeedOf(nic));
    }
  }
}

void FluidNetwork::AdvanceTo(double time, Plane* plane) {
  const double step = time - plane->updated;
  if (step <= 0) return;
  if (plane->active.empty()) {
    plane->updated = time;
    return;
  }
  size_t kept = 0;
  ended_.clear();
  for (const uint32_t number : plane->active) {
    FairRates::Flow& flow = rates_.flow(number);
    const double carried = flow.rate * step;
    if (flow.left > carried + flow.rate * time * kSameTime + kNothing) {
      flow.left -= carried;
      plane->active[kept++] = number;
      continue;
    }
    const double unused = std::max(0.0, carried - flow.left);
    unused_[flow.sender] += unused;
    unused_[flow.receiver] += unused;
    ended_.emplace_back(number, flow.rate > 0 ? std::min(time, plane->updated + flow.left / flow.rate) : time);
  }
  AddToTally(plane->updated, time, *plane);
  for (const auto& [number, end] : ended_) Ended(number, end);
  plane->active.resize(kept);
  plane->updated = time;
  if (!ended_.empty() && !plane->lasting) MarkChanged(plane);
}

// Sets the rates and when the next flows end.
void FluidNetwork::Allocate(Plane* plane) {
  // Moves leave ended flows in the list.
  if (reaction_ != nullptr) {
    plane->active.erase(std::remove_if(plane->active.begin(), plane->active.end(),
                                       [this](uint32_t flow) { return rates_.flow(flow).left <= 0; }),
                        plane->active.end());
  }
  const FairRates::Ends ends = rates_.Allocate(plane->active, plane->resources);
  ++tally_.outcome().events;
  plane->changed = false;
  plane->lasting = ends.lasting;
  plane->next_end = kNever;
  if (ends.first == kNever) return;
  if (ends.lasting) {
    plane->ends = rates_.ends();
    for (double& end : plane->ends) end += plane->updated;
    return SetNextEnd(NextOfEnds(plane), plane);
  }
  const double latest = ends.first + options_.tolerance * (plane->updated + ends.last);
  SetNextEnd(plane->updated + std::max(ends.first, rates_.LastEndBy(latest, plane->active)), plane);
}

// The next time at which flows end. Flows that end within the tolerance after the first one all end with the last of
// them.
double FluidNetwork::NextOfEnds(Plane* plane) const {
  const double latest = plane->ends.back() + options_.tolerance * plane->ends.front();
  double last = 0;
  for (; !plane->ends.empty() && plane->ends.back() <= latest; plane->ends.pop_back()) last = plane->ends.back();
  return last;
}

void FluidNetwork::SetNextEnd(double end, Plane* plane) {
  // Time must advance, even if the end of a flow differs too little from `updated` for a double.
  plane->next_end = std::max(end, std::nextafter(plane->updated, kNever));
  ends_.emplace_back(plane->next_end, static_cast<uint32_t>(plane - planes_.data()));
  std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
}

void FluidNetwork::Move(uint32_t transfer, double bytes, const Path& to) {
  IndexAll();
  AdvanceTo(now_, &PlaneOf(transfers_[transfer].path));
  AdvanceTo(now_, &PlaneOf(to));
  FairRates::Flow& flow = rates_.flow(transfer);
  bytes = std::min(bytes, flow.left);
  if (bytes <= 0) return;
  const bool all = flow.left - bytes <= kNothing;
  if (all) bytes = flow.left;
  const float weight = all ? flow.weight : static_cast<float>(flow.weight * bytes / flow.left);
  ++tally_.outcome().moves;
  MarkChanged(&PlaneOf(transfers_[transfer].path));
  const auto same = by_path_.find(RailPathKey(to));
  if (same != by_path_.end() && rates_.flow(same->second).left > 0) {
    rates_.flow(same->second).left += bytes;
    rates_.flow(same->second).weight += weight;
    MarkChanged(&PlaneOf(to));
  } else {
    const Transfer moved{.path = to, .stage = transfers_[transfer].stage, .weight = weight, .bytes = bytes};
    transfers_.push_back(moved);
    started_ = transfers_.size();  // no transfer waits for a later stage: policies with stages do not react
    Start(static_cast<uint32_t>(transfers_.size() - 1));
  }
  FairRates::Flow& source = rates_.flow(transfer);
  if (all) {
    Ended(transfer, now_);
  } else {
    source.left -= bytes;
    source.weight = std::max(source.weight - weight, kLeastWeight);
  }
}

double FluidNetwork::NextEvent() {
  const auto is_stale = [this](const std::pair<double, uint32_t>& end) {
    const Plane& plane = planes_[end.second];
    return plane.active.empty() || plane.next_end != end.first;
  };
  while (!ends_.empty() && is_stale(ends_.front())) {
    std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
    ends_.pop_back();
  }
  const double next = ends_.empty() ? kNever : ends_.front().first;
  const double change = period_ + 1 < periods_.size() ? periods_[period_ + 1].since : kNever;
  // A policy is not asked while nothing moves.
  return next == kNever ? change : std::min({next, change, next_period_});
}

// Advances the planes in which transfers end now.
void FluidNetwork::AdvanceEnding() {
  while (!ends_.empty() && ends_.front().first <= now_) {
    std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
    Plane& plane = planes_[ends_.back().second];
    ends_.pop_back();
    if (plane.next_end > now_ || plane.active.empty()) continue;
    AdvanceTo(now_, &plane);
    if (plane.lasting && !plane.ends.empty()) {
      SetNextEnd(NextOfEnds(&plane), &plane);
    } else {
      MarkChanged(&plane);
    }
  }
}

void FluidNetwork::ChangeSpeeds() {
  if (period_ + 1 >= periods_.size() || periods_[period_ + 1].since > now_) return;
  for (Plane& plane : planes_) AdvanceTo(now_, &plane);
  ++period_;
  SetCapacities();
  for (Plane& plane : planes_) MarkChanged(&plane);
  for (size_t node = 0; reaction_ != nullptr && node < fabric_.nodes; ++node) reaction_->OnChange(node, *this);
}

void FluidNetwork::TellPeriod() {
  if (now_ < next_period_) return;
  next_period_ = NextPeriod(now_, periods_[period_].since, reaction_->PeriodSeconds());
  for (size_t node = 0; node < fabric_.nodes; ++node) reaction_->OnPeriod(node, *this);
}

void FluidNetwork::TellIdle() {
  std::vector<size_t> idle;
  idle.swap(idle_);
  if (reaction_ == nullptr) return;
  for (const size_t nic : idle) {
    if (active_at_[nic] == 0) reaction_->OnIdle(nic / fabric_.rails(), nic % fabric_.rails(), *this);
  }
}

Outcome FluidNetwork::Finish() {
  for (uint32_t i = 0; i < transfers_.size(); ++i) {
    const Path& path = transfers_[i].path;
    tally_.Miss(path.source_node, path.destination_node, i < rates_.size() ? rates_.flow(i).left : transfers_[i].bytes);
  }
  return tally_.Take();
}

Outcome FluidNetwork::Run() {
  tally_.outcome().transfers = transfers_.size();
  while (true) {
    if (active_ == 0) {
      if (started_ == transfers_.size()) break;
      StartStage();
    }
    for (const auto& [flow, rate] : released_) rates_.Release(flow, rate);
    released_.clear();
    for (const uint32_t plane : changed_) Allocate(&planes_[plane]);
    changed_.clear();
    now_ = NextEvent();
    if (now_ == kNever) break;
    AdvanceEnding();
    ChangeSpeeds();
    TellPeriod();
    TellIdle();
  }
  return Finish();
}

}  // namespace

Outcome RunFluid(const Fabric& fabric, TransferPlan plan, const FluidOptions& options, size_t timeline_bins,
                 Reaction* reaction) {
  return FluidNetwork(fabric, std::move(plan), options, timeline_bins, reaction).Run();
}

}  // namespace railsd::sim
