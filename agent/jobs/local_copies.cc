#include "agent/jobs/local_copies.h"

#include <algorithm>
#include <utility>

namespace railsd {
namespace {

// Null for a rank that is left out.
const PreparedFlow* FlowWith(Rank peer, const std::vector<PreparedFlow>& by_rank) {
  const auto before = [](const PreparedFlow& flow, Rank rank) { return flow.peer < rank; };
  const auto it = std::lower_bound(by_rank.begin(), by_rank.end(), peer, before);
  return it != by_rank.end() && it->peer == peer ? &*it : nullptr;
}

uint64_t BytesOf(const PreparedFlow* flow) { return flow == nullptr ? 0 : flow->bytes; }

// Lengths that differ fail the job when all ranks have submitted (CheckLocalRanks).
void Begin(NodeJob& job, RankPart& from, RankPart& to, Copier* copier) {
  const Rank source = from.submission.rank, destination = to.submission.rank;
  const PreparedFlow* const send = FlowWith(destination, from.submission.sends);
  const PreparedFlow* const receive = FlowWith(source, to.submission.receives);
  if (BytesOf(send) != BytesOf(receive) || BytesOf(send) == 0) return;
  const LocalCopy& copy = job.copies.emplace_back(
      LocalCopy{source, destination, {from.submission.memory, send->memory}, {to.submission.memory, receive->memory}});
  ++job.copies_running;
  copier->Submit({job.tag, job.copies.size() - 1, &copy.from, &copy.to, job.stop_copies, job.tenant->index(),
                  job.tenant->share()});
}

}  // namespace

void BeginCopies(NodeJob& job, const Group& group, RankPart& part, Copier* copier) {
  const auto other = [&](const PreparedFlow& flow) -> RankPart* {
    const auto it = group.ranks[flow.peer.value()].local ? job.parts.find(flow.peer) : job.parts.end();
    return it == job.parts.end() ? nullptr : &it->second;
  };
  for (const PreparedFlow& send : part.submission.sends) {
    if (RankPart* to = other(send)) Begin(job, part, *to, copier);
  }
  for (const PreparedFlow& receive : part.submission.receives) {
    if (RankPart* from = other(receive)) Begin(job, *from, part, copier);
  }
}

}  // namespace railsd
