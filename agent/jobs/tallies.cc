#include "agent/jobs/tallies.h"

#include <algorithm>
#include <utility>

namespace railsd {
namespace {

constexpr absl::Duration kPatience = absl::Milliseconds(10);

}  // namespace

absl::Time Tallies::Add(const NodeJob& job) {
  if (!context_.traits.binds_zones) return absl::InfiniteFuture();  // the receiver's rails have seen the bytes
  for (const Exchange& exchange : job.exchanges) {
    if (exchange.out.total_bytes() == 0 || exchange.left_out || !context_.peer(exchange.peer).up) continue;
    Waiting& tallies = by_peer_[exchange.peer];
    if (tallies.waiting.size() >= Ready::kMaxTallies) continue;
    Tally& tally = tallies.waiting.emplace_back(Tally{job.key, {}});
    for (size_t r = 0; r < context_.rail_count(); ++r) tally.bytes.push_back(exchange.out.carried_bytes(r));
    tallies.since = std::min(tallies.since, job.now());
  }
  return job.now() + kPatience;
}

absl::Time Tallies::SendOld(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [peer, tallies] : by_peer_) {
    if (tallies.since + kPatience > now) {
      next = std::min(next, tallies.since + kPatience);
      continue;
    }
    for (Tally& tally : std::exchange(tallies, {}).waiting) outbox_.Send(context_.peer(peer).node, std::move(tally));
  }
  return next;
}

}  // namespace railsd
