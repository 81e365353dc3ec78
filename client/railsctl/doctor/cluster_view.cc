#include "client/railsctl/doctor/cluster_view.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rails::ctl::doctor {
namespace {

constexpr size_t kNamesShown = 4;

}  // namespace

ClusterView::ClusterView(const Cluster& cluster) {
  std::unordered_map<std::string, size_t> numbers;
  for (const ClusterNode& node : cluster.nodes) {
    if (!node.answered.ok() || !numbers.emplace(node.name, names_.size()).second) continue;
    names_.push_back(node.name);
    nodes_.push_back(&node);
    rails_ = std::max(rails_, node.rails.size());
  }
  for (const ClusterNode* node : nodes_) {
    for (const ClusterPeer& peer : node->peers) {
      if (names_.size() >= kMaxClusterNodes) break;
      if (numbers.emplace(peer.node, names_.size()).second) names_.push_back(peer.node);
    }
  }
  entries_.assign(nodes_.size(), std::vector<const ClusterPeer*>(names_.size()));
  for (size_t from = 0; from < nodes_.size(); ++from) {
    for (const ClusterPeer& peer : nodes_[from]->peers) {
      const auto to = numbers.find(peer.node);
      if (to != numbers.end() && to->second != from) entries_[from][to->second] = &peer;
    }
  }
}

const ClusterRail* ClusterView::rail(size_t node, size_t rail) const {
  return node < nodes_.size() && rail < nodes_[node]->rails.size() ? &nodes_[node]->rails[rail] : nullptr;
}

const ClusterPeer* ClusterView::entry(size_t from, size_t to) const {
  return from < entries_.size() ? entries_[from][to] : nullptr;
}

PathView ClusterView::path(size_t rail, size_t from, size_t to) const {
  const ClusterPeer* const peer = entry(from, to);
  return peer != nullptr && rail < peer->rails.size() ? peer->rails[rail] : PathView::kUnknown;
}

Edge ClusterView::LinkBetween(size_t a, size_t b) const {
  Edge edge = Edge::kUnknown;
  for (const ClusterPeer* const peer : {entry(a, b), entry(b, a)}) {
    if (peer != nullptr && !peer->up) return Edge::kBad;
    if (peer != nullptr) edge = Edge::kGood;
  }
  return edge;
}

Edge ClusterView::PathBetween(size_t rail, size_t a, size_t b) const {
  const PathView there = path(rail, a, b), back = path(rail, b, a);
  if (there == PathView::kDrained || back == PathView::kDrained) return Edge::kUnknown;
  if (there == PathView::kDown || back == PathView::kDown) return Edge::kBad;
  return there == PathView::kUnknown && back == PathView::kUnknown ? Edge::kUnknown : Edge::kGood;
}

std::string ClusterView::Names(const std::vector<size_t>& nodes) const {
  std::vector<std::string> names;
  for (const size_t node : nodes) {
    if (names.size() > kNamesShown + 1) break;
    names.push_back(names_[node]);
  }
  names.resize(nodes.size());
  return NameList(names);
}

std::string NameList(const std::vector<std::string>& names) {
  if (names.size() <= kNamesShown + 1) return absl::StrJoin(names, ", ");
  const std::vector<std::string> shown(names.begin(), names.begin() + kNamesShown);
  return absl::StrCat(absl::StrJoin(shown, ", "), " and ", names.size() - kNamesShown, " more");
}

std::string RailList(const std::vector<size_t>& rails) {
  if (rails.size() == 1) return absl::StrCat("rail ", rails[0]);
  if (rails.size() > 2 && rails.back() - rails.front() + 1 == rails.size()) {
    return absl::StrCat("rails ", rails.front(), " to ", rails.back());
  }
  const std::vector<size_t> first(rails.begin(), rails.end() - 1);
  return absl::StrCat("rails ", absl::StrJoin(first, ", "), " and ", rails.back());
}

std::vector<SameValue> GroupByValue(const std::vector<std::pair<size_t, std::string>>& values) {
  std::vector<SameValue> groups;
  for (const auto& [node, value] : values) {
    if (value.empty()) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&v = value](const SameValue& g) { return g.value == v; });
    if (group == groups.end()) group = groups.insert(groups.end(), {value, {}});
    group->nodes.push_back(node);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const SameValue& a, const SameValue& b) { return a.nodes.size() > b.nodes.size(); });
  return groups;
}

bool HasMajority(const std::vector<SameValue>& groups) {
  return groups.size() == 1 || (groups.size() > 1 && groups[0].nodes.size() > groups[1].nodes.size());
}

}  // namespace rails::ctl::doctor
