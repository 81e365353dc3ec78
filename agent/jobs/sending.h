// The sending half of an exchange: what this node's ranks send to the ranks of one other node in one job.
#ifndef RAILSD_AGENT_JOBS_SENDING_H_
#define RAILSD_AGENT_JOBS_SENDING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/base/rail_mask.h"
#include "agent/control/messages.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/stream_flows.h"
#include "agent/plan/plan.h"
#include "agent/transport/transport.h"

namespace railsd {

struct NodeJob;

// The stream goes out in rounds. Each rail that has carried some of it in a round fences when nothing is left to be
// posted; the weights of the fences add up to the whole, and so tell the receiver that everything has arrived. A rail
// that fails leaves its bytes in doubt: the receiver is asked (REHOME), and begins another round unless it has
// everything. tests/model/exchange says why each rule is there. Owned by its job, on the engine's thread.
class Sending {
 public:
  // `job` owns this and lives longer; `context` does, too.
  Sending(const ExchangeContext* context, NodeJob* job, PeerIndex peer);

  // Before the job starts: what it sends, and the gather table of it.
  void SetStream(StreamFlows flows, MemoryRanges memory);
  const StreamFlows& flows() const { return flows_; }
  uint64_t total_bytes() const { return flows_.total_bytes(); }
  const SendStream& stream() const { return stream_; }
  NodeJob* job() const { return job_; }
  PeerIndex peer() const { return stream_.peer; }

  // The receiver's permission. INTERNAL when it does not fit the stream.
  absl::Status TakeGrant(const Grant& grant);
  bool granted() const { return granted_; }
  // The rails that it may use now, connected or not.
  RailMask Usable() const;
  // Hands the plan to the sprayer. `by_flow`: offsets of a run count from its flow. Has a grant.
  void Start(absl::Span<const PlanRun> runs, bool by_flow);
  bool started() const { return started_; }

  // Sprayer: bytes of it were posted to the rail, with the rail's fence if `fence`. True: they were the last, and the
  // other rails of FenceRails() fence now.
  bool OnPosted(size_t rail, uint64_t length_bytes, bool fence);
  uint64_t unposted_bytes() const { return unposted_bytes_; }
  uint32_t round() const { return round_; }
  // The rails that fence in this round; the same once `rail` has posted the last bytes.
  RailMask FenceRails() const { return used_; }
  RailMask FenceRailsWith(size_t rail) const { return used_ | RailBit(rail); }
  // The part of the weight that the rail's fence carries, when `rails` fence.
  static uint8_t WeightOf(size_t rail, RailMask rails);
  // The receiver has room for one fence of a rail at a time: that of an earlier round may be under way.
  bool HasFenceUnderWay(size_t rail) const { return (fence_under_way_ & RailBit(rail)) != 0; }
  void OnFencePosted(size_t rail);

  // An order has ended; it is not outstanding any more. `weight` and `round` of its fence, 0 without one.
  struct Ended {
    RailIndex rail;
    uint64_t offset_bytes = 0, length_bytes = 0;
    uint8_t weight = 0;
    uint32_t round = 0;
  };
  void OnAcknowledged(const Ended& order);
  // The order was not sent: it goes over another rail, if `again`.
  void OnNotSent(const Ended& order, bool again);
  // It may have arrived, or arrive yet.
  void OnLost(const Ended& order);
  // It is not sent again, whatever became of it.
  void OnStopped(const Ended& order) { Settle(order); }

  // A connection of the rail has ended.
  void OnRailDown(RailIndex rail, uint64_t connection);
  // Rails may have become usable: goes on with what waited for one.
  void Resume();
  // Rails whose failure leaves bytes or a fence in doubt, and about which the receiver was not asked.
  bool InDoubt() const { return doubt_ != 0 && !over_; }
  // No connected rail has keys, and some rail is connected.
  bool NeedsKeys() const;
  // When it may ask for keys: an answer may have brought none.
  absl::Time keys_wanted_at() const { return keys_wanted_at_; }
  // Everything that was posted to the rails in doubt has come back, so that the receiver can be asked.
  bool MayAsk() const;
  // The receiver is being asked. Adds the failed connections to `failed`.
  Rehome::Exchange Ask(std::vector<RailConnection>* failed);
  bool asked() const { return asked_; }
  // Its answer. Bytes that had arrived although they were lost are told to `arrived(lost)`. INTERNAL when it cannot be.
  struct Lost {
    RailIndex rail;
    uint64_t offset_bytes = 0, length_bytes = 0;
  };
  absl::Status OnAnswer(const Rehomed::Exchange& answer, std::vector<Lost>* arrived);
  // The receiver has let the sender begin round after round without taking anything since then.
  absl::Time fruitless_since() const { return fruitless_since_; }
  uint32_t fruitless_rounds() const { return fruitless_rounds_; }

  // The job goes on without the peer: what is queued is dropped, and nothing is sent again.
  void GiveUp();
  // The receiver has everything.
  bool over() const { return over_ || total_bytes() == 0; }
  uint64_t outstanding_orders() const;
  // Connections that failed since the grant and have carried some of it: what is on their wire may yet land.
  const std::vector<RailConnection>& failed() const { return failed_; }
  uint64_t posted_bytes(size_t rail) const { return posted_bytes_[rail]; }

 private:
  bool HasKeys(size_t rail) const;
  absl::Status TakeKeys(const RailKeys& keys);
  void Settle(const Ended& order);
  void Requeue(uint64_t offset_bytes, uint64_t length_bytes);
  void BeginRound();

  const ExchangeContext& context_;
  NodeJob* const job_;
  StreamFlows flows_;
  SendStream stream_;
  bool granted_ = false, started_ = false, over_ = false;
  std::vector<uint64_t> key_connections_;  // by rail: the connection that its keys are good for; 0: none
  uint64_t unposted_bytes_ = 0;
  std::vector<uint64_t> posted_bytes_;  // by rail; less what has come back
  std::vector<uint32_t> outstanding_;   // orders, by rail
  RailMask fence_under_way_ = 0;
  // In this round:
  uint32_t round_ = 0;
  RailMask used_ = 0;    // have carried some of it
  RailMask fenced_ = 0;  // their fence was acknowledged
  uint32_t acknowledged_weight_ = 0;
  bool fences_out_ = false;  // the last byte was posted
  std::vector<Lost> lost_;
  RailMask doubt_ = 0, asking_ = 0;
  bool asked_ = false;
  std::vector<RailConnection> doubtful_;  // of doubt_
  bool waiting_ = false;                  // for a rail, to go on with lost_
  std::vector<RailConnection> failed_;
  uint32_t fruitless_rounds_ = 0;
  absl::Time fruitless_since_ = absl::InfiniteFuture();
  absl::Time keys_wanted_at_ = absl::InfinitePast();
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_SENDING_H_
