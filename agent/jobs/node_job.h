// One job as this node sees it: the parts of its local ranks, the exchange with each other node, the local copies.
#ifndef RAILSD_AGENT_JOBS_NODE_JOB_H_
#define RAILSD_AGENT_JOBS_NODE_JOB_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/agent.h"
#include "agent/base/fixed_list.h"
#include "agent/base/growing_list.h"
#include "agent/control/messages.h"
#include "agent/groups/layout.h"
#include "agent/jobs/explanation.h"
#include "agent/jobs/receiving.h"
#include "agent/jobs/sending.h"
#include "agent/jobs/submission.h"
#include "agent/jobs/validate.h"
#include "agent/sessions/tenants.h"

namespace railsd {

// A call that waits for a part to become terminal.
struct Waiter {
  absl::Time deadline;
  Callback<absl::StatusOr<JobReport>> done;
};

// A local rank's part. Terminal when `report.state` says so; the parts of a job that ends well end together.
struct RankPart {
  CheckedSubmission submission;
  JobReport report;
  absl::Time accepted, deadline;
  uint64_t bytes_received = 0;  // by copies, and in zones that are closed
  absl::InlinedVector<Waiter, 1> waiters;
  bool terminal() const { return report.state == JobState::kDone || report.state == JobState::kFailed; }
};

// The parts of a job's local ranks in the order of ranks. They never move.
class RankParts {
 public:
  // Call once, before the first Add().
  void MakeRoom(size_t most) { parts_ = FixedList<RankPart>(most); }
  // The rank has no part yet.
  RankPart& Add(Rank rank) {
    RankPart& part = parts_.Add();
    part.report.rank = rank;
    by_rank_.insert(LowerBound(rank), &part);
    return part;
  }
  // Null when it has none.
  RankPart* Find(Rank rank) const {
    const auto it = LowerBound(rank);
    return it != by_rank_.end() && (*it)->report.rank == rank ? *it : nullptr;
  }
  // The place of a rank that has a part.
  uint32_t PlaceOf(Rank rank) const { return static_cast<uint32_t>(LowerBound(rank) - by_rank_.begin()); }
  size_t size() const { return by_rank_.size(); }
  bool empty() const { return by_rank_.empty(); }
  // The part at a place in the order of ranks that have one. StreamFlow::part is such a place once all ranks have
  // parts.
  RankPart& operator[](size_t place) const { return *by_rank_[place]; }
  auto begin() const { return by_rank_.begin(); }
  auto end() const { return by_rank_.end(); }

 private:
  using ByRank = absl::InlinedVector<RankPart*, 8>;
  ByRank::const_iterator LowerBound(Rank rank) const {
    return std::lower_bound(by_rank_.begin(), by_rank_.end(), rank,
                            [](const RankPart* part, Rank wanted) { return part->report.rank < wanted; });
  }

  FixedList<RankPart> parts_;
  ByRank by_rank_;
};

// All bytes between this node and one other in the job.
struct Exchange {
  Exchange(const ExchangeContext* context, NodeJob* job, PeerIndex index)
      : peer(index), out(context, job, index), in(context, index) {}

  const PeerIndex peer;
  bool left_out = false;  // the peer is lost, and the job goes on without it
  ExchangeTimes times;
  Sending out;
  Receiving in;

  Ready TakeReady() {
    Ready taken = *std::move(ready);
    ready.reset();
    return taken;
  }
  std::optional<Ready> ready;  // the peer's, while it waits to be compared
  uint64_t held_bytes = 0;     // of `ready`, while the job waits for ranks of this node
  bool compared = false;       // the peer's READY is here, and both ends agree
  bool rails_only = false;     // Ready::rails_only of the peer, once it is compared
  // When the wait for the peer's READY began; infinite future: nothing waits for it.
  absl::Time waits_since = absl::InfiniteFuture();
  Ready::Rails peer_rails;  // as the peer's READY tells
  bool planned = false;
  BytesByRail planned_bytes;
  std::vector<Unsubmitted::Member> unsubmitted;  // ranks of the peer, as it tells
  bool ready_sent = false;
  bool ready_waits = false;  // until rails have bound the zone, whose grant rides along
  bool grant_waits = false;  // for room or for a rail; the grant follows READY

  // While the job is aborted:
  bool quiesced = false;       // the peer writes nothing more
  bool quiesced_said = false;  // the peer was told that this node writes nothing more
  std::vector<RailConnection> their_failed;
  absl::Time quiesced_by = absl::InfiniteFuture();  // until when this node waits for the peer's QUIESCED

  // Ends the wait for the peer's READY and returns how long it was; 0 without one.
  absl::Duration EndWait(absl::Time now) {
    if (waits_since == absl::InfiniteFuture()) return absl::ZeroDuration();
    return now - std::exchange(waits_since, absl::InfiniteFuture());
  }
  // True when nothing is left to be done, and no rail reads or writes its memory.
  bool done() const {
    return (left_out || compared) && out.over() && !out.held() && (left_out ? in.quiet() : in.done());
  }
};

struct LocalCopy {
  Rank source, destination;
  MemoryRanges from, to;
};
inline constexpr size_t kUsualCopies = 8 * 8;  // of 8 ranks, each to all

struct NodeJob {
  JobKey key;
  JobTag tag;
  const absl::Time* clock = nullptr;  // the engine's
  Tenant* tenant = nullptr;           // of its group; known once a local rank has submitted
  RankParts parts;
  std::shared_ptr<const GroupLayout> layout;  // of its group
  FixedList<Exchange> exchanges;              // by node of the layout; rails and tables point to them
  // Their zones in one block, which lives as long as any of them: a zone may outlive the job.
  std::shared_ptr<FixedList<ReceiveZone>> zones;
  uint64_t ranges = 0;  // of the parts
  GrowingList<LocalCopy, kUsualCopies> copies;
  size_t copies_running = 0;
  std::atomic<bool> stop_copies{false};

