// The sending side of one rail: what the engine has assigned to it, cut into chunks, posted, fenced and reported.
#ifndef RAILSD_AGENT_RAILS_RAIL_SENDER_H_
#define RAILSD_AGENT_RAILS_RAIL_SENDER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "agent/rails/rail_progress.h"
#include "agent/rails/rail_records.h"
#include "agent/rails/rail_scheduler.h"
#include "agent/transport/event_queue.h"
#include "agent/transport/transport.h"

namespace railsd {

// Work that the engine gives to a rail: a stretch of a stream, a part of the weight of its present round, or both. The
// weight comes with the last stretch of several, since a rail that has nothing left to post fences with the weight it
// has.
struct Assignment {
  const SendStream* stream = nullptr;
  uint64_t connection = 0;  // that it is for; if that has ended, the assignment comes back
  uint64_t offset_bytes = 0, length_bytes = 0;
  uint32_t tenant = 0;  // Tenant::index()
  uint32_t place = 0;   // of the peer in the order in which this node serves its peers
  uint32_t round = 0;
  uint8_t weight = 0;
  bool carried = false;  // the connection has carried some of the exchange in a round before this one
};

// A rail's *share* of an exchange is all that it has of it: stretches that are not posted, orders under way, weight.
// The rail fences with its weight when it has posted everything, one fence at a time. The share is gone when nothing of
// it is left; its reports tell the engine. tests/model/exchange has the rules, and what breaks without each. Pure but
// for the transport; owned by the rail's thread.
class RailSender {
 public:
  // `board` holds the progress of all rails, this one's included; it and `transport` outlive this.
  RailSender(RailIndex rail, const SchedulerOptions& options, RailBoard* board, RailTransport* transport);

  // Commands of the engine.
  void Give(const Assignment& assignment);
  // Returns up to `bytes` bytes that are not posted, the last ones first, with a part of the weight.
  void Release(const SendStream* stream, uint64_t bytes);
  // Forgets stretches that are not posted. The share is settled when all chunks in flight have ended.
  void Drop(const SendStream* stream);
  void StopSends(JobTag job, absl::Time now);
  void SetPeer(const RailPeer& peer);
  void RemovePeer(PeerIndex peer, absl::Time now);
  RailScheduler& scheduler() { return scheduler_; }

  // Takes an event of the transport and passes it on to the engine. The end of an order becomes reports instead.
  void OnEvent(const RailEvent& event, absl::Time now);
  // Posts what windows allow, until the transport takes no more. True when it posted something.
  bool Post(absl::Time now);
  absl::Time NextDeadline() const { return staged_.empty() ? scheduler_.NextDeadline() : absl::InfiniteFuture(); }
  // Events for the engine, in order.
  EventQueue& reports() { return reports_; }

 private:
  struct Run {
    uint64_t offset_bytes = 0, length_bytes = 0;
  };
  struct Share {
    const SendStream* stream = nullptr;
    uint64_t connection = 0;
    uint32_t tenant = 0, place = 0;
    std::vector<Run> runs;  // from `first_run` on: not posted
    size_t first_run = 0;
    uint64_t unposted_bytes = 0;
    uint32_t round = 0;
    uint8_t weight = 0;        // of that round
    uint32_t unsettled = 0;    // assignments since the last report of `settled`
    uint32_t outstanding = 0;  // orders
    bool fence_under_way = false;
    bool must_fence = false;  // something was posted that no fence of this round follows
    bool unproven = false;    // something is acknowledged that no acknowledged fence of this round covers
    bool has_posted = false;
    bool broken = false;  // an order's end has shown that the connection has ended
    bool ended = false;   // the transport has reported that the connection has ended
    bool lost = false;    // posted bytes may have arrived or not
    bool dropped = false;
    bool faulted = false;  // the fault was reported
    bool queued = false;   // in its destination's queue, between these
    Share *previous = nullptr, *next = nullptr;
    bool fences = false;  // in fences_
    Run carried;          // acknowledged, not reported
    absl::Time carried_since;
  };
  struct InFlight {
    Share* share = nullptr;
    RailRecords::Chunk chunk;
    uint8_t weight = 0;
    uint32_t round = 0;
  };
  // Shares with something to post, the oldest first.
  struct Queue {
    Share *first = nullptr, *last = nullptr;
  };

  Share* Find(const SendStream* stream);
  void KnowPeer(PeerIndex peer);
  Queue& QueueOf(uint32_t tenant, PeerIndex peer, bool urgent);
  Queue& QueueOf(const Share& share) { return QueueOf(share.tenant, share.stream->peer, share.stream->urgent); }
  // Tell the scheduler of bytes that wait, or wait no longer.
  void Queued(const Share& share, uint64_t bytes);
  void Unqueued(const Share& share, uint64_t bytes) {
    scheduler_.Remove(share.tenant, share.stream->peer, bytes, share.stream->urgent);
  }
  uint64_t ConnectionTo(PeerIndex peer) const {
    return peer.value() < connections_.size() ? connections_[peer.value()] : 0;
  }
  // Queues the share, or its fence, if it may post now.
  void Schedule(Share& share);
  void Unqueue(Share& share);
  bool MayFence(const Share& share) const {
    return share.unposted_bytes == 0 && share.weight > 0 && !share.fence_under_way && !share.broken && !share.dropped;
  }
  void StageChunk(const RailScheduler::Choice& choice, absl::Time now);
  void Stage(Share& share, uint64_t offset_bytes, uint64_t length_bytes, absl::Time now);
  bool PostStaged();
  // Ends staged orders for which gone(order) is true. They were not posted.
  template <typename Gone>
  void Unstage(SendResult result, absl::Time now, Gone gone);
  void OnSendDone(const RailEvent& event, absl::Time now);
  void OnAcknowledged(Share& share, const InFlight& done, absl::Time now);
  void ReportCarried(Share& share);
  void ReportFault(Share& share, const RailEvent& event);
  void DropUnposted(Share& share);
  // Ends the shares of a connection that has ended. Nullopt: of all connections to the peer, which is gone; stretches
  // that are not posted are dropped, too.
  void EndShares(PeerIndex peer, std::optional<uint64_t> connection);
  void EndShare(Share& share);
  // The rail has nothing left of it.
  static bool IsDone(const Share& share);
  void SettleIfDone(Share& share);
  void Erase(Share& share);
  RailEvent ReportOf(RailEvent::Kind kind, const Share& share) const;
  void Return(const SendStream& stream, const Run& run, uint8_t weight, uint32_t round, uint32_t settled);
  void TellIfDry();

  const RailIndex rail_;
  RailBoard& board_;
  RailProgress& progress_;
  RailTransport& transport_;
  RailScheduler scheduler_;
  EventQueue reports_;
  std::vector<uint64_t> connections_, links_;  // by peer: its connection, 0 if it is not up; RailPeer::link
  absl::flat_hash_map<const SendStream*, Share*> shares_;
  std::deque<Share> storage_;
  std::vector<Share*> free_;
  std::vector<std::vector<std::array<Queue, 2>>> queues_;  // by tenant, by peer, by urgency
  std::vector<Share*> fences_;                             // may fence without bytes
  std::vector<InFlight> in_flight_;                        // by cookie
  std::vector<uint64_t> free_cookies_;
  // Orders that the transport has not taken yet.
  std::vector<SendOrder> staged_;
  bool worked_ = false;  // since it was dry
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_SENDER_H_
