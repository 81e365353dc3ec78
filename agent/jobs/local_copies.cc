#include "agent/jobs/local_copies.h"

#include <algorithm>
#include <utility>

#include "agent/jobs/capacities.h"

namespace railsd {
const CheckedFlow* FlowWith(Rank peer, absl::Span<const CheckedFlow> by_rank) {
  // A rank's place is its number, less the missing ranks before it. Most lists lack few ranks, so the search is short.
  const size_t size = by_rank.size(), number = peer.value();
  const size_t missing = size == 0 ? 0 : by_rank.back().peer.value() + size_t{1} - size;
  if (number >= size + missing) return nullptr;
  const auto begin = by_rank.begin() + static_cast<ptrdiff_t>(number - std::min(number, missing));
  const auto end = by_rank.begin() + static_cast<ptrdiff_t>(std::min(size, number + 1));
  const auto before = [](const CheckedFlow& flow, Rank rank) { return flow.peer < rank; };
  const auto it = std::lower_bound(begin, end, peer, before);
  return it != end && it->peer == peer ? &*it : nullptr;
}

namespace {

// Lengths that do not fit fail the job when all ranks have submitted (CheckLocalRanks).
void Begin(NodeJob& job, RankPart& from, const CheckedFlow* send, RankPart& to, const CheckedFlow* receive,
           Copier* copier) {
  const Rank source = from.submission.rank, destination = to.submission.rank;
  if (BytesOf(send) == 0 || !Fits(BytesOf(send), BytesOf(receive), to.submission.capacities)) return;
  if (to.submission.capacities) AddReceived(to, source, send->bytes);
  if (source == destination && from.submission.flows->own_in_place) {
    from.report.bytes_sent += send->bytes;
    from.bytes_received += send->bytes;
    return;
  }
  MemoryTable::Stream into = receive->memory;
  into.total_bytes = send->bytes;
  const LocalCopy& copy = job.copies.Add(
      LocalCopy{source, destination, {from.submission.memory, send->memory}, {to.submission.memory, into}});
  ++job.copies_running;
  copier->Submit({job.tag, job.copies.size() - 1, &copy.from, &copy.to, &job.stop_copies, job.tenant->index(),
                  job.tenant->share(), job.urgent});
}

}  // namespace

void BeginCopies(NodeJob& job, const Group& group, RankPart& part, Copier* copier) {
  const Rank self = part.submission.rank;
  ForEachLocal(part.submission.sends, group, [&](const CheckedFlow& send) {
    if (RankPart* const to = job.parts.Find(send.peer)) {
      Begin(job, part, &send, *to, FlowWith(self, to->submission.receives), copier);
    }
  });
  ForEachLocal(part.submission.receives, group, [&](const CheckedFlow& receive) {
    RankPart* const from = job.parts.Find(receive.peer);
    if (from == nullptr || from == &part) return;  // a flow of a rank to itself is begun already
    Begin(job, *from, FlowWith(self, from->submission.sends), part, &receive, copier);
  });
}

uint64_t CountCopy(NodeJob& job, const LocalCopy& copy) {
  const uint64_t bytes = copy.from.total_bytes();
  job.parts.Find(copy.source)->report.bytes_sent += bytes;
  job.parts.Find(copy.destination)->bytes_received += bytes;
  return bytes;
}

}  // namespace railsd
