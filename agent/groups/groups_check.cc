// GroupTable: checks that joins are valid and fit each other; ends joins that wait too long.
#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/base/failed_ranks.h"
#include "agent/groups/groups.h"

namespace railsd {
namespace {

// The highest first job of an epoch: numbers rise by 1 and must never overflow.
constexpr uint64_t kMaxNextSeq = uint64_t{1} << 62;

}  // namespace

absl::Status GroupTable::CheckJoin(const JoinRequest& request, const Session* session) const {
  if (session == nullptr) return absl::NotFoundError(absl::StrCat("session ", request.session.value(), " is not open"));
  if (request.name.empty() || request.name.size() > options_.limits.max_name_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("name: ", request.name.size(), " bytes; give 1 to ",
                                                   options_.limits.max_name_bytes, " (limits.max_name)"));
  }
  if (request.world_size == 0 || request.world_size > options_.limits.max_world_size) {
    if (request.world_size != 0) options_.refused->Count(Limit::kWorldSize);
    return absl::InvalidArgumentError(absl::StrCat("world_size: ", request.world_size, " is not between 1 and ",
                                                   options_.limits.max_world_size, " (limits.max_world_size)"));
  }
  if (request.rank.value() >= request.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", request.rank.value(), " is not below world_size ", request.world_size));
  }
  if (request.recovery.wait_limit > options_.max_peer_wait) {
    return absl::InvalidArgumentError(absl::StrCat("wait_limit: ", absl::FormatDuration(request.recovery.wait_limit),
                                                   " is more than timeouts.max_peer_wait of ", peers_->self(), ", ",
                                                   absl::FormatDuration(options_.max_peer_wait)));
  }
  const uint64_t next_seq = request.next_seq.value();
  if (next_seq == 0 || next_seq > kMaxNextSeq) {
    return absl::InvalidArgumentError(absl::StrCat("next_seq: ", next_seq, " is not between 1 and ", kMaxNextSeq));
  }
  if (next_seq > 1 && request.recovery.policy != RecoveryPolicy::kWait) {
    return absl::InvalidArgumentError(
        absl::StrCat("next_seq: ", next_seq, ", but only groups with recovery wait go on in a new epoch"));
  }
  return absl::OkStatus();
}

absl::Status GroupTable::CheckNotMember(const GroupKey& key, Rank rank) const {
  for (const auto& [epoch, group] : groups_) {
    if (group->key != key || group->broken || rank.value() >= group->world_size()) continue;
    const Group::Member& member = group->ranks[rank.value()];
    if (member.local && !member.gone) {
      return absl::AlreadyExistsError(absl::StrCat("rank: ", rank.value(), " of group ", key.name,
                                                   " is held by session ", member.session.value(),
                                                   "; it must leave first"));
    }
  }
  auto forming = forming_.find(key);
  if (forming == forming_.end()) return absl::OkStatus();
  auto joiner = forming->second.find(rank);
  if (joiner == forming->second.end()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("rank: ", rank.value(), " of group ", key.name, " is joining on ", joiner->second.node, " already"));
}

absl::Status GroupTable::CheckRoom(const GroupKey& key) const {
  // Groups that form elsewhere take no place here, though every node hears of them.
  const auto forms_here = [this](const auto& forming) {
    return std::any_of(forming.second.begin(), forming.second.end(),
                       [this](const auto& j) { return IsLocal(j.second); });
  };
  if (const auto own = forming_.find(key); own != forming_.end() && forms_here(*own)) return absl::OkStatus();
  size_t live = 0;
  // A broken group gives its place to the next group of its key.
  std::set<std::reference_wrapper<const GroupKey>, std::less<GroupKey>> others;
  for (const auto& [epoch, group] : groups_) {
    live += !group->broken;
    if (group->broken && group->key != key && group->HasRanksHere()) others.insert(group->key);
  }
  const bool any_broken = !others.empty();
  for (const auto& forming : forming_) {
    if (forms_here(forming)) others.insert(forming.first);
  }
  if (live + others.size() < options_.limits.max_groups) return absl::OkStatus();
  return options_.refused->Refuse(
      Limit::kGroups,
      // Gives no numbers, because most groups may be other tenants'.
      absl::StrCat(peers_->self(), " has ", options_.limits.max_groups, " groups, the most that it may have",
                   any_broken ? "; a broken one counts until its ranks have left it or joined it again" : ""));
}

