#include "agent/jobs/patience.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/failed_ranks.h"

namespace railsd {
namespace {

// If the peer is cut off altogether, its link is silent for `peer_lost`, too. The link's error says more, so it must
// come first.
constexpr absl::Duration kControlFirst = absl::Seconds(1);
// Rails flap. But after this many rounds in a row, with no byte accepted in the time in which a peer is given up, the
// fault is the receiver's: it does not have the zone, or it ends the connections each time.
constexpr uint32_t kMaxFruitlessRounds = 4;

absl::Duration LimitOf(const Group* group, const AgentOptions& options) {
  return std::max(options.peer_lost, group == nullptr ? absl::ZeroDuration() : group->recovery.wait_limit);
}

// UNAVAILABLE that names the ranks of `peer` as failed.
absl::Status Blame(const Group* group, PeerIndex peer, const std::string& what) {
  absl::Status status = absl::UnavailableError(what);
  return group == nullptr ? status : WithFailedRanks(std::move(status), group->RanksOf(peer));
}

}  // namespace

absl::Time StrandedUntil(const Peer& peer, const Group* group, const AgentOptions& options) {
  return peer.stranded_since + LimitOf(group, options) + kControlFirst;
}

std::vector<std::pair<NodeJob*, absl::Status>> FindStranded(const JobMap& jobs, const GroupTable& groups,
                                                            const ExchangeContext& context, absl::Time now,
                                                            absl::Time* next) {
  std::vector<std::pair<NodeJob*, absl::Status>> found;
  for (const auto& [key, job] : jobs) {
    if (!job->started || job->aborting()) continue;
    const Group* const group = groups.Find(key.epoch);
    for (const Exchange& exchange : job->exchanges) {
      const Peer& peer = context.peer(exchange.peer);
      const bool waits = !exchange.left_out && peer.up && peer.stranded_since < absl::InfiniteFuture() &&
                         !exchange.out.over() && !exchange.out.eager() && (peer.connected & exchange.out.Usable()) == 0;
      if (!waits) continue;
      const absl::Time until = StrandedUntil(peer, group, *context.options);
      if (until > now) {
        *next = std::min(*next, until);
        continue;
      }
      found.emplace_back(job.get(), Blame(group, exchange.peer,
                                          absl::StrCat("no rail of ", context.peers->self(), " has reached ", peer.node,
                                                       " for ", absl::FormatDuration(LimitOf(group, *context.options)),
                                                       " (job ", key.seq.value(), ")")));
      break;
    }
  }
  return found;
}

absl::Status CheckFruitless(const NodeJob& job, const Group* group, const Exchange& exchange,
                            const ExchangeContext& context) {
  const absl::Duration limit = LimitOf(group, *context.options);
  const Sending& out = exchange.out;
  if (out.fruitless_rounds() < kMaxFruitlessRounds || job.now() < out.fruitless_since() + limit + kControlFirst) {
    return absl::OkStatus();
  }
  return Blame(group, exchange.peer,
               absl::StrCat("node ", context.peer(exchange.peer).node, " has accepted no byte of job ",
                            job.key.seq.value(), " for ", absl::FormatDuration(limit), ": the rails of ",
                            context.peers->self(), " failed under it ", out.fruitless_rounds(), " times"));
}

}  // namespace railsd
