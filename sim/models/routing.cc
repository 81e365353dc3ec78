#include "sim/models/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/workload/random.h"

namespace railsd::sim {
namespace {

using rails::workload::Random;
using rails::workload::TrafficMatrix;

constexpr size_t kMostRanks = 8192;
constexpr uint64_t kMostTokens = uint64_t{1} << 32;
constexpr uint32_t kMostExperts = 65536;
constexpr uint64_t kMostDraws = 16'000'000;  // experts drawn for a layer; above this one draw stands for several tokens
constexpr double kWeightOne = 1 << 24;
constexpr int kAttempts = 64;

absl::Status CheckSizes(const ModelShape& shape, const RoutingOptions& options) {
  const size_t ranks = options.nodes * options.gpus_per_node;
  if (ranks == 0 || ranks > kMostRanks) {
    return absl::InvalidArgumentError(absl::StrCat(options.nodes, " nodes of ", options.gpus_per_node,
                                                   " GPUs are not between 1 and ", kMostRanks, " GPUs"));
  }
  if (shape.experts == 0 || shape.experts > kMostExperts || shape.hidden == 0) {
    return absl::InvalidArgumentError(absl::StrCat(shape.experts, " experts with a hidden size of ", shape.hidden,
                                                   ": the first is not between 1 and ", kMostExperts,
                                                   " or the second is 0"));
  }
  if (options.tokens_per_rank == 0 || options.tokens_per_rank > kMostTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.tokens_per_rank, " tokens a rank are not between 1 and 2^32"));
  }
  if (!(options.skew >= 0 && options.skew <= 8)) {
    return absl::InvalidArgumentError(absl::StrCat("a skew of ", options.skew, " is not between 0 and 8"));
  }
  return absl::OkStatus();
}

bool OneDividesTheOther(uint64_t a, uint64_t b) { return a % b == 0 || b % a == 0; }

uint64_t NodesOfGroup(const ModelShape& shape, const RoutingOptions& options) {
  if (options.group_nodes != 0) return options.group_nodes;
  uint64_t nodes = std::min<uint64_t>(options.nodes, shape.experts);
  if (shape.node_limit != 0) nodes = std::min(nodes, uint64_t{shape.experts} * shape.node_limit / shape.top_k);
  return std::max<uint64_t>(nodes, 1);
}

absl::Status CheckFit(const ModelShape& shape, const RoutingOptions& options) {
  const uint64_t ranks = options.nodes * options.gpus_per_node;
  if (shape.top_k == 0 || shape.top_k > shape.experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k ", shape.top_k, " is not between 1 and the ", shape.experts, " experts"));
  }
  if (options.experts_per_gpu != 0 && shape.experts > ranks * options.experts_per_gpu) {
    return absl::InvalidArgumentError(absl::StrCat(shape.experts, " experts do not fit into ", ranks, " GPUs of ",
                                                   options.experts_per_gpu, " experts each"));
  }
  const uint64_t group = NodesOfGroup(shape, options);
  if (shape.experts % group != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        shape.experts, " experts cannot lie evenly on ", group, " nodes; group_nodes must divide both, as ",
        std::gcd(uint64_t{shape.experts}, uint64_t{options.nodes}), " does"));
  }
  if (options.nodes % group != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.nodes, " nodes are no multiple of the ", group, " that hold all experts once"));
  }
  const uint64_t experts_of_node = shape.experts / group;
  if (!OneDividesTheOther(experts_of_node, options.gpus_per_node)) {
    return absl::InvalidArgumentError(absl::StrCat(experts_of_node, " experts of a node cannot lie evenly on its ",
                                                   options.gpus_per_node,
                                                   " GPUs: one number must be a multiple of the other"));
  }
  if (shape.node_limit != 0 && shape.node_limit * experts_of_node < shape.top_k) {
    return absl::InvalidArgumentError(absl::StrCat("top_k ", shape.top_k, " is more than the ",
                                                   shape.node_limit * experts_of_node, " experts of ", shape.node_limit,
                                                   " nodes, the node limit"));
  }
  return absl::OkStatus();
}

