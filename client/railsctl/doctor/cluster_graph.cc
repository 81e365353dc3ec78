#include "client/railsctl/doctor/cluster_graph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace rails::ctl::doctor {
namespace {

// Sets of nodes that good edges join.
class Components {
 public:
  explicit Components(size_t nodes) : parent_(nodes) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }

  size_t Root(size_t node) {
    while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
    return node;
  }
  void Join(size_t a, size_t b) { parent_[Root(a)] = Root(b); }

 private:
  std::vector<size_t> parent_;
};

struct Degree {
  size_t good = 0, bad = 0;
  bool alone() const { return good == 0 && bad >= 2; }
};

}  // namespace

Separation Separate(size_t nodes, absl::FunctionRef<Edge(size_t a, size_t b)> edge) {
  Components components(nodes);
  std::vector<Degree> degrees(nodes);
  std::vector<std::pair<size_t, size_t>> bad;
  for (size_t a = 0; a < nodes; ++a) {
    for (size_t b = a + 1; b < nodes; ++b) {
      const Edge state = edge(a, b);
      if (state == Edge::kUnknown) continue;
      for (const size_t end : {a, b}) ++(state == Edge::kGood ? degrees[end].good : degrees[end].bad);
      if (state == Edge::kGood) components.Join(a, b);
      if (state == Edge::kBad) bad.emplace_back(a, b);
    }
  }
  Separation out;
  const bool any_good = std::any_of(degrees.begin(), degrees.end(), [](const Degree& d) { return d.good > 0; });
  const auto known = std::count_if(degrees.begin(), degrees.end(), [](const Degree& d) { return d.good + d.bad > 0; });
  out.everywhere = !any_good && known >= 3;
  if (out.everywhere) return out;
  std::set<size_t> split;  // roots of components between which an edge is bad
  for (const auto& [a, b] : bad) {
    if (degrees[a].alone() || degrees[b].alone()) continue;
    const bool parts = degrees[a].good > 0 && degrees[b].good > 0 && components.Root(a) != components.Root(b);
    if (parts) {
      split.insert({components.Root(a), components.Root(b)});
    } else {
      out.pairs.emplace_back(a, b);
    }
  }
  std::map<size_t, std::vector<size_t>> parts;
  for (size_t node = 0; node < nodes; ++node) {
    if (degrees[node].alone()) out.alone.push_back(node);
    if (split.contains(components.Root(node))) parts[components.Root(node)].push_back(node);
  }
  for (auto& [root, part] : parts) out.parts.push_back(std::move(part));
  std::sort(out.parts.begin(), out.parts.end(),
            [](const auto& a, const auto& b) { return std::pair(b.size(), a[0]) < std::pair(a.size(), b[0]); });
  return out;
}

}  // namespace rails::ctl::doctor
