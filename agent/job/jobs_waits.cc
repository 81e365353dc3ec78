// JobTable: what a job waits for, and what other nodes hear of ranks that have not submitted.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/job/jobs.h"

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
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < group.world_size() && ranks.size() < Unsubmitted::kMaxMembers; ++r) {
    if (!group.ranks[r].local && group.ranks[r].peer == peer) ranks.push_back(r);
  }
  if (ranks.size() == 1) return group.Describe(Rank(ranks[0]));
  return absl::StrCat("the ranks of ", node, " (", absl::StrJoin(ranks, ", "),
                      ranks.size() < Unsubmitted::kMaxMembers ? ")" : ", ...)");
}

}  // namespace

std::vector<Unsubmitted::Member> JobTable::UnsubmittedHere(const NodeJob& job, const Group& group) const {
  std::vector<Unsubmitted::Member> members;
  for (Rank rank : group.local_ranks) {
    if (job.parts.contains(rank) || members.size() == Unsubmitted::kMaxMembers) continue;
    const Session* const session = sessions_.FindAny(group.ranks[rank.value()].session);
    members.push_back({rank, session == nullptr ? 0 : session->info.pid});
  }
  return members;
}

void JobTable::TellUnsubmitted(NodeJob& job) {
  const Group* const group = groups_.Find(job.key.epoch);
  if (group == nullptr || job.started || job.aborting()) return;
  job.told_unsubmitted = true;
  const Unsubmitted message{job.key, UnsubmittedHere(job, *group)};
  for (PeerIndex peer : group->peers) {
    if (peers_.Get(peer).up && !group->Lost(peer)) outbox_.Send(peers_.Get(peer).node, message);
  }
}

bool JobTable::OnMessage(const Peer& from, Unsubmitted&& message) {
  const Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  NodeJob* const job = Find(message.job);
  if (job == nullptr) return true;  // nobody waits here
  const auto exchange = job->peers.find(from.index);
  if (exchange == job->peers.end()) return false;
  for (const Unsubmitted::Member& member : message.members) {
    if (member.rank.value() >= group->world_size() || group->ranks[member.rank.value()].local ||
        group->ranks[member.rank.value()].peer != from.index) {
      return false;
    }
  }
  exchange->second.unsubmitted = std::move(message.members);
  return true;
}

std::string JobTable::WaitsFor(const NodeJob& job) const {
  const Group* const group = groups_.Find(job.key.epoch);
  if (group == nullptr) return "for its end";
  if (!job.started) return absl::StrCat("for ", NamesOf(*group, UnsubmittedHere(job, *group)), " to submit");
  std::vector<std::string> unsubmitted;
  for (const auto& [peer, exchange] : job.peers) {
    if (exchange.left_out) continue;
    const Peer& node = peers_.Get(peer);
    if (!node.up) return absl::StrCat("for ", node.node, ", which is not connected: ", node.why);
    if (exchange.offer.has_value() || unsubmitted.size() == kMaxNodesNamed) continue;
    unsubmitted.push_back(exchange.unsubmitted.empty() ? RanksOf(*group, peer, node.node)
                                                       : NamesOf(*group, exchange.unsubmitted));
  }
  if (!unsubmitted.empty()) {
    return absl::StrCat("for ", absl::StrJoin(unsubmitted, ", "), unsubmitted.size() < kMaxNodesNamed ? "" : ", ...",
                        " to submit");
  }
  for (const auto& [peer, exchange] : job.peers) {
    const std::string& node = peers_.Get(peer).node;
    if (exchange.left_out) continue;
    if (!exchange.ready.has_value()) return absl::StrCat("for ", node, " to be ready");
    if (!exchange.ready_sent) {
      return absl::StrCat("for a rail from ", node, " to open its zones, or for room for its fences");
    }
    if (!exchange.planned) return absl::StrCat("for a rail to ", node);
  }
  return "for its last bytes";
}

absl::Status JobTable::DeadlineStatus(const NodeJob& job, const RankPart& part) const {
  return absl::DeadlineExceededError(absl::StrCat(
      "job ", job.key.seq.value(), " of rank ", part.submission.rank.value(), " on ", peers_.self(), " waited ",
      WaitsFor(job), "; ", part.report.bytes_sent, " of ", part.report.bytes_to_send, " bytes were sent, ",
      part.report.bytes_received, " of ", part.report.bytes_to_receive, " received"));
}

}  // namespace railsd
