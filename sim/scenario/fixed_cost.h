// Fixed cost of an exchange: work of the daemon's engine for the job, and READY.
//
// The model adds these to the time of the network, one after the other: the engine is one thread, and an exchange
// starts when READY of its destination has come. The daemon overlaps some of it with bytes that already move, so the
// model says too much rather than too little. The rails' threads are not counted: there is one for each rail, and each
// posts while the bytes before are on the wire.
#ifndef RAILSD_SIM_SCENARIO_FIXED_COST_H_
#define RAILSD_SIM_SCENARIO_FIXED_COST_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "client/workload/workload.h"

namespace railsd::sim {

// Seconds. The defaults are figures of docs/benchmarks.md, plain text between daemons, on a machine with two
// processors; instructions take 0.4 ns each.
struct FixedCost {
  // Wakes of the client and of the engine, two messages of the bare chain of `links` (11.3 us each), and the 165,600
  // instructions of `engine.fixed`.
  double job = 88.9e-6;
  // READY out and READY in: 20 % of a core at 12,700 messages a second each way (`links`), and the 5,991 instructions
  // of `engine.by_peer` without the 1,705 of one share.
  double peer = 17.5e-6;
  double flow = 0.09e-6;  // sent and received: the 216 instructions of `engine.by_flow`
  // Sent and received: a command to the rail, its report, and the peer's report. A seventh of the 11,930 instructions
  // of `engine.by_rails`, by which exchanges over eight rails cost more than those over one.
  double share = 0.7e-6;
  double ready = 16.3e-6;  // flight: p50 of a message on one processor (`links`)
  friend bool operator==(const FixedCost&, const FixedCost&) = default;
};

// The steps of one exchange at the node where they take longest in all.
struct FixedSeconds {
  double job = 0;
  double peers = 0;
  double flows = 0;
  double shares = 0;
  double ready = 0;
  double Sum() const { return job + peers + flows + shares + ready; }
  void Add(const FixedSeconds& other);
};

// All 0 if no bytes move between nodes. A peer, flow or share in one direction only counts half. `shares`: by node,
// Outcome::shares; empty: one for each exchange, which is the least.
FixedSeconds FixedSecondsOf(const FixedCost& cost, const rails::workload::TrafficMatrix& ranks, size_t gpus_per_node,
                            absl::Span<const uint32_t> shares);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SCENARIO_FIXED_COST_H_