  bool started = false;   // every local rank has submitted
  bool building = false;  // a thread of the copier builds its streams
  // When peers are told which local ranks have not submitted.
  absl::Time tell_unsubmitted_at;
  bool told_unsubmitted = false;
  absl::Time started_at, running_at;
  absl::Time first_chunk_at = absl::InfiniteFuture();  // when the first bytes were given to a rail
  bool running = false;                                // every READY is here
  size_t compared_until = 0, done_until = 0;           // all exchanges below these places are compared, or done
  uint64_t out_bytes = 0, in_bytes = 0;                // across nodes
  uint64_t inflow_bytes = 0;  // of `in_bytes`, from nodes that take part; 0 for capacities, which tell nothing
  uint64_t resent_bytes = 0;  // that rails were given a second time
  absl::Time last_acknowledged = absl::InfinitePast(), last_received = absl::InfinitePast();
  std::unique_ptr<JobRecorder> recorder;  // null when jobs are not explained
  BytesByRail rail_tx_bytes, rail_rx_bytes, rail_planned_bytes;
  // Bytes by rail, as if the bytes of each source rank went over its own rail.
  BytesByRail pinned_tx_bytes, pinned_rx_bytes;
  uint64_t eager_sent_bytes = 0, eager_received_bytes = 0;
  bool urgent = false;                // a local rank says so
  uint64_t vote = 0, peers_vote = 0;  // the highest of local ranks, and of nodes whose READY is compared
  // Until when this node waits for an ABORT that says why a peer has closed its zone early.
  absl::Time abort_expected_by = absl::InfiniteFuture();
  std::string closed_by;
  bool ended = false;       // waits to be forgotten
  absl::Status failure;     // not OK: aborting; terminal once quiescent
  bool replayable = false;  // as JobReport's

  absl::Time now() const { return *clock; }
  void Take(CheckedSubmission submission, RankPart* part) {
    ranges += submission.ranges;
    urgent = urgent || submission.urgent;
    vote = std::max(vote, submission.vote);
    part->submission = std::move(submission);
  }
  bool aborting() const { return !failure.ok(); }
  Exchange* With(PeerIndex peer) {
    const uint32_t node = layout->NodeOf(peer);
    return node == GroupLayout::kLocal ? nullptr : &exchanges[node];
  }
  const Exchange* With(PeerIndex peer) const { return const_cast<NodeJob*>(this)->With(peer); }
  // The rank's own rail, as Policy::kPinned has it.
  size_t OwnRail(Rank rank) const { return layout->ranks[rank.value()].local_rank % pinned_rx_bytes.size(); }
  // Call once, before any other method.
  void AddExchanges(const ExchangeContext* context, std::shared_ptr<const GroupLayout> group) {
    layout = std::move(group);
    exchanges = FixedList<Exchange>(layout->peers.size());
    for (const PeerIndex peer : layout->peers) exchanges.Add(context, this, peer);
  }
  // Calls visit(exchange) for each exchange: first for those that bring bytes, whose peers wait for a grant. Each node
  // begins with the peer after it, or else all of them would let the same one begin first.
  template <typename Visit>
  void ForEachByNeed(Visit visit) {
    const size_t count = exchanges.size();
    for (const bool brings : {true, false}) {
      for (size_t i = 0; i < count; ++i) {
        Exchange& exchange = exchanges[(layout->self + i) % count];
        if ((exchange.in.total_bytes() > 0) == brings) visit(exchange);
      }
    }
  }
  std::shared_ptr<ReceiveZone> NewZone(size_t rails, bool binds_zones) {
    if (zones == nullptr) zones = std::make_shared<FixedList<ReceiveZone>>(exchanges.size());
    if (zones->size() == exchanges.size()) {  // an exchange has a second one
      return std::make_shared<ReceiveZone>(rails, binds_zones);
    }
    return {zones, &zones->Add(rails, binds_zones)};
  }
  bool HasUnendedPart() const {
    return std::any_of(parts.begin(), parts.end(), [](const RankPart* part) { return !part->terminal(); });
  }
  // True when no copy, rail or peer touches the memory of its ranks.
  bool Quiescent() const {
    return copies_running == 0 && !building && std::all_of(exchanges.begin(), exchanges.end(), [](const Exchange& e) {
             return e.in.quiet() && !e.out.held();
           });
  }
  // Every rank's bytes are where they belong.
  bool Done() {
    if (!running || copies_running > 0) return false;
    while (done_until < exchanges.size() && exchanges[done_until].done()) ++done_until;
    return done_until == exchanges.size();
  }
  // All exchanges that are not done, and perhaps some that are.
  absl::Span<const Exchange> Undone() const {
    return absl::MakeConstSpan(exchanges.begin(), exchanges.end()).subspan(done_until);
  }
};

using JobMap = absl::flat_hash_map<JobKey, std::unique_ptr<NodeJob>>;

// Null when the job is not there.
inline NodeJob* Find(const JobMap& jobs, JobKey key) {
  const auto it = jobs.find(key);
  return it == jobs.end() ? nullptr : it->second.get();
}

// True when `is_meant` holds for a job of the epoch.
template <typename IsMeant>
bool AnyOf(const JobMap& jobs, Epoch epoch, IsMeant is_meant) {
  return std::any_of(jobs.begin(), jobs.end(),
                     [&](const auto& job) { return job.first.epoch == epoch && is_meant(*job.second); });
}

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_NODE_JOB_H_
