// Late binding: bytes that are not posted move from a lagging rail to a dry one.
#ifndef RAILSD_AGENT_JOBS_LATE_BINDER_H_
#define RAILSD_AGENT_JOBS_LATE_BINDER_H_

#include <cstdint>

#include "absl/time/time.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// The engine asks the rail that would end last to give up a part of an exchange, and gives that part to the dry rail.
// Owned by the engine's thread.
class LateBinder {
 public:
  // All outlive this.
  LateBinder(const ExchangeContext* context, JobMap* jobs) : context_(*context), jobs_(*jobs) {}

  // Moves bytes if that pays. Call after each batch of events.
  void Run(absl::Time now);
  // When to look again although no event comes: a rail may become slow after the others have run dry.
  absl::Time NextDeadline() const { return look_again_; }
  // How often a part of an exchange was asked back.
  uint64_t moves() const { return moves_; }

 private:
  bool IsDry(size_t rail) const;
  // True when something was moved.
  bool Feed(size_t dry);
  Sending* MostLeft(size_t worst, size_t dry);
  // Has `from` give up a part of the exchange for `to`, in proportion to what they deliver.
  bool Take(Sending& sending, size_t from, size_t to);

  const ExchangeContext& context_;
  JobMap& jobs_;
  absl::Time look_again_ = absl::InfiniteFuture();
  uint64_t moves_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_LATE_BINDER_H_
