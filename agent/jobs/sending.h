// The sending half of an exchange: what this node's ranks send to the ranks of one other node in one job.
#ifndef RAILSD_AGENT_JOBS_SENDING_H_
#define RAILSD_AGENT_JOBS_SENDING_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/fixed_array.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/base/rail_mask.h"
#include "agent/control/messages.h"
#include "agent/control/stream_flows.h"
#include "agent/jobs/exchange_context.h"
#include "agent/plan/plan.h"
#include "agent/transport/transport.h"

namespace railsd {

struct NodeJob;

// The stream goes out in rounds. Rails are given stretches of it and parts of the round's weight, and fence with their
// weight when they have posted all their stretches. When the weights of acknowledged fences add up to the whole, all
// bytes have arrived. Work moves between rails by messages: a rail gives back stretches that it has not posted, with a
// part of its weight. If a rail fails, its posted bytes are in doubt: its weight stays behind, the receiver is asked
// (REHOME), and begins another round unless it has all bytes. tests/model/exchange has the reason of each rule. Owned
// by its job, on the engine's thread.
class Sending {
 public:
  // `job` owns this and lives longer; `context` does, too.
  Sending(const ExchangeContext* context, NodeJob* job, PeerIndex peer);

  // Sets the flows that it sends, and their gather table. Call before the job starts.
  void SetStream(StreamFlows flows, MemoryRanges memory);
  const StreamFlows& flows() const { return flows_; }
  StreamFlows TakeFlows() { return std::move(flows_); }
  uint64_t total_bytes() const { return flows_.total_bytes(); }
  const SendStream& stream() const { return stream_; }
  NodeJob* job() const { return job_; }
  PeerIndex peer() const { return stream_.peer; }

  // Ready::inflow_ppm of the receiver.
  void SetInflow(uint32_t millionths) { stream_.inflow_ppm = millionths; }
  // The receiver's permission. INTERNAL when it does not fit the stream.
  absl::Status TakeGrant(const Grant& grant);
  bool granted() const { return granted_; }
  // The rails that it may use now, connected or not.
  RailMask Usable() const;
  // Rails that may be given work now.
  RailMask Targets() const { return context_.peer(peer()).Targets(Usable()); }
  // Gives the plan to the rails. `by_flow`: the offset of a run counts from the beginning of its flow. Call after
  // TakeGrant().
  void Start(absl::Span<const PlanRun> runs, bool by_flow);
  bool started() const { return started_; }

  // SendEagerly(): the stream rides in READY, and no rail carries it. OnReadyTaken(): the peer's daemon has that READY.
  // TakeBackEager(): the peer ignores those bytes, and rails carry the stream after all.
  void SendEagerly() { eager_ = true; }
  void TakeBackEager() { eager_ = over_ = false; }
  bool eager() const { return eager_; }
  void OnReadyTaken() { over_ = true; }

  // A rail's report on the exchange: any from kCarried to kSendFault.
  void OnReport(RailIndex rail, const RailEvent& report);
  // A connection of the rail has ended.
  void OnRailDown(RailIndex rail, uint64_t connection);
  // Call when rails have become usable or unusable. Work leaves rails that may not carry it, and goes on over others.
  void OnPathsChanged();
  // Late binding. MayMove(): rail `from` can be asked now to give something back. Move(): asks it to give back so many
  // bytes that it has not posted, for rail `to`.
  bool MayMove(size_t from) const;
  // The rail for which bytes were asked back that have not come yet.
  std::optional<size_t> moves_to() const { return releasing_ ? move_to_ : std::nullopt; }
  bool Move(size_t from, size_t to, uint64_t bytes);