// The experts with their popularity and places. Draws the experts of tokens.
class Router {
 public:
  Router(const ModelShape& shape, const RoutingOptions& options)
      : shape_(shape), options_(options), random_(options.seed) {
    nodes_of_group_ = NodesOfGroup(shape, options);
    experts_of_node_ = shape.experts / nodes_of_group_;
    popularity_.resize(shape.experts);
    for (size_t e = 0; e < popularity_.size(); ++e) {
      popularity_[e] = 1 + static_cast<uint64_t>(std::llround(kWeightOne * std::pow(e + 1.0, -options.skew)));
    }
    for (size_t e = popularity_.size(); e > 1; --e) std::swap(popularity_[e - 1], popularity_[random_.Below(e)]);
  }

  // Begins the tokens of the next sending rank, for which the popularity of experts differs a little.
  void StartSource(size_t source) {
    source_ = source;
    sums_.assign(popularity_.size(), 0);
    uint64_t sum = 0;
    for (size_t e = 0; e < popularity_.size(); ++e) {
      sum += std::max<uint64_t>(1, rails::workload::VarySource(popularity_[e], &random_));
      sums_[e] = sum;
    }
  }

  // Adds the copies of one token to `tokens_to`, `weight` times.
  void AddToken(uint64_t weight, std::vector<uint64_t>* tokens_to) {
    chosen_.clear();
    nodes_.clear();
    places_.clear();
    while (chosen_.size() < shape_.top_k) Choose();
    for (const uint32_t expert : chosen_) {
      size_t place = RankOf(expert);
      if (options_.copies == Copies::kNode) {
        place = place / options_.gpus_per_node * options_.gpus_per_node + source_ % options_.gpus_per_node;
      }
      const bool again = std::find(places_.begin(), places_.end(), place) != places_.end();
      if (again && options_.copies != Copies::kExpert) continue;
      places_.push_back(place);
      (*tokens_to)[place] += weight;
    }
  }

 private:
  size_t NodeOf(uint32_t expert) const {
    const size_t source_node = source_ / options_.gpus_per_node;
    return source_node / nodes_of_group_ * nodes_of_group_ + expert / experts_of_node_;
  }

  size_t RankOf(uint32_t expert) const {
    const size_t gpus = options_.gpus_per_node;
    const size_t in_node = expert % experts_of_node_;
    const size_t gpu = experts_of_node_ >= gpus ? in_node / (experts_of_node_ / gpus)
                                                : source_ % gpus / experts_of_node_ * experts_of_node_ + in_node;
    return NodeOf(expert) * gpus + gpu;
  }

  bool IsChosen(uint32_t expert) const { return std::find(chosen_.begin(), chosen_.end(), expert) != chosen_.end(); }

  // WeightBefore(): sum of the weights of the experts before this one. WeightOf(): that of all experts of one node.
  uint64_t WeightBefore(size_t expert) const { return expert == 0 ? 0 : sums_[expert - 1]; }
  uint64_t WeightOf(size_t place) const {
    return WeightBefore((place + 1) * experts_of_node_) - WeightBefore(place * experts_of_node_);
  }

  uint32_t ExpertAt(uint64_t weight) const {
    return static_cast<uint32_t>(std::upper_bound(sums_.begin(), sums_.end(), weight) - sums_.begin());
  }

  // Draws by popularity from all experts, or, once the token has `node_limit` nodes, from the experts of these.
  uint32_t Draw() {
    if (shape_.node_limit == 0 || nodes_.size() < shape_.node_limit) return ExpertAt(random_.Below(sums_.back()));
    uint64_t all = 0;
    for (const size_t node : nodes_) all += WeightOf(node);
    uint64_t rest = random_.Below(all);
    for (const size_t node : nodes_) {
      if (rest < WeightOf(node)) return ExpertAt(WeightBefore(node * experts_of_node_) + rest);
      rest -= WeightOf(node);
    }
    return 0;  // not reached
  }

