// Checks that rail i has an address in the same subnet on every node.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/doctor/cluster_checks.h"
#include "client/railsctl/doctor/rails.h"

namespace rails::ctl::doctor {
namespace {

constexpr size_t kRailsNamed = 3;  // of a node

// By rail: the subnet that rail i has on most nodes; empty if it is unknown or only one node is in it.
std::vector<std::string> UsualSubnets(const ClusterView& view) {
  std::map<std::string, std::set<size_t>> nodes_by_subnet;
  for (size_t node = 0; node < view.answered(); ++node) {
    for (const ClusterRail& rail : view.answer(node).rails) nodes_by_subnet[rail.subnet].insert(node);
  }
  std::vector<std::string> usual;
  for (size_t r = 0; r < view.rails(); ++r) {
    std::vector<std::pair<size_t, std::string>> subnets;
    for (size_t node = 0; node < view.answered(); ++node) {
      if (const ClusterRail* const rail = view.rail(node, r); rail != nullptr) subnets.emplace_back(node, rail->subnet);
    }
    const std::vector<SameValue> groups = GroupByValue(subnets);
    const bool shared = !groups.empty() && nodes_by_subnet[groups[0].value].size() > 1;
    usual.push_back(shared ? groups[0].value : "");
  }
  return usual;
}

// "rail 0 (10.1.1.7) is in the subnet of rail 1".
std::vector<std::string> Misplaced(const ClusterView& view, size_t node, const std::vector<std::string>& usual) {
  std::vector<std::string> out;
  for (size_t r = 0; r < usual.size() && out.size() < kRailsNamed; ++r) {
    const ClusterRail* const rail = view.rail(node, r);
    if (rail == nullptr || rail->subnet.empty() || rail->subnet == usual[r]) continue;
    const auto other = std::find(usual.begin(), usual.end(), rail->subnet);
    if (other == usual.end()) continue;
    out.push_back(absl::StrCat("rail ", r, " (", rail->verbs ? rail->gid : HostOf(rail->address),
                               ") is in the subnet of rail ", other - usual.begin()));
  }
  return out;
}

// Nodes that report subnets, but none of the usual ones.
std::vector<size_t> Strangers(const ClusterView& view, const std::vector<std::string>& usual) {
  std::vector<size_t> nodes;
  for (size_t node = 0; node < view.answered(); ++node) {
    const std::vector<ClusterRail>& rails = view.answer(node).rails;
    const auto unknown = [](const ClusterRail& rail) { return rail.subnet.empty(); };
    const auto known = [&usual](const ClusterRail& rail) {
      return std::find(usual.begin(), usual.end(), rail.subnet) != usual.end();
    };
    if (std::all_of(rails.begin(), rails.end(), unknown) || std::any_of(rails.begin(), rails.end(), known)) continue;
    nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

Findings CheckRailOrder(const ClusterView& view) {
  const std::vector<std::string> usual = UsualSubnets(view);
  const std::set<std::string> different(usual.begin(), usual.end());
  // Rails that share a subnet have no order in it.
  if (usual.size() < 2 || different.size() < usual.size()) return {};
  Findings findings;
  for (size_t node = 0; node < view.answered(); ++node) {
    const std::vector<std::string> misplaced = Misplaced(view, node, usual);
    if (misplaced.empty()) continue;
    findings.push_back(
        {"order", Level::kError,
         absl::StrCat("on ", view.name(node), ", ", absl::StrJoin(misplaced, ", "), " of ",
                      view.answered() == 2 ? "the other node" : "most other nodes"),
         "Rail i of a node connects to rail i of its peers, so these rails connect across subnets, or not at all.",
         "Put the rails of its configuration in the order of the other nodes and restart its daemon."});
  }
  const std::vector<size_t> strangers = Strangers(view, usual);
  if (!strangers.empty()) {
    findings.push_back({"order", Level::kNote,
                        absl::StrCat("no rail of ", view.Names(strangers), " is in a subnet of the other nodes"),
                        "Doctor cannot tell the order of these rails.",
                        "No change is needed if routers join the subnets."});
  }
  if (findings.empty()) findings.push_back({"order", Level::kOk, "rails have the same order of subnets", "", ""});
  return findings;
}

}  // namespace rails::ctl::doctor
