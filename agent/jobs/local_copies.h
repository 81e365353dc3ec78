// Flows between ranks of this node and from a rank to itself, which are copied.
#ifndef RAILSD_AGENT_JOBS_LOCAL_COPIES_H_
#define RAILSD_AGENT_JOBS_LOCAL_COPIES_H_

#include <algorithm>

#include "absl/types/span.h"
#include "agent/groups/groups.h"
#include "agent/jobs/copier.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// The flow with `peer`; null when the list has none.
const CheckedFlow* FlowWith(Rank peer, absl::Span<const CheckedFlow> by_rank);
inline uint64_t BytesOf(const CheckedFlow* flow) { return flow == nullptr ? 0 : flow->bytes; }

// Calls visit(flow) for each flow with a rank of this node. A rank may have thousands of flows and a few neighbours, or
// the other way round. Ranks of a node mostly follow each other, so the next flow is looked at before all are searched.
template <typename Visit>
void ForEachLocal(absl::Span<const CheckedFlow> by_rank, const Group& group, Visit visit) {
  if (by_rank.size() < group.local_ranks.size()) {
    for (const CheckedFlow& flow : by_rank) {
      if (group.ranks[flow.peer.value()].local) visit(flow);
    }
    return;
  }
  const CheckedFlow* next = by_rank.data();
  for (const Rank rank : group.local_ranks) {
    const bool here = next < by_rank.end() && next->peer == rank;
    const CheckedFlow* const flow = here ? next : FlowWith(rank, by_rank);
    if (flow == nullptr) continue;
    visit(*flow);
    next = flow + 1;
  }
}

// Has the copier copy what the rank exchanges with itself and with those ranks of this node that have submitted before
// it.
void BeginCopies(NodeJob& job, const Group& group, RankPart& part, Copier* copier);

// Adds the bytes of a finished copy to the reports of both its ranks. Returns the bytes.
uint64_t CountCopy(NodeJob& job, const LocalCopy& copy);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_LOCAL_COPIES_H_
