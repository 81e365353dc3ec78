// One job as this node sees it: the parts of its local ranks, the exchange with each peer node, the local copies.
#ifndef RAILSD_AGENT_JOB_NODE_JOB_H_
#define RAILSD_AGENT_JOB_NODE_JOB_H_

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/control/messages.h"
#include "agent/job/explanation.h"
#include "agent/job/fenced_flow.h"
#include "agent/job/submission.h"
#include "agent/job/tenants.h"
#include "agent/job/tracker.h"
#include "agent/job/validate.h"
#include "agent/transport/transport.h"

namespace railsd {

// Somebody who waits for a part to become terminal.
struct Waiter {
  absl::Time deadline;
  Callback<absl::StatusOr<JobReport>> done;
};

// A local rank's part. Terminal when `report.state` says so.
struct RankPart {
  PreparedSubmission submission;
  JobReport report;
  absl::Time accepted, deadline;
  absl::Time ended = absl::InfiniteFuture();
  uint64_t sends_left_bytes = 0;    // to other nodes, not acknowledged
  uint64_t fenced_flows_left = 0;   // to other nodes, whose fences are not all acknowledged
  uint64_t copies_left = 0;         // local flows from or to this rank
  uint64_t receive_peers_left = 0;  // peers whose zones for this job are not closed yet
  std::vector<Waiter> waiters;
  bool terminal() const { return report.state == JobState::kDone || report.state == JobState::kFailed; }
};

// A flow to a rank of a peer; it has bytes.
struct OutFlow {
  SendFlow send;
  Rank source, destination;
  uint32_t source_place = 0, destination_place = 0;  // Group::Member::place
  FencedFlow fenced = {};                            // where rails write into remote memory
};

// A flow from a rank of a peer, as its local receiver submitted it; it has bytes.
struct InFlow {
  Rank destination, source;
  uint64_t bytes = 0;
  MemoryRanges memory = {};  // until its zone is opened
};

// The fences of one flow from a peer, in the present round.
struct InFences {
  RailMask seen = 0;
  uint8_t expected = 0;  // as the first of them says
  uint8_t round = 0;
  bool arrived = false;
};

// The exchange with one peer node.
struct PeerExchange {
  PeerIndex peer;
  bool left_out = false;  // the peer is lost, and the job goes on without it
  ExchangeTimes times;
  // Sending.
  bool offer_sent = false;
  std::deque<OutFlow> out;  // in the order of the OFFER; addresses are stable
  uint64_t out_bytes = 0;
  // Of out_bytes; the rails count it down.
  std::unique_ptr<std::atomic<uint64_t>> out_left_bytes = std::make_unique<std::atomic<uint64_t>>(0);
  std::optional<Ready> ready;  // theirs
  bool planned = false;
  // Over rails that write into remote memory:
  RailMask usable = 0;                 // rails that their READY gave keys for, and that have not failed since
  std::vector<uint64_t> posted_bytes;  // by rail
  uint64_t unposted_bytes = 0;
  uint64_t outstanding_orders = 0;
  std::vector<uint64_t> rail_orders;  // the same by rail
  RailMask lost = 0;                  // rails that failed under flows; until the receiver has said what it has
  RailMask asked = 0;                 // of those, that it was asked about
  RailMask failed = 0;                // that failed at this end since READY: what is on their wire may yet land
  uint64_t fenced_flows_left = 0;     // whose fences are not all acknowledged
  // Over rails whose receiver places the bytes: how often an order came back with nothing of it arrived, since when.
  // Whatever arrives begins anew.
  uint32_t fruitless_returns = 0;
  absl::Time fruitless_since = absl::InfiniteFuture();
  // No rail is left; the job fails then, unless the peer turns out to be lost and is left out.
  absl::Time doomed_at = absl::InfiniteFuture();
  bool quiesced_sent = false;
  // Receiving.
  std::vector<InFlow> expected;                  // by destination, then source
  std::optional<Offer> offer;                    // theirs
  uint64_t held_offer_bytes = 0;                 // while the job waits for ranks of this node
  std::vector<Unsubmitted::Member> unsubmitted;  // until then, of their ranks, as they say
  bool ready_sent = false;
  std::shared_ptr<const ReceiveSet> zones;  // while open or closing
  std::vector<ReceiveTracker> in;           // by zone
  uint64_t in_bytes = 0, in_left_bytes = 0;
  bool closing = false;
  // Over rails that write into remote memory:
  std::shared_ptr<ReceiveSet> waiting;  // zones that wait for a rail or for room for their fences
  uint32_t rails_unopened = 0;          // that have not said kZonesOpened
  RailMask opened = 0;                  // whose keys are there
  RailMask rehomed = 0;                 // that failed at their sender; it may be news for this end
  RailMask dead = 0;                    // that failed at this end since READY: what comes over them now says nothing
  uint32_t rehomings = 0;
  std::vector<InFences> fences;                     // by zone
  std::vector<uint64_t> sent_bytes;                 // by rail, as they said
  bool quiesced = false;                            // they write nothing more
  absl::Time quiesced_by = absl::InfiniteFuture();  // until when that is waited for
  bool received = false;  // everything is here and the zones are closed, or there was nothing to receive
};

struct LocalCopy {
  Rank source, destination;
  MemoryRanges from, to;
};

struct NodeJob {
  JobKey key;
  JobTag tag;
  Tenant* tenant = nullptr;  // of its group; known once a local rank has submitted
  absl::btree_map<Rank, RankPart> parts;
  absl::node_hash_map<PeerIndex, PeerExchange> peers;  // slots and flows point to the exchanges
  uint64_t ranges = 0;                                 // of the parts
  std::deque<LocalCopy> copies;
  size_t copies_running = 0;
  std::shared_ptr<std::atomic<bool>> stop_copies;

  bool started = false;  // every local rank has submitted
  // Peers hear who has not, from then on.
  absl::Time tell_unsubmitted_at;
  bool told_unsubmitted = false;
  absl::Time started_at, running_at;
  absl::Time first_chunk_at = absl::InfiniteFuture();  // handed to a rail
  bool running = false;                                // every OFFER and READY is here
  uint64_t outstanding_orders = 0;                     // posted, kSendDone not seen
  uint64_t out_bytes = 0, in_bytes = 0;                // across nodes
  uint64_t posted_bytes = 0;                           // chunks that were posted again count again
  absl::Time last_acknowledged = absl::InfinitePast(), last_received = absl::InfinitePast();
  std::unique_ptr<JobTimeline> timeline;  // null when none is kept
  std::vector<uint64_t> rail_tx_bytes, rail_rx_bytes, rail_planned_bytes;
  // A peer has closed its zones early: an ABORT that says why is on its way. Until when it is waited for.
  absl::Time abort_expected_by = absl::InfiniteFuture();
  std::string closed_by;
  bool ended = false;       // waits to be forgotten
  absl::Status failure;     // not OK: aborting; terminal once quiescent
  bool replayable = false;  // as JobReport's
  bool aborting() const { return !failure.ok(); }
  bool HasUnendedPart() const {
    return std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part.second.terminal(); });
  }
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_NODE_JOB_H_
