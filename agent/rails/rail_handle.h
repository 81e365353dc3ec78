// A rail as the engine drives it.
#ifndef RAILSD_AGENT_RAILS_RAIL_HANDLE_H_
#define RAILSD_AGENT_RAILS_RAIL_HANDLE_H_

#include <deque>

#include "agent/rails/rail.h"

namespace railsd {

// Commands other than chunks are never refused: they wait in an overflow while the
// rail's queue is full, and chunks wait behind those about sending. A rail has a queue for each direction.
struct RailHandle {
  RailPort* port = nullptr;
  double speed_bytes_per_s = 0;
  std::deque<RailCommand> sending_overflow, receiving_overflow;
  bool flush = false;

  // `wake` false: the rail may see it when it is next awake for something else.
  void Command(RailCommand command, bool wake = true);
  bool TryPost(const SendOrder& order);
  bool overflowing() const { return !sending_overflow.empty() || !receiving_overflow.empty(); }
  // Retries what overflowed, then wakes the rail if it was given anything.
  void Pump();
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_HANDLE_H_
