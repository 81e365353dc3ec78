// Checks the daemon's answers about its peers.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/peer_cause.h"
#include "client/railsctl/doctor/rails.h"
#include "client/railsctl/format.h"
#include "client/railsctl/inspect/render.h"
#include "common/json/names.h"

namespace rails::ctl::doctor {
namespace {

// Rails of this node that are not up to a peer. `doubtful` ones are connected, but suspect or probed.
struct Missing {
  std::vector<std::string> dead, doubtful;
  std::vector<std::string> drained;  // drained by an operator at the peer
};
Missing RailsNotUp(const v1::PeerStatus& peer, const google::protobuf::RepeatedPtrField<v1::RailStatus>& rails) {
  Missing missing;
  for (int r = 0; r < CommonRails(peer, rails.size()); ++r) {
    const bool connected = r < peer.rails_up_size() && peer.rails_up(r);
    const v1::RailState state = r < peer.rail_states_size() ? peer.rail_states(r) : v1::RAIL_STATE_UP;
    if (connected && state == v1::RAIL_STATE_UP) continue;
    if (state == v1::RAIL_STATE_DRAINED_BY_PEER) {
      missing.drained.push_back(rails[r].name());
      continue;
    }
    const std::string name = connected ? RailStateName(state) : "not connected";
    const std::string address = r < peer.rail_addresses_size() ? absl::StrCat(", ", peer.rail_addresses(r)) : "";
    const bool dead = !connected || state == v1::RAIL_STATE_DOWN;
    (dead ? missing.dead : missing.doubtful).push_back(absl::StrCat(rails[r].name(), " (", name, address, ")"));
  }
  return missing;
}

// Judges a peer whose link is down.
Finding JudgeLink(const v1::PeerStatus& peer) {
  const PeerCause cause = CauseOf(peer.why());
  const PeerHint& hint = HintOf(cause);
  const std::string why = peer.why().empty() ? "" : absl::StrCat(": ", peer.why());
  const char* const check = cause == PeerCause::kTwoDaemons ? "names" : "peers";
  return {check, Level::kError, absl::StrCat("node ", peer.node(), " is down", why),
          absl::StrCat(hint.means, " Groups with ranks there cannot form; jobs that need it fail."), hint.fix};
}

// Judges a peer whose link is up. No finding unless another daemon uses its name or boot id, too.
Findings JudgeTwin(const v1::PeerStatus& peer) {
  if (CauseOf(peer.why()) != PeerCause::kTwoDaemons) return {};
  const PeerHint& hint = HintOf(PeerCause::kTwoDaemons);
  return {{"names", Level::kError, peer.why(), hint.means, hint.fix}};
}

// Judges the rails to a peer whose link is up.
Findings JudgePeer(const v1::PeerStatus& peer, const Facts& facts) {
  const std::string why = peer.why().empty() ? "" : absl::StrCat(": ", peer.why());
  const Missing missing = RailsNotUp(peer, facts.overview.rails());
  if (!missing.dead.empty()) {
    return {{"peers", Level::kError,
             absl::StrCat("node ", peer.node(), " is not reached over ", absl::StrJoin(missing.dead, ", "), why),
             "Its bytes take the other rails.",
             "`ping -I INTERFACE ADDRESS` with full packets (`-M do -s MTU-28`), at both ends; a firewall, a VLAN, or "
             "rails that are wired to another switch than their index says."}};
  }
  if (!missing.doubtful.empty()) {
    return {{"peers", Level::kWarning,
             absl::StrCat("node ", peer.node(), " is not sent to over ", absl::StrJoin(missing.doubtful, ", "), why),
             "The path failed, or makes no progress. It is held back until it has worked for a while.",
             "Look again in half a minute; `railsctl rails` counts the failures (FLAPS)."}};
  }
  if (!missing.drained.empty()) {
    return {{"peers", Level::kNote,
             absl::StrCat("node ", peer.node(), " has drained ", absl::StrJoin(missing.drained, ", "), why),
             "Its bytes take the other rails.",
             absl::StrCat("`railsctl undrain ", missing.drained.front(), "` there when the repair is done.")}};
  }
  if (!peer.why().empty()) {
    const PeerHint& hint = HintOf(CauseOf(peer.why()));
    return {{"peers", Level::kWarning, absl::StrCat("node ", peer.node(), why),
             absl::StrCat(hint.means, " This node waits for it."), hint.fix}};
  }
  return {};
}

// Judges the DNS name of the peers. No finding if the name resolves or none is configured.
Findings JudgeName(const Configuration& config) {
  if (config.dns_trouble.empty()) return {};
  return {{"peers", Level::kError, absl::StrCat("peers.dns: ", config.dns_name, ": ", config.dns_trouble),
           "The daemon finds no peer by this name.",
           absl::StrCat("`getent ahosts ", config.dns_name,
                        "`; in Kubernetes the headless Service must publish addresses that are not ready, too.")}};
}

}  // namespace

Findings CheckLinks(const Facts& facts) {
  Findings findings = JudgeName(facts.config);
  if (!facts.running()) return findings;
  for (const v1::PeerStatus& peer : facts.overview.peers()) {
    const Findings found = peer.up() ? JudgeTwin(peer) : Findings{JudgeLink(peer)};
    findings.insert(findings.end(), found.begin(), found.end());
  }
  return findings;
}

Findings CheckRailCounts(const Facts& facts) {
  if (!facts.running()) return {};
  const auto own = static_cast<uint32_t>(facts.overview.rails_size());
  std::map<uint32_t, std::vector<std::string>> nodes_by_count;
  for (const v1::PeerStatus& peer : facts.overview.peers()) {
    if (peer.up() && peer.rail_count() != 0 && peer.rail_count() != own) {
      nodes_by_count[peer.rail_count()].push_back(peer.node());
    }
  }
  Findings findings;
  for (const auto& [count, nodes] : nodes_by_count) {
    const char* const where = count < own ? "there" : "here";
    findings.push_back({"rails", Level::kWarning,
                        absl::StrCat("this node has ", FormatCount(own, "rail"), ", ", absl::StrJoin(nodes, ", "),
                                     nodes.size() == 1 ? " has " : " have ", count),
                        absl::StrCat("Rail i of a node reaches rail i of its peers. Rails from ", std::min(count, own),
                                     " on have no other end ", where, " and carry nothing."),
                        "Name the same number of rails on all nodes, in the order of the switches."});
  }
  return findings;
}

Findings CheckPeers(const Facts& facts) {
  Findings findings;
  if (!facts.running()) {
    if (facts.config.dns_addresses > 0) {
      findings.push_back({"peers", Level::kOk,
                          absl::StrCat(facts.config.dns_name, " has ", facts.config.dns_addresses,
                                       facts.config.dns_addresses == 1 ? " address" : " addresses"),
                          "", ""});
    }
    std::vector<std::string> good;
    for (const ConfiguredPeer& peer : facts.config.peers) {
      if (peer.name == facts.config.node) continue;
      if (peer.trouble.empty()) {
        good.push_back(peer.name);
        continue;
      }
      findings.push_back({"peers", Level::kNote,
                          absl::StrCat("node ", peer.name, " does not answer at ", peer.control, ": ", peer.trouble),
                          "This is normal until its daemon has been started.",
                          "Afterwards look at its log, at its control.listen, and at firewalls between the nodes."});
    }
    if (!good.empty()) {
      findings.push_back(
          {"peers", Level::kOk, absl::StrCat("these take control connections: ", absl::StrJoin(good, ", ")), "", ""});
    }
    return findings;
  }
  bool links_well = true;
  for (const v1::PeerStatus& peer : facts.overview.peers()) {
    if (!peer.up() || !JudgeTwin(peer).empty()) {
      links_well = false;  // CheckLinks() has reported it
      continue;
    }
    const Findings found = JudgePeer(peer, facts);
    findings.insert(findings.end(), found.begin(), found.end());
  }
  if (facts.overview.peers().empty()) {
    findings.push_back({"peers", Level::kNote, "the daemon knows of no peer", "It serves groups on this node only.",
                        "List the other nodes in `peers`, or name them all by `peers.dns`."});
  } else if (findings.empty() && links_well) {
    findings.push_back(
        {"peers", Level::kOk,
         absl::StrCat("all reached over every rail", CheckRailCounts(facts).empty() ? ": " : " that both ends have: ",
                      FormatCount(static_cast<uint64_t>(facts.overview.peers_size()), "peer"), ", ",
                      FormatCount(static_cast<uint64_t>(facts.overview.rails_size()), "rail")),
         "", ""});
  }
  return findings;
}

}  // namespace rails::ctl::doctor
