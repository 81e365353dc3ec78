// A rail as the engine drives it.
#ifndef RAILSD_AGENT_RAILS_RAIL_HANDLE_H_
#define RAILSD_AGENT_RAILS_RAIL_HANDLE_H_

#include <algorithm>
#include <cstdint>
#include <deque>

#include "agent/rails/rail.h"

namespace railsd {

// Commands are never refused: they wait in an overflow while the rail's queue is full. A rail has one queue for
// commands about receiving and one for all others.
struct RailHandle {
  RailPort* port = nullptr;
  const RailProgress* progress = nullptr;
  double speed_bytes_per_s = 0;
  uint64_t given_bytes = 0;  // in assignments so far
  std::deque<RailCommand> sending_overflow, receiving_overflow;
  bool flush = false;

  // `wake` false: the rail is not woken, and sees the command when it is next awake.
  void Command(RailCommand command, bool wake = true);
  // Bytes that were given to it and are neither carried nor given back.
  uint64_t backlog_bytes() const {
    return given_bytes - std::min(given_bytes, progress->done_bytes.load(std::memory_order_relaxed));
  }
  bool overflowing() const { return !sending_overflow.empty() || !receiving_overflow.empty(); }
  // Retries the commands that overflowed, then wakes the rail if one of its commands needs it.
  void Pump();
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_HANDLE_H_