  // True when the failure of a rail leaves bytes or a fence in doubt, and the receiver was not asked about it.
  bool InDoubt() const { return doubt_ != 0 && !over_; }
  // True when some rail is connected, but none of the connected ones has keys.
  bool NeedsKeys() const;
  // When it may ask for keys again, because an answer may have brought none.
  absl::Time keys_wanted_at() const { return keys_wanted_at_; }
  // Every failed rail has given its stretches back, so that the receiver can be asked.
  bool MayAsk() const;
  // The receiver is being asked. Adds the failed connections to `failed`.
  Rehome::Exchange Ask(std::vector<RailConnection>* failed);
  bool asked() const { return asked_; }
  // The receiver's answer. UNAVAILABLE when the receiver has aborted the job, INTERNAL when the answer cannot be true.
  absl::Status OnAnswer(const Rehomed::Exchange& answer);
  struct Lost {
    RailIndex rail;
    uint64_t offset_bytes = 0, length_bytes = 0;
  };
  // Once the exchange is over: stretches that were in doubt when their rail failed, and that have arrived. Call
  // TakeArrived() when there are any.
  std::vector<Lost> TakeArrived() { return std::exchange(lost_, {}); }
  bool AnyArrived() const { return over_ && !lost_.empty(); }
  // Since when rounds have begun without a byte that the receiver has accepted.
  absl::Time fruitless_since() const { return fruitless_since_; }
  uint32_t fruitless_rounds() const { return fruitless_rounds_; }

  // Rails forget stretches that they have not posted, and are given no more.
  void Stop();
  // The job goes on without the peer.
  void GiveUp();
  // The receiver has all bytes.
  bool over() const { return over_ || total_bytes() == 0; }
  // Rails have stretches of it, or may read its memory.
  bool held() const { return unsettled_ > 0; }
  // Connections that failed since the grant and have carried some of it: bytes on their wire may yet land.
  const std::vector<RailConnection>& failed() const { return failed_; }
  // Bytes that arrived over the rail, each once.
  uint64_t carried_bytes(size_t rail) const { return rails_[rail].carried_bytes; }
  void CountCarried(RailIndex rail, uint64_t bytes) { rails_[rail.value()].carried_bytes += bytes; }

 private:
  struct Stretch {
    uint64_t offset_bytes = 0, length_bytes = 0;
    size_t rail = 0;  // the rail that is to get it
  };
  struct RailPart {
    uint64_t key_connection = 0;  // that its keys are good for; 0: none
    uint64_t connection = 0;      // for which it was given work last
    uint32_t round = 0;           // in which it was given work last
    uint32_t unsettled = 0;       // assignments that it has not reported as settled
    uint64_t carried_bytes = 0;
  };

  bool HasKeys(size_t rail) const;
  absl::Status TakeKeys(const RailKeys& keys);
  // The rail's connection has ended, and the stretches given for it have not come back yet.
  bool IsEnding(size_t rail) const;
  bool AnyEnding() const;
  // `more`: bytes by rail that are about to be given, null for none.
  size_t LeastLoaded(RailMask rails, const uint64_t* more = nullptr) const;
  // Gives stretches and weight that no rail has to rails, if that can be done now.
  void GoOn();
  void Spread();
  void GivePool(RailMask rails, RailMask also, uint32_t weight);
  void Give(size_t rail, uint64_t offset_bytes, uint64_t length_bytes, uint32_t weight);
  void AskBack(size_t rail, uint64_t bytes);
  void LeaveUnusable();

  const ExchangeContext& context_;
  NodeJob* const job_;
  StreamFlows flows_;
  SendStream stream_;
  bool granted_ = false, started_ = false, over_ = false, stopped_ = false, eager_ = false;
  absl::FixedArray<RailPart, kUsualRails> rails_;
  uint64_t unsettled_ = 0;  // assignments, of all rails
  // Stretches that no rail has, and weight of this round.
  absl::InlinedVector<Stretch, kUsualRails> pool_;
  uint32_t pool_weight_ = 0;
  // In this round:
  uint32_t round_ = 0;
  uint32_t acknowledged_weight_ = 0;
  bool spread_due_ = false;  // its weight has not been spread
  // A rail was asked to give something back, for the rail move_to_ if there is one.
  bool releasing_ = false;
  size_t release_from_ = 0;
  bool gave_ = false;
  RailMask stingy_ = 0;  // rails that gave nothing back when they were asked last
  std::optional<size_t> move_to_;
  RailMask kept_ = 0;  // may not carry it, and keep what they have not given back when asked
  std::vector<Lost> lost_;
  RailMask doubt_ = 0, asking_ = 0;
  bool asked_ = false;
  std::vector<RailConnection> doubtful_;  // connections of the rails in doubt_
  std::vector<RailConnection> failed_;
  uint32_t fruitless_rounds_ = 0;
  absl::Time fruitless_since_ = absl::InfiniteFuture();
  absl::Time keys_wanted_at_ = absl::InfinitePast();
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_SENDING_H_
