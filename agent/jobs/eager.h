// Eager exchanges: short streams that ride in READY, so that no grant, zone or rail is needed for them.
#ifndef RAILSD_AGENT_JOBS_EAGER_H_
#define RAILSD_AGENT_JOBS_EAGER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "agent/agent.h"
#include "agent/control/messages.h"
#include "agent/groups/groups.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"
#include "agent/memory/guarded_copy.h"

namespace railsd {

// The sender decides by its own options.eager_bytes. The receiver goes by READY, and only guesses by its own
// options before READY is here. Owned by the engine's thread, which makes the copies: they are short.
class EagerExchanges {
 public:
  struct Calls {
    std::function<void(NodeJob&, absl::Status)> fail;  // a page of the job cannot be touched
    std::function<void(NodeJob&, Exchange&)> received;
    std::function<void(NodeJob&)> sent;
  };
  // `context`, `outbox` and `jobs` outlive this.
  EagerExchanges(const ExchangeContext* context, Outbox* outbox, JobMap* jobs, Calls calls)
      : context_(*context), outbox_(*outbox), jobs_(*jobs), calls_(std::move(calls)) {}

  // The peer sends eagerly; a guess until its READY is here. Such an exchange is given no zone.
  bool Comes(const Exchange& exchange) const {
    if (exchange.in.rails_only()) return false;
    if (exchange.in.complete()) return exchange.in.eager();
    if (exchange.ready.has_value()) return !exchange.ready->eager.empty();
    return !exchange.compared && exchange.in.total_bytes() <= context_.options->eager_bytes;
  }
  // True when no rail of this node carries the exchange, as far as is known yet.
  bool NeedsNoRails(const Exchange& exchange) const {
    return (exchange.out.total_bytes() == 0 || exchange.out.eager()) &&
           (exchange.in.total_bytes() == 0 || Comes(exchange));
  }

  // Copies the stream into `ready` if it is short enough and memory of the host at both ends, as far as is known.
  // False: the job has failed.
  bool Fill(NodeJob& job, Exchange& exchange, Ready* ready);
  // Sends READY as ControlLink::SendIfItFits() does. If it does not fit with the stream, sends it without, and rails
  // carry the stream.
  absl::Status Send(NodeJob& job, Exchange& exchange, ControlMessage&& ready);
  // The peer's daemon has taken that READY.
  void OnReadyTaken(PeerIndex by, JobKey key);
  // Takes the peer's READY, whose lengths have been compared. Copies its eager bytes into the receive ranges, unless
  // rails must carry them. If the peer takes no eager bytes, those that were sent count as not sent.
  void OnReady(NodeJob& job, Exchange& exchange, const Ready& ready);

  void FillCounters(AgentCounters* counters) const;

 private:
  // The way of the stream: out of its ranges, or into them.
  enum class Direction : uint8_t { kOut, kIn };
  // Returns how many bytes were copied; fewer than there are when the next page of the stream cannot be touched.
  uint64_t Copy(const MemoryRanges& stream, const char* bytes, Direction direction);

  void Receive(NodeJob& job, Exchange& exchange, const std::string& bytes);
  void TakeBack(NodeJob& job, Exchange& exchange);
  // `what`: the page that cannot be touched.
  void Fail(NodeJob& job, const std::string& what);

  const ExchangeContext& context_;
  Outbox& outbox_;
  JobMap& jobs_;
  const Calls calls_;
  uint64_t sent_ = 0, received_ = 0, sent_bytes_ = 0, received_bytes_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_EAGER_H_
