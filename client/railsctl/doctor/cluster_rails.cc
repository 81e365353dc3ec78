// Checks that rail i of every node is the same kind of rail.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/doctor/cluster_checks.h"
#include "client/railsctl/format.h"

namespace rails::ctl::doctor {
namespace {

// A property in which rail i should be the same on all nodes.
struct Trait {
  Level level;
  std::string (*value)(const ClusterRail& rail);  // empty: unknown
  const char* means;
  const char* fix;
};

const Trait kTraits[] = {
    {Level::kError,
     [](const ClusterRail& rail) { return std::string(rail.verbs ? "transport verbs" : "transport tcp"); },
     "A rail over TCP and a rail over RDMA verbs do not reach each other.",
     "Give the rail the same `transport` on all nodes and restart the daemons whose file has changed."},
    {Level::kError,
     [](const ClusterRail& rail) {
       return rail.link_layer.empty() ? std::string() : absl::StrCat("an ", rail.link_layer, " port");
     },
     "Ports of different kinds do not reach each other.", "Name the devices of one kind of port as this rail."},
    {Level::kWarning,
     [](const ClusterRail& rail) {
       return rail.speed_bytes_per_s == 0 ? "" : FormatBitRate(static_cast<double>(rail.speed_bytes_per_s));
     },
     "Exchanges with such a node take as long as its slower rail needs, or its other rails carry more.",
     "`ethtool INTERFACE` or `ibstat` there: the port, its cable, the switch's port; or `speed` in a configuration."},
    {Level::kWarning,
     [](const ClusterRail& rail) {
       return rail.mtu_bytes == 0 ? std::string() : absl::StrCat("a path MTU of ", rail.mtu_bytes, " bytes");
     },
     "Two ends use the smaller packets of the two, or lose the larger ones.",
     "Give the interfaces of this rail the same MTU on all nodes and switches (`ip link`)."},
    {Level::kNote,
     [](const ClusterRail& rail) { return rail.verbs ? absl::StrCat("device ", rail.device) : rail.interface; },
     "The rail is at another place in the machine, perhaps at another switch.",
     "This is normal if these machines are built or cabled differently; otherwise name the devices in the same order."},
};

// Rails that differ on the same nodes in the same way.
struct Odd {
  std::string nodes, values;  // no nodes: no value has a majority
  bool many = false;          // several nodes
  std::vector<size_t> rails = {};
};

void AddOdd(const Odd& odd, size_t rail, std::vector<Odd>* odds) {
  auto same = std::find_if(odds->begin(), odds->end(),
                           [&odd](const Odd& o) { return o.nodes == odd.nodes && o.values == odd.values; });
  if (same == odds->end()) same = odds->insert(odds->end(), odd);
  same->rails.push_back(rail);
}

void CompareRail(const ClusterView& view, size_t rail, const Trait& trait, std::vector<Odd>* odds) {
  std::vector<std::pair<size_t, std::string>> values;
  for (size_t node = 0; node < view.answered(); ++node) {
    const ClusterRail* const own = view.rail(node, rail);
    if (own != nullptr) values.emplace_back(node, trait.value(*own));
  }
  const std::vector<SameValue> groups = GroupByValue(values);
  if (groups.size() < 2) return;
  if (!HasMajority(groups)) {
    std::vector<std::string> parts;
    for (const SameValue& group : groups) parts.push_back(absl::StrCat(group.value, " on ", view.Names(group.nodes)));
    AddOdd({"", absl::StrJoin(parts, "; ")}, rail, odds);
    return;
  }
  for (size_t g = 1; g < groups.size(); ++g) {
    const std::vector<size_t>& nodes = groups[g].nodes;
    AddOdd({view.Names(nodes),
            absl::StrCat(groups[g].value, ", and ", groups[0].value, " on ",
                         FormatCount(groups[0].nodes.size(), "other node")),
            nodes.size() > 1},
           rail, odds);
  }
}

// "rail 3 of n7 has 100 Gbit/s, and 400 Gbit/s on 31 other nodes".
Finding Differs(const Odd& odd, const Trait& trait) {
  const bool one = odd.rails.size() == 1;
  const std::string found =
      odd.nodes.empty()
          ? absl::StrCat(RailList(odd.rails), one ? " differs: " : " differ: ", odd.values)
          : absl::StrCat(RailList(odd.rails), " of ", odd.nodes, one && !odd.many ? " has " : " have ", odd.values);
  return {"rails", trait.level, found, trait.means, trait.fix};
}

Findings CompareCounts(const ClusterView& view) {
  std::vector<std::pair<size_t, std::string>> counts;
  for (size_t node = 0; node < view.answered(); ++node) {
    counts.emplace_back(node, FormatCount(view.answer(node).rails.size(), "rail"));
  }
  const std::vector<SameValue> groups = GroupByValue(counts);
  if (groups.size() < 2) return {};
  std::vector<std::string> parts;
  for (size_t g = groups.size(); g-- > 0;) {
    const bool rest = g == 0 && HasMajority(groups);
    parts.push_back(absl::StrCat(rest ? FormatCount(groups[g].nodes.size(), "other node") : view.Names(groups[g].nodes),
                                 groups[g].nodes.size() == 1 ? " has " : " have ", groups[g].value));
  }
  return {{"rails", Level::kError, absl::StrJoin(parts, ", "),
           "Rail i of a node reaches rail i of its peers. Rails that the other node lacks carry nothing.",
           "Name the same number of rails on all nodes, in the order of the switches."}};
}

}  // namespace

Findings CheckClusterRails(const ClusterView& view) {
  if (view.answered() < 2) return {};
  Findings findings = CompareCounts(view);
  for (const Trait& trait : kTraits) {
    std::vector<Odd> odds;
    for (size_t rail = 0; rail < view.rails(); ++rail) CompareRail(view, rail, trait, &odds);
    for (const Odd& odd : odds) findings.push_back(Differs(odd, trait));
  }
  if (findings.empty()) {
    findings.push_back(
        {"rails", Level::kOk, absl::StrCat("the same on all nodes: ", FormatCount(view.rails(), "rail")), "", ""});
  }
  return findings;
}

}  // namespace rails::ctl::doctor
