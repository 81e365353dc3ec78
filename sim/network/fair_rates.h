// Max-min fair rates of flows over resources (NICs and links), by water filling: all rates rise together, each by the
// flow's weight, until a resource is full. Its flows keep their rates, and the rates of the other flows rise further.
#ifndef RAILSD_SIM_NETWORK_FAIR_RATES_H_
#define RAILSD_SIM_NETWORK_FAIR_RATES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "sim/network/transfer.h"

namespace railsd::sim {

// Resources are NICs that send, NICs that receive, and links from rail switches to spines and back. Their numbers are
// dense.
class FairRates {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Flow {
    uint32_t sender = 0, receiver = 0;  // resources
    uint32_t links = kNone;             // index of two more resources, of a flow that crosses a spine
    float weight = 1;
    double left = 0;  // bytes; 0: the flow has ended
    double rate = 0;  // bytes per second
  };

  // `keep_limits`: LimitOf() will be called.
  FairRates(size_t resources, Sharing sharing, bool keep_limits);

  // The number of the new flow. `links`: two resources, or none.
  uint32_t Add(uint32_t sender, uint32_t receiver, absl::Span<const uint32_t> links, float weight, double bytes);
  Flow& flow(uint32_t number) { return flows_[number]; }
  const Flow& flow(uint32_t number) const { return flows_[number]; }
  size_t size() const { return flows_.size(); }
  void Reserve(size_t flows) { flows_.reserve(flows); }

  double& capacity(uint32_t resource) { return resources_[resource].capacity; }
  // Bytes per second that flows take of it, ended ones included until Release().
  double used(uint32_t resource) const { return resources_[resource].taken; }

  // When flows end at their rates, in seconds from Allocate() on; infinite for those without a rate.
  struct Ends {
    double first = std::numeric_limits<double>::infinity();
    double last = 0;      // of the flows that have a rate
    bool lasting = true;  // kByBytesLeft: every flow keeps its rate until its end, also when others end
  };
  // Sets the rates of `active`, flows that have not ended. All active flows that share a resource with one of them must
  // be among them, and `resources` must have every resource that they use. Costs O(flows + resources * log(resources)).
  //
  // With kByBytesLeft, rates last. The level of a full resource is the rate of its flows for each byte that they have
  // left, so its flows end together. The resource with the lowest level fills first, and its flows end last. It stays
  // full until then. The bytes left of all its flows fall in the same proportion, so no level changes. When its flows
  // end, all other flows that use their resources have ended or are limited by another resource.
  Ends Allocate(absl::Span<const uint32_t> active, absl::Span<const uint32_t> resources);
  // kByBytesLeft: the times when flows end by the last Allocate(), the latest first. All flows that one resource limits
  // end at one of these times.
  const std::vector<double>& ends() const { return filled_; }
  // Gives back the rate that a flow had when it ended. Other flows do not get it before the next Allocate().
  void Release(uint32_t flow, double rate);
  // The latest end of a flow of `active` that is not after `latest`, by the rates of the last Allocate().
  double LastEndBy(double latest, absl::Span<const uint32_t> active) const;
  // The resource that limits the flow since the last Allocate().
  uint32_t LimitOf(uint32_t flow) const { return limits_[flow]; }

 private:
  struct Resource {
    double capacity = 0, spare = 0, taken = 0;  // bytes per second
    double rising = 0;                          // weight of the flows that still rise
    uint32_t rising_flows = 0;
    void Take(double weight, double rate) {
      spare -= rate;
      taken += rate;
      rising -= weight;
      --rising_flows;
    }
    // Weights of very different size leave rounding errors behind when they are taken away.
    double Level() const { return std::max(0.0, spare) / std::max(rising, std::numeric_limits<double>::min()); }
  };
  // A resource and the least rate per weight at which it is full. The rate is higher if flows have stopped rising
  // since.
  using Level = std::pair<double, uint32_t>;

  double WeightOf(const Flow& flow) const { return sharing_ == Sharing::kByBytesLeft ? flow.left : flow.weight; }
  void CollectWeights(absl::Span<const uint32_t> active, absl::Span<const uint32_t> resources);
  void Fill(uint32_t resource, double level);
  void SetRate(Flow* flow, double level, double end);
  template <typename Visit>
  void ForEachResource(const Flow& flow, Visit visit);

  const Sharing sharing_;
  const bool keep_limits_;
  std::vector<Flow> flows_;
  std::vector<std::array<uint32_t, 2>> links_;
  std::vector<uint32_t> limits_;              // by flow
  std::vector<std::vector<uint32_t>> users_;  // by resource: flows, also some that have ended
  std::vector<Resource> resources_;
  Ends ends_;
  std::vector<double> filled_;  // kByBytesLeft: when the flows of each full resource end
  std::vector<Level> levels_;   // a heap, the lowest first
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_FAIR_RATES_H_