  // Draws one more expert. After kAttempts draws of experts that the token already has, takes the next free one. This
  // happens when few experts have nearly all of the popularity.
  void Choose() {
    uint32_t expert = Draw();
    for (int attempt = 0; IsChosen(expert); ++attempt) {
      expert = attempt < kAttempts ? Draw() : NextAllowed(expert);
    }
    chosen_.push_back(expert);
    const size_t node = expert / experts_of_node_;
    if (std::find(nodes_.begin(), nodes_.end(), node) == nodes_.end()) nodes_.push_back(node);
  }

  uint32_t NextAllowed(uint32_t expert) const {
    const bool limited = shape_.node_limit != 0 && nodes_.size() >= shape_.node_limit;
    do {
      expert = (expert + 1) % shape_.experts;
    } while (limited && std::find(nodes_.begin(), nodes_.end(), expert / experts_of_node_) == nodes_.end());
    return expert;
  }

  const ModelShape& shape_;
  const RoutingOptions& options_;
  Random random_;
  size_t experts_of_node_ = 1;
  size_t nodes_of_group_ = 1;  // nodes that together hold all experts
  std::vector<uint64_t> popularity_;
  size_t source_ = 0;
  std::vector<uint64_t> sums_;    // by expert: sum of the source's weights up to this expert
  std::vector<uint32_t> chosen_;  // experts of the token
  std::vector<size_t> nodes_;     // nodes of these experts, within the group
  std::vector<size_t> places_;    // GPUs that have got the token
};

}  // namespace

absl::Status CheckLayer(const ModelShape& shape, const RoutingOptions& options) {
  if (absl::Status status = CheckSizes(shape, options); !status.ok()) return status;
  if (absl::Status status = CheckFit(shape, options); !status.ok()) return status;
  const size_t ranks = options.nodes * options.gpus_per_node;
  const double token = shape.hidden * std::max(shape.dispatch_bytes, shape.combine_bytes);
  if (static_cast<double>(options.tokens_per_rank) * static_cast<double>(ranks) * shape.top_k * token >
      static_cast<double>(rails::workload::kMostBytesInAll)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.tokens_per_rank, " tokens on each of ", ranks, " GPUs are more than 2^62 bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerExchange> DrawLayer(const ModelShape& shape, const RoutingOptions& options) {
  if (absl::Status status = CheckLayer(shape, options); !status.ok()) return status;
  const size_t ranks = options.nodes * options.gpus_per_node;
  const double token_dispatch = shape.hidden * shape.dispatch_bytes;
  const double token_combine = shape.hidden * shape.combine_bytes;
  const uint64_t draws = std::clamp<uint64_t>(kMostDraws / (ranks * shape.top_k), 1, options.tokens_per_rank);
  LayerExchange exchange = {.dispatch = TrafficMatrix(options.dispatch ? ranks : 0),
                            .combine = TrafficMatrix(options.combine ? ranks : 0)};
  Router router(shape, options);
  std::vector<uint64_t> tokens(ranks);
  for (size_t source = 0; source < ranks; ++source) {
    std::fill(tokens.begin(), tokens.end(), 0);
    router.StartSource(source);
    for (uint64_t draw = 0; draw < draws; ++draw) {
      // The first draws stand for one token more, so that all draws together stand for all tokens.
      const uint64_t weight = options.tokens_per_rank / draws + (draw < options.tokens_per_rank % draws ? 1 : 0);
      router.AddToken(weight, &tokens);
    }
    for (size_t d = 0; d < ranks; ++d) {
      if (tokens[d] == 0) continue;
      const double count = static_cast<double>(tokens[d]);
      if (options.dispatch)
        exchange.dispatch.at(source, d) = static_cast<uint64_t>(std::llround(count * token_dispatch));
      if (options.combine) exchange.combine.at(d, source) = static_cast<uint64_t>(std::llround(count * token_combine));
    }
  }
  return exchange;
}

}  // namespace railsd::sim
