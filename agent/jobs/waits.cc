#include "agent/jobs/waits.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/base/failed_ranks.h"

namespace railsd {
namespace {

constexpr size_t kMaxNodesNamed = 8;

// "rank 3 on n1 (pid 42), rank 5 on n1".
std::string NamesOf(const Group& group, const std::vector<Unsubmitted::Member>& members) {
  const auto name = [&](std::string* out, const Unsubmitted::Member& member) {
    absl::StrAppend(out, group.Describe(member.rank));
    if (member.pid > 0) absl::StrAppend(out, " (pid ", member.pid, ")");
  };
  return absl::StrCat(absl::StrJoin(members, ", ", name), members.size() < Unsubmitted::kMaxMembers ? "" : ", ...");
}

// Ranks of a node that has not said which of them are missing.
std::string RanksOf(const Group& group, PeerIndex peer, const std::string& node) {
  std::vector<Rank> ranks = group.RanksOf(peer);
  if (ranks.size() == 1) return group.Describe(ranks[0]);
  const bool all = ranks.size() < Unsubmitted::kMaxMembers;
  if (!all) ranks.resize(Unsubmitted::kMaxMembers);
  const auto number = [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); };
  return absl::StrCat("the ranks of ", node, " (", absl::StrJoin(ranks, ", ", number), all ? ")" : ", ...)");
}

}  // namespace

std::vector<Unsubmitted::Member> UnsubmittedHere(const NodeJob& job, const Group& group, SessionTable& sessions) {
  std::vector<Unsubmitted::Member> members;
  for (Rank rank : group.local_ranks) {
    if (job.parts.Find(rank) != nullptr || members.size() == Unsubmitted::kMaxMembers) continue;
    const Session* const session = sessions.FindAny(group.ranks[rank.value()].session);
    members.push_back({rank, session == nullptr ? 0 : session->info.pid});
  }
  return members;
}

std::string WaitsFor(const NodeJob& job, const Group* group, const PeerTable& peers, SessionTable& sessions) {
  if (group == nullptr) return "for its end";
  if (!job.started) return absl::StrCat("for ", NamesOf(*group, UnsubmittedHere(job, *group, sessions)), " to submit");
  std::vector<std::string> unsubmitted;
  for (const Exchange& exchange : job.exchanges) {
    if (exchange.left_out) continue;
    const Peer& node = peers.Get(exchange.peer);
    if (!node.up) return absl::StrCat("for ", node.node, ", which is not connected: ", node.why);
    if (exchange.ready.has_value() || exchange.compared || unsubmitted.size() == kMaxNodesNamed) continue;
    unsubmitted.push_back(exchange.unsubmitted.empty() ? RanksOf(*group, exchange.peer, node.node)
                                                       : NamesOf(*group, exchange.unsubmitted));
  }
  if (!unsubmitted.empty()) {
    return absl::StrCat("for ", absl::StrJoin(unsubmitted, ", "), unsubmitted.size() < kMaxNodesNamed ? "" : ", ...",
                        " to submit");
  }
  for (const Exchange& exchange : job.exchanges) {
    const std::string& node = peers.Get(exchange.peer).node;
    if (exchange.left_out) continue;
    if (exchange.out.eager() && !exchange.out.over()) return absl::StrCat("for ", node, " to take READY");
    const bool granted = exchange.out.granted() || exchange.out.over();
    if (!granted) return absl::StrCat("for ", node, " to be ready");
    if (exchange.grant_waits) return absl::StrCat("for a rail from ", node, ", or for room to open a zone to it");
    const bool reached = (peers.Get(exchange.peer).connected & exchange.out.Usable()) != 0;
    if (!exchange.out.over() && (!exchange.planned || !reached)) return absl::StrCat("for a rail to ", node);
  }
  return "for its bytes to arrive";
}

std::vector<Rank> AwaitedRanks(const NodeJob& job, const Group& group, SessionTable& sessions) {
  std::vector<Rank> ranks;
  const auto add = [&](const std::vector<Unsubmitted::Member>& members) {
    for (const Unsubmitted::Member& member : members) ranks.push_back(member.rank);
  };
  if (!job.started) {
    add(UnsubmittedHere(job, group, sessions));
    return ranks;
  }
  for (const Exchange& exchange : job.exchanges) {
    if (exchange.left_out || exchange.ready.has_value() || exchange.compared) continue;
    add(exchange.unsubmitted);
    if (!exchange.unsubmitted.empty()) continue;
    const std::vector<Rank> all = group.RanksOf(exchange.peer);
    ranks.insert(ranks.end(), all.begin(), all.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

absl::Status DeadlineStatus(const NodeJob& job, const RankPart& part, const Group* group, const PeerTable& peers,
                            SessionTable& sessions) {
  absl::Status status = absl::DeadlineExceededError(absl::StrCat(
      "job ", job.key.seq.value(), " of rank ", part.submission.rank.value(), " on ", peers.self(), " waited ",
      WaitsFor(job, group, peers, sessions), "; ", part.report.bytes_sent, " of ", part.report.bytes_to_send,
      " bytes were sent, ", part.report.bytes_received, " of ", part.report.bytes_to_receive, " received"));
  if (group == nullptr) return status;
  return WithFailedRanks(std::move(status), AwaitedRanks(job, *group, sessions));
}

}  // namespace railsd
