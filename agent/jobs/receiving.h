// The receiving half of an exchange: what this node's ranks receive from the ranks of one other node in one job.
#ifndef RAILSD_AGENT_JOBS_RECEIVING_H_
#define RAILSD_AGENT_JOBS_RECEIVING_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "agent/base/rail_mask.h"
#include "agent/control/messages.h"
#include "agent/control/stream_flows.h"
#include "agent/jobs/exchange_context.h"
#include "agent/transport/transport.h"

namespace railsd {

// The stream lands in a zone, which is open from the grant until everything has arrived or the job is aborted. It is
// closed in two steps: first no rail can enter it any more; then no rail is inside, and no key opens it. Only then may
// the ranks use the memory again. Owned by its job, on the engine's thread.
class Receiving {
 public:
  Receiving(const ExchangeContext* context, PeerIndex peer);

  // Sets the flows that are expected, and their scatter table. Call before the job starts.
  void SetStream(StreamFlows flows, MemoryRanges memory);
  const StreamFlows& flows() const { return flows_; }
  uint64_t total_bytes() const { return flows_.total_bytes(); }

  // True when there is something to receive and no zone is open for it.
  bool WaitsForZone() const { return total_bytes() > 0 && zone_ == nullptr && !complete_ && !given_up_; }
  // Opens `zone`, which is new, and has every rail bind it. No zone is open yet, and a slot is free.
  void Open(std::shared_ptr<ReceiveZone> zone);
  ZoneRef ref() const { return zone_->ref; }
  bool open() const { return zone_ != nullptr && !closing_; }
  bool closing() const { return closing_; }
  // True while rails bind or unbind the zone.
  bool IsBinding() const {
    return std::any_of(bindings_.begin(), bindings_.end(), [](const RailBinding& binding) {
      return binding.state == Binding::kOpening || binding.state == Binding::kClosing;
    });
  }
  // True when the peer can write over some rail. Always true for transports that bind nothing.
  bool IsBound() const;
  // Binds the zone on rails that have come up since. Call when IsBound() is false.
  void BindAgain();
  // The permission to write. Call when IsBinding() is false and IsBound() is true.
  Grant BuildGrant();
  bool granted() const { return granted_; }

  // A rail's answer to Open(). RESOURCE_EXHAUSTED when it cannot bind the zone.
  absl::Status OnZoneOpened(RailIndex rail, const RailEvent& event);
  // INTERNAL when the fence contradicts those before it. done() may be true after it.
  absl::Status OnFence(const RailEvent& event);
  // The reason why the job fails.
  absl::Status OnReceiveFault(RailIndex rail, const RailEvent& event) const;
  void OnZoneClosed(RailIndex rail);
  void OnZoneQuiet() { inside_ = false; }
  // A connection to the peer has ended: revokes the keys for it.
  void OnRailDown(RailIndex rail, uint64_t connection);
  // A connection to the peer is up: revokes keys for an older one, whose end may not have been reported.
  void OnRailUp(RailIndex rail, uint64_t connection);

  // The sender has asked, because connections failed at its end. Raises the round, and makes sure that nothing more
  // lands over these. INTERNAL when `round_over` is not the present round, or no more rounds are allowed.
  absl::Status BeginRound(uint32_t round_over, const std::vector<RailConnection>& failed);
  uint32_t round() const { return round_; }
  // Keys for connections that were not granted before.
  std::vector<RailKeys> TakeNewKeys();
  // The keys were not sent after all.
  void GiveBack(const std::vector<RailKeys>& keys);

  // The memory that the stream is written to.
  const MemoryRanges& memory() const { return zone_ == nullptr ? memory_ : zone_->memory; }
  // Eager bytes cannot be copied there.
  bool rails_only() const { return total_bytes() > 0 && memory().may_be_device_memory(); }
  // Everything came in READY. A zone that is open for it is closed: nothing was written there.
  void OnEager() {
    eager_ = complete_ = true;
    Close(/*writers_stopped=*/true);
  }
  bool eager() const { return eager_; }

  // Closes the zone. `writers_stopped`: the sender has nothing under way, except on `failed` connections.
  void Close(bool writers_stopped, const std::vector<RailConnection>& failed = {});
  // Frees the slot if nothing can land any more. True when this call has freed it. Calls count(rail, once, again) for
  // rails that have carried bytes, as far as they see them: bytes that have landed, each once, and bytes that landed
  // again after a rail had failed.
  using CountLanded = absl::FunctionRef<void(size_t rail, uint64_t once, uint64_t again)>;
  bool FreeIfQuiet(CountLanded count);
  // The peer's bytes do not count any more. The caller closes the zone, if there is one.
  void GiveUp() { given_up_ = true; }
  bool given_up() const { return given_up_; }
  // Every byte is here.
  bool complete() const { return complete_ || total_bytes() == 0; }
  // True when no rail touches the memory of this exchange.
  bool quiet() const { return zone_ == nullptr; }
  bool done() const { return quiet() && (complete() || given_up_); }

  // Adds the bytes that have landed in a zone that is open, as far as the rails see them.
  void AddLanding(BytesByRail* by_rail) const;
  // Calls visit(destination, bytes) for the landed bytes of each flow.
  void ForEachLanded(absl::FunctionRef<void(Rank, uint64_t)> visit) const;

 private:
  enum class Binding : uint8_t { kNone, kOpening, kOpen, kClosing };
  struct RailBinding {
    Binding state = Binding::kNone;
    uint64_t connection = 0;
    bool told = false;  // the sender has these keys
  };
  struct Landed {
    uint64_t begin = 0, end = 0;
    size_t rail = 0;
  };
  void Bind(size_t rail);
  void Unbind(size_t rail, bool writers_stopped);
  std::vector<Landed> LandedOnce() const;
  // Counts bytes of a zone in which something was sent twice.
  void CountRounds(CountLanded count) const;
  RailKeys KeysOf(size_t rail);

  const ExchangeContext& context_;
  const PeerIndex peer_;
  StreamFlows flows_;
  MemoryRanges memory_;  // until it is in the zone
  std::shared_ptr<ReceiveZone> zone_;
  absl::InlinedVector<RailBinding, kUsualRails> bindings_;  // by rail; empty for transports that bind nothing
  std::vector<Landed> landed_;                              // of a zone that is closed
  uint32_t round_ = 0;
  uint32_t weight_ = 0;  // of this round's fences
  bool granted_ = false;
  bool complete_ = false;
  bool eager_ = false;
  bool given_up_ = false;
  bool closing_ = false;
  bool inside_ = false;  // a rail may still be in the zone
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_RECEIVING_H_