absl::Status GroupTable::Contradiction(Rank rank, const Joiner& joiner, const Joiner& zero) {
  const auto differ = [&](const char* field, const auto& says, const auto& zero_says) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": rank ", rank.value(), " on ", joiner.node, " says ", says,
                                                   ", rank 0 on ", zero.node, " says ", zero_says));
  };
  if (joiner.world_size != zero.world_size) return differ("world_size", joiner.world_size, zero.world_size);
  if (joiner.recovery == zero.recovery) return absl::OkStatus();
  return differ("recovery", joiner.recovery.ToString(), zero.recovery.ToString());
}

absl::Status GroupTable::Disagreement(Rank rank, const Joiner& joiner, const Joiner& zero) {
  if (joiner.next_seq == zero.next_seq) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("next_seq: rank ", rank.value(), " on ", joiner.node, " has finished its jobs up to ",
                   joiner.next_seq.value() - 1, ", rank 0 on ", zero.node, " up to ", zero.next_seq.value() - 1,
                   "; what one has finished cannot be replayed for the others, since its buffers may have changed"));
}

absl::Status GroupTable::CheckForming(const Forming& forming, const Joiner& zero) {
  for (const auto& [rank, joiner] : forming) {
    if (absl::Status s = Contradiction(rank, joiner, zero); !s.ok()) return s;
  }
  if (forming.size() < zero.world_size) return absl::OkStatus();
  for (const auto& [rank, joiner] : forming) {
    if (absl::Status s = Disagreement(rank, joiner, zero); !s.ok()) return s;
  }
  return absl::OkStatus();
}

std::vector<Rank> Group::RanksOf(PeerIndex peer) const {
  std::vector<Rank> found;
  for (uint32_t r = 0; r < world_size(); ++r) {
    if (!ranks[r].local && ranks[r].peer == peer) found.emplace_back(r);
  }
  return found;
}

absl::Status GroupTable::MissingRanks(const GroupKey& key, const Forming& forming, uint32_t world_size) const {
  std::vector<uint32_t> missing;
  for (uint32_t r = 0; r < world_size && missing.size() < FormingView::kMaxMissing; ++r) {
    if (!forming.contains(Rank(r)) && !forming.gave_up.contains(Rank(r))) missing.push_back(r);
  }
  const auto with_node = [](std::string* out, const auto& gone) {
    absl::StrAppend(out, gone.first.value(), " on ", gone.second);
  };
  std::string text = absl::StrCat("group ", key.name, ": ", forming.size() + forming.gave_up.size(), " of ", world_size,
                                  " ranks have joined");
  if (!missing.empty()) {
    absl::StrAppend(&text, "; missing: ", absl::StrJoin(missing, ", "),
                    missing.size() == FormingView::kMaxMissing ? ", ..." : "");
  }
  if (!forming.gave_up.empty()) {
    absl::StrAppend(&text, "; gave up before: ", absl::StrJoin(forming.gave_up, ", ", with_node));
  } else if (missing.empty()) {
    absl::StrAppend(&text, "; rank 0's node has not committed it");
  }
  return WithFailedRanks(absl::DeadlineExceededError(text), {missing.begin(), missing.end()});
}

std::vector<FormingView> GroupTable::FormingHere() const {
  std::vector<FormingView> views;
  for (const auto& [key, forming] : forming_) {
    FormingView view{key.tenant, key.name, 0, static_cast<uint32_t>(forming.size()), {}, {}};
    for (const auto& [rank, joiner] : forming) {
      if (!IsLocal(joiner)) continue;
      view.world_size = joiner.world_size;
      view.local_ranks.push_back(rank);
    }
    for (uint32_t r = 0; r < view.world_size && view.missing.size() < FormingView::kMaxMissing; ++r) {
      if (!forming.contains(Rank(r))) view.missing.emplace_back(r);
    }
    if (!view.local_ranks.empty()) views.push_back(std::move(view));
  }
  return views;
}

void GroupTable::Tick(absl::Time now) {
  for (auto it = forming_.begin(); it != forming_.end();) {
    const auto here = it++;
    Forming& forming = here->second;
    std::vector<std::pair<Rank, absl::Status>> late;
    for (const auto& [rank, joiner] : forming) {
      if (joiner.deadline <= now) late.emplace_back(rank, MissingRanks(here->first, forming, joiner.world_size));
    }
    for (auto& [rank, why] : late) {
      Joiner joiner = std::move(forming.at(rank));
      forming.erase(rank);
      forming.GaveUp(rank, peers_->self());
      RejectJoin(here->first, rank, joiner, why);
    }
    if (forming.empty()) forming_.erase(here);
  }
}

}  // namespace railsd
