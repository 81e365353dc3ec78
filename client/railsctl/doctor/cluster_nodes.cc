// Checks that the nodes of a cluster are there, know each other and run the same program.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/cluster_checks.h"
#include "client/railsctl/doctor/peer_cause.h"
#include "client/railsctl/format.h"

namespace rails::ctl::doctor {
namespace {

constexpr size_t kNodesNamed = 4;      // more nodes with the same trouble are one finding
constexpr size_t kFindingsShown = 16;  // findings

// The first reason that `node` or one of `others` gives for a link between them that is down.
std::string WhyNoLink(const ClusterView& view, size_t node, const std::vector<size_t>& others) {
  for (const size_t other : others) {
    for (const ClusterPeer* const peer : {view.entry(other, node), view.entry(node, other)}) {
      if (peer != nullptr && !peer->up && !peer->why.empty()) return peer->why;
    }
  }
  return "";
}

Finding NoLink(const std::string& found, const std::string& why) {
  const PeerHint& hint = HintOf(CauseOf(why));
  return {"links", Level::kError, absl::StrCat(found, why.empty() ? "" : ": ", why),
          absl::StrCat(hint.means, " Groups with ranks at both ends cannot form; jobs that need the link fail."),
          hint.fix};
}

std::vector<size_t> AllBut(const ClusterView& view, size_t node) {
  std::vector<size_t> others;
  for (size_t other = 0; other < view.size(); ++other) {
    if (other != node) others.push_back(other);
  }
  return others;
}

Finding NotListed(const std::string& found) {
  return {"peers", Level::kError, found,
          "A node exchanges only with peers that it lists. Groups with ranks on both nodes cannot form.",
          "Complete `peers` in the configuration there and `railsctl reload`; with `peers.dns`, look at what "
          "`getent ahosts NAME` lists there."};
}

}  // namespace

Findings CheckAnswers(const Cluster& cluster) {
  std::map<std::string, std::vector<std::string>> silent;  // by reason
  std::vector<std::string> draining;
  size_t answered = 0;
  for (const ClusterNode& node : cluster.nodes) {
    if (!node.answered.ok()) silent[std::string(node.answered.message())].push_back(node.where);
    if (node.draining) draining.push_back(node.name);
    answered += node.answered.ok() ? 1 : 0;
  }
  Findings findings;
  for (const auto& [why, nodes] : silent) {
    findings.push_back(
        {"nodes", Level::kError,
         absl::StrCat(NameList(nodes), nodes.size() == 1 ? " does" : " do", " not answer: ", why),
         "No daemon runs there, its machine or the network is down, or its `metrics.listen` is another address.",
         absl::StrCat("`railsctl health --address ", nodes[0],
                      "` from here; `systemctl status railsd` and `railsctl doctor` there.")});
  }
  if (!draining.empty()) {
    findings.push_back({"nodes", Level::kNote,
                        absl::StrCat(NameList(draining), draining.size() == 1 ? " takes" : " take",
                                     " no new work: drained by an operator"),
                        "New jobs with ranks there are refused.", "`railsctl undrain --node` there ends it."});
  }
  if (silent.empty()) {
    findings.push_back({"nodes", Level::kOk, absl::StrCat("all answer: ", FormatCount(answered, "node")), "", ""});
  }
  return findings;
}

Findings CheckNodeNames(const Cluster& cluster) {
  std::map<std::string, std::vector<const ClusterNode*>> by_name;
  for (const ClusterNode& node : cluster.nodes) {
    if (node.answered.ok()) by_name[node.name].push_back(&node);
  }
  Findings findings;
  for (const auto& [name, nodes] : by_name) {
    if (nodes.size() == 1) continue;
    std::vector<std::string> addresses;
    for (const ClusterNode* node : nodes) addresses.push_back(node->where);
    const bool same = std::all_of(nodes.begin(), nodes.end(),
                                  [&first = *nodes[0]](const ClusterNode* n) { return n->boot_id == first.boot_id; });
    if (same) {
      findings.push_back({"names", Level::kNote, absl::StrCat("one daemon, ", name, ", is at ", NameList(addresses)),
                          "Doctor compares it once.", "List each node once."});
    } else {
      findings.push_back(
          {"names", Level::kError,
           absl::StrCat(nodes.size(), " daemons call themselves ", name, ": at ", NameList(addresses)),
           "Peers keep a link with one of them and refuse the others. Only the first is compared below.",
           "Give each node its own name (`node` in its configuration; the host's name without it) and restart it."});
    }
  }
  if (findings.empty() && by_name.size() > 1) {
    findings.push_back({"names", Level::kOk, "no two nodes have the same name", "", ""});
  }
  return findings;
}

Findings CheckNodeVersions(const ClusterView& view) {
  std::vector<std::pair<size_t, std::string>> versions;
  for (size_t node = 0; node < view.answered(); ++node) versions.emplace_back(node, view.answer(node).version);
  const std::vector<SameValue> groups = GroupByValue(versions);
  if (groups.empty()) return {};
  if (groups.size() == 1) return {{"versions", Level::kOk, absl::StrCat(groups[0].value, " everywhere"), "", ""}};
  std::string found;
  for (const SameValue& group : groups) {
    absl::StrAppend(&found, found.empty() ? "" : "; ", group.value, " on ", view.Names(group.nodes));
  }
  return {{"versions", Level::kWarning, found,
           "They work together as long as each accepts the other's HELLO. An update has not ended.",
           "Finish the update, or undo it, node by node."}};
}

Findings CheckNodeSettings(const ClusterView& view) {
  std::vector<std::pair<size_t, std::string>> hashes;
  for (size_t node = 0; node < view.answered(); ++node) hashes.emplace_back(node, view.answer(node).settings_hash);
  const std::vector<SameValue> groups = GroupByValue(hashes);
  if (groups.empty()) return {};
  if (groups.size() == 1) return {{"config", Level::kOk, "the settings are the same everywhere", "", ""}};
  std::string found;
  if (HasMajority(groups)) {
    std::vector<size_t> odd;
    for (size_t g = 1; g < groups.size(); ++g) odd.insert(odd.end(), groups[g].nodes.begin(), groups[g].nodes.end());
    found = absl::StrCat("settings of ", view.Names(odd), " are not those of ",
                         FormatCount(groups[0].nodes.size(), "other node"));
  } else {
    found = absl::StrCat("settings differ between ", view.Names(groups[0].nodes), " and ", view.Names(groups[1].nodes));
  }
  return {{"config", Level::kNote, found,
           "Keys that name one node do not count here: its name, listeners, rails, peers and files.",
           "Compare the outputs of `railsd --config FILE --print-config` of two such nodes."}};
}

Findings CheckMembership(const ClusterView& view) {
  if (view.answered() == 0) return {};
  std::map<size_t, std::vector<size_t>> lacks;  // by node: the nodes that it does not list
  std::map<size_t, size_t> lacked;              // by node: how many nodes do not list it
  for (size_t from = 0; from < view.answered(); ++from) {
    for (size_t to = 0; to < view.size(); ++to) {
      if (from == to || view.entry(from, to) != nullptr) continue;
      lacks[from].push_back(to);
      ++lacked[to];
    }
  }
  Findings findings;
  std::vector<size_t> unknown;  // nodes that no other node lists
  for (const auto& [to, count] : lacked) {
    const size_t others = view.answered() - (to < view.answered() ? 1 : 0);
    if (count == others && others >= 2) unknown.push_back(to);
  }
  if (!unknown.empty()) {
    findings.push_back(NotListed(absl::StrCat(view.Names(unknown), unknown.size() == 1 ? " is" : " are",
                                              " in the list of peers of no other node")));
  }
  size_t incomplete = 0;
  for (auto& [from, missing] : lacks) {
    std::erase_if(missing, [&](size_t to) { return std::binary_search(unknown.begin(), unknown.end(), to); });
    if (missing.empty() || incomplete++ >= kFindingsShown) continue;
    findings.push_back(NotListed(missing.size() > 1 && view.answer(from).peers.empty()
                                     ? absl::StrCat(view.name(from), " knows of no peer")
                                     : absl::StrCat(view.name(from), " does not list ", view.Names(missing))));
  }
  if (incomplete > kFindingsShown) {
    findings.push_back(NotListed(absl::StrCat(incomplete - kFindingsShown, " more nodes do not list all others")));
  }
  std::vector<size_t> unasked;
  for (size_t node = view.answered(); node < view.size(); ++node) unasked.push_back(node);
  if (!unasked.empty()) {
    findings.push_back(
        {"peers", Level::kNote,
         absl::StrCat(view.Names(unasked), unasked.size() == 1 ? " is a peer" : " are peers",
                      " of others, and did not answer or ", unasked.size() == 1 ? "was" : "were", " not asked"),
         "Doctor checks only what other nodes report about such a node.", "Name all nodes of the cluster."});
  }
  if (findings.empty() && view.size() > 1) {
    findings.push_back({"peers", Level::kOk, "every node lists every other one", "", ""});
  }
  return findings;
}

Findings CheckClusterLinks(const ClusterView& view) {
  const Separation down = Separate(view.size(), [&view](size_t a, size_t b) { return view.LinkBetween(a, b); });
  Findings findings;
  if (down.everywhere) {
    findings.push_back(
        NoLink(absl::StrCat("no link joins any of the ", view.size(), " nodes"), WhyNoLink(view, 0, AllBut(view, 0))));
  }
  if (down.alone.size() > kNodesNamed) {
    findings.push_back(NoLink(absl::StrCat(view.Names(down.alone), " have no link to any other node"),
                              WhyNoLink(view, down.alone[0], AllBut(view, down.alone[0]))));
  }
  for (const size_t node : down.alone) {
    if (down.alone.size() > kNodesNamed) break;
    findings.push_back(NoLink(absl::StrCat(view.name(node), " has no link to any other node"),
                              WhyNoLink(view, node, AllBut(view, node))));
  }
  for (size_t part = 1; part < down.parts.size(); ++part) {
    findings.push_back(
        NoLink(absl::StrCat("no link joins ", view.Names(down.parts[part]), " with ", view.Names(down.parts[0])),
               WhyNoLink(view, down.parts[part][0], down.parts[0])));
  }
  for (size_t pair = 0; pair < std::min(down.pairs.size(), kFindingsShown); ++pair) {
    const auto& [a, b] = down.pairs[pair];
    const ClusterPeer *const there = view.entry(a, b), *const back = view.entry(b, a);
    const bool one_way = there != nullptr && back != nullptr && there->up != back->up;
    findings.push_back(
        NoLink(absl::StrCat("no link between ", view.name(a), " and ", view.name(b),
                            one_way ? absl::StrCat(" (", view.name(there->up ? a : b), " says that it is up)") : ""),
               WhyNoLink(view, a, {b})));
  }
  if (down.pairs.size() > kFindingsShown) {
    findings.push_back(
        NoLink(absl::StrCat("the same between ", down.pairs.size() - kFindingsShown, " more pairs"), ""));
  }
  if (findings.empty() && view.size() > 1) {
    findings.push_back({"links", Level::kOk, "all daemons have links to each other", "", ""});
  }
  return findings;
}

}  // namespace rails::ctl::doctor
