// Checks that rail i of every node reaches rail i of every other one. Reports each cause once.
#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/cluster_checks.h"
#include "client/railsctl/format.h"

namespace rails::ctl::doctor {
namespace {

using NodePair = std::pair<size_t, size_t>;

constexpr size_t kManyPairs = 3;    // this many pairs of one node become one finding
constexpr size_t kPairsShown = 16;  // findings
constexpr size_t kNodesApart = 4;   // more nodes with the same trouble are one finding

// Causes of bad paths, each with the rails that it concerns.
struct Causes {
  std::vector<size_t> everywhere;                 // rails
  std::map<size_t, std::vector<size_t>> alone;    // by node: its rails that reach no other node
  std::map<NodePair, std::vector<size_t>> pairs;  // by pair
  Findings parts, partial;                        // complete findings
};

// The reason that the node gives for the first of its rails that is down; "" if none is.
std::string OwnReason(const ClusterView& view, size_t node, const std::vector<size_t>& rails) {
  for (const size_t r : rails) {
    const ClusterRail* const rail = view.rail(node, r);
    if (rail != nullptr && rail->state == v1::RAIL_STATE_DOWN && !rail->why.empty()) return rail->why;
  }
  return "";
}

std::string ReasonText(const std::string& why) { return why.empty() ? "" : absl::StrCat(": ", why); }

size_t CountBadPaths(const ClusterView& view, size_t rail, size_t node) {
  size_t count = 0;
  for (size_t other = 0; other < view.size(); ++other) {
    if (other != node && view.PathBetween(rail, node, other) == Edge::kBad) ++count;
  }
  return count;
}

Finding Partial(const ClusterView& view, size_t rail, size_t node, const std::vector<size_t>& others) {
  return {
      "paths", Level::kError,
      absl::StrCat("rail ", rail, " of ", view.name(node), " is down to ", others.size(), " of ",
                   FormatCount(view.size() - 1, "other node"), ": ", view.Names(others)),
      "Exchanges with these nodes take the other rails.",
      "`ping -I INTERFACE ADDRESS` between them with full packets (`-M do -s MTU-28`); the routes of this rail, and "
      "what lies between the switches of these nodes."};
}

// Adds a finding for each node that has many of the pairs, and removes its pairs. Stops at kPairsShown findings.
void TakePartial(const ClusterView& view, size_t rail, std::vector<NodePair>* pairs, Findings* findings) {
  while (findings->size() < kPairsShown) {
    std::map<size_t, std::vector<size_t>> others;
    for (const auto& [a, b] : *pairs) {
      others[a].push_back(b);
      others[b].push_back(a);
    }
    const auto most = std::max_element(others.begin(), others.end(),
                                       [](const auto& x, const auto& y) { return x.second.size() < y.second.size(); });
    if (most == others.end() || most->second.size() < kManyPairs) return;
    const size_t node = most->first;
    findings->push_back(Partial(view, rail, node, most->second));
    pairs->erase(std::remove_if(pairs->begin(), pairs->end(),
                                [node](const NodePair& pair) { return pair.first == node || pair.second == node; }),
                 pairs->end());
  }
}

Causes FindCauses(const ClusterView& view) {
  Causes causes;
  for (size_t rail = 0; rail < view.rails(); ++rail) {
    Separation down = Separate(view.size(), [&view, rail](size_t a, size_t b) { return view.PathBetween(rail, a, b); });
    if (down.everywhere) causes.everywhere.push_back(rail);
    for (const size_t node : down.alone) causes.alone[node].push_back(rail);
    for (size_t part = 1; part < down.parts.size(); ++part) {
      causes.parts.push_back({"paths", Level::kError,
                              absl::StrCat("rail ", rail, " does not join ", view.Names(down.parts[part]), " with ",
                                           view.Names(down.parts[0])),
                              "Each side reaches itself; exchanges between the sides take the other rails.",
                              "The connection between the two switches of this rail, its VLAN and its routes."});
    }
    TakePartial(view, rail, &down.pairs, &causes.partial);
    for (const NodePair& pair : down.pairs) causes.pairs[pair].push_back(rail);
  }
  return causes;
}

Finding DownEverywhere(const ClusterView& view, const std::vector<size_t>& rails) {
  return {"paths", Level::kError,
          absl::StrCat(RailList(rails), rails.size() == 1 ? " is" : " are", " down between all ",
                       FormatCount(view.size(), "node")),
          "A switch carries nothing, or a firewall or a wrong subnet at every node keeps the rail's connections out.",
          "The switch of the rail and its VLAN; then `railsctl doctor` on one of the nodes."};
}

Finding DownAtNode(const ClusterView& view, size_t node, const std::vector<size_t>& rails) {
  const std::string why = OwnReason(view, node, rails);
  const std::string& name = view.name(node);
  const bool one = rails.size() == 1;
  const std::string others = FormatCount(CountBadPaths(view, rails[0], node), "other node");
  if (!one && node < view.answered() && rails.size() == view.answer(node).rails.size()) {
    return {"paths", Level::kError, absl::StrCat("no rail of ", name, " reaches any of ", others, ReasonText(why)),
            "Its daemon is there, but no job with ranks there can run.",
            absl::StrCat("`railsctl doctor` on ", name,
                         "; firewalls on the rails' ports, its cables, and the order of its rails.")};
  }
  const std::string found =
      absl::StrCat(RailList(rails), " of ", name, one ? " is" : " are", " down to all ", others, ReasonText(why));
  if (rails.size() == 2 && !absl::StrContains(why, "carrier")) {
    return {
        "paths", Level::kError, found,
        "Perhaps their cables are swapped, and each ends at the switch of the other; their share takes other rails.",
        absl::StrCat("Swap the two cables, or the two rails in the configuration of ", name,
                     "; if they stay down, look at NICs and switch ports (`railsctl doctor` there).")};
  }
  return {
      "paths", Level::kError, found, "Its NIC, cable or switch port; the other rails carry its share.",
      absl::StrCat("`railsctl doctor` on ", name, "; `ip addr`, `ethtool` or `rdma link` there; the switch's port.")};
}

Findings DownAtNodes(const ClusterView& view, const std::map<size_t, std::vector<size_t>>& rails_by_node) {
  std::map<std::vector<size_t>, std::vector<size_t>> nodes_by_rails;
  for (const auto& [node, rails] : rails_by_node) nodes_by_rails[rails].push_back(node);
  Findings findings;
  for (const auto& [rails, nodes] : nodes_by_rails) {
    if (nodes.size() <= kNodesApart) {
      for (const size_t node : nodes) findings.push_back(DownAtNode(view, node, rails));
      continue;
    }
    findings.push_back(
        {"paths", Level::kError,
         absl::StrCat(RailList(rails), " of ", view.Names(nodes), rails.size() == 1 ? " is" : " are",
                      " down to all other nodes", ReasonText(OwnReason(view, nodes[0], rails))),
         "A switch or VLAN that these nodes share; the other rails carry their share.",
         absl::StrCat("The switch that serves these nodes; then `railsctl doctor` on ", view.name(nodes[0]), ".")});
  }
  return findings;
}

// " (n1 says so; n2 says that it is up)" if the two ends disagree on one of the rails.
std::string Disagreement(const ClusterView& view, const NodePair& pair, const std::vector<size_t>& rails) {
  for (const size_t rail : rails) {
    const bool there = view.path(rail, pair.first, pair.second) == PathView::kDown;
    const bool back = view.path(rail, pair.second, pair.first) == PathView::kDown;
    const size_t other = there ? pair.second : pair.first, self = there ? pair.first : pair.second;
    if (there == back || view.path(rail, other, self) == PathView::kUnknown) continue;
    return absl::StrCat(" (", view.name(self), " says so; ", view.name(other), " says that it is up)");
  }
  return "";
}

Finding DownBetween(const ClusterView& view, const NodePair& pair, const std::vector<size_t>& rails) {
  const auto& [a, b] = pair;
  std::string why = OwnReason(view, a, rails);
  if (why.empty()) why = OwnReason(view, b, rails);
  const std::string differ = Disagreement(view, pair, rails);
  const bool swapped = view.size() == 2 && rails.size() == 2 && !absl::StrContains(why, "carrier");
  return {"paths", Level::kError,
          absl::StrCat(RailList(rails), " between ", view.name(a), " and ", view.name(b),
                       rails.size() == 1 ? " is down" : " are down", differ, ReasonText(why)),
          swapped ? "Perhaps the two cables are swapped at one of the nodes; the other rails carry their share."
                  : "Exchanges of these two nodes take their other rails.",
          differ.empty() ? "`ping -I INTERFACE ADDRESS` at both ends with full packets (`-M do -s MTU-28`); routes, "
                           "firewalls, and `railsctl doctor` at both."
                         : "Look again in half a minute, because one end may notice it earlier. If it stays, `railsctl "
                           "doctor` at both ends."};
}

Findings Doubtful(const ClusterView& view) {
  Findings findings;
  for (size_t rail = 0; rail < view.rails(); ++rail) {
    size_t count = 0;
    std::string first;
    for (size_t from = 0; from < view.answered(); ++from) {
      for (size_t to = 0; to < view.size(); ++to) {
        if (view.path(rail, from, to) != PathView::kDoubtful) continue;
        if (count++ == 0) first = absl::StrCat(view.name(from), " to ", view.name(to));
      }
    }
    if (count == 0) continue;
    findings.push_back(
        {"paths", Level::kWarning,
         absl::StrCat("rail ", rail, ": ", FormatCount(count, "path"), count == 1 ? " is" : " are",
                      " suspect or probed, as ", first),
         "Such a path failed a while ago or makes no progress; it is held back until it has worked for a while.",
         "Look again in half a minute; `railsctl rails` there counts the failures (FLAPS)."});
  }
  return findings;
}

Findings Drained(const ClusterView& view) {
  Findings findings;
  for (size_t rail = 0; rail < view.rails(); ++rail) {
    std::vector<size_t> nodes;
    for (size_t node = 0; node < view.answered(); ++node) {
      if (view.rail(node, rail) != nullptr && view.rail(node, rail)->drained) nodes.push_back(node);
    }
    if (nodes.empty()) continue;
    findings.push_back({"paths", Level::kNote, absl::StrCat("rail ", rail, " is drained on ", view.Names(nodes)),
                        "An operator has drained it; the other rails carry its share.",
                        absl::StrCat("`railsctl undrain ", rail, "` there when its repair is done.")});
  }
  return findings;
}

void Append(const Findings& more, Findings* all) { all->insert(all->end(), more.begin(), more.end()); }

}  // namespace

Findings CheckClusterPaths(const ClusterView& view) {
  if (view.size() < 2) return {};
  const Causes causes = FindCauses(view);
  Findings findings;
  if (!causes.everywhere.empty()) findings.push_back(DownEverywhere(view, causes.everywhere));
  Append(DownAtNodes(view, causes.alone), &findings);
  Append(causes.parts, &findings);
  Append(causes.partial, &findings);
  size_t shown = 0;
  for (const auto& [pair, rails] : causes.pairs) {
    if (shown++ < kPairsShown) findings.push_back(DownBetween(view, pair, rails));
  }
  if (shown > kPairsShown) {
    findings.push_back({"paths", Level::kError, absl::StrCat("the same between ", shown - kPairsShown, " more pairs"),
                        "Exchanges of these nodes take their other rails.",
                        "`railsctl peers` on the nodes lists them."});
  }
  Append(Doubtful(view), &findings);
  const bool well = findings.empty();
  Append(Drained(view), &findings);
  if (well)
    findings.push_back({"paths", Level::kOk, "every rail reaches every other node that it has a link to", "", ""});
  return findings;
}

Findings CheckCluster(const Cluster& cluster) {
  const ClusterView view(cluster);
  Findings all;
  Append(CheckAnswers(cluster), &all);
  Append(CheckNodeNames(cluster), &all);
  // Links come before paths: a rail reaches no peer whose link is down.
  for (const auto check : {&CheckNodeVersions, &CheckMembership, &CheckClusterLinks, &CheckClusterRails,
                           &CheckRailOrder, &CheckClusterPaths, &CheckNodeSettings}) {
    Append(check(view), &all);
  }
  return all;
}

}  // namespace rails::ctl::doctor
