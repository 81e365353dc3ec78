// The counters of a rail. A new counter needs one line in the table below and the code that counts. The view of a rail,
// the API, JSON, the metrics and their page read the table.
#ifndef RAILSD_AGENT_TRANSPORT_RAIL_COUNTERS_H_
#define RAILSD_AGENT_TRANSPORT_RAIL_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace railsd {

// X(name, rails, family, label, value, help), counters of one family together:
//   name    in code, in RailStatus.counters and in JSON
//   rails   kAll, or kVerbs: other rails have 0 and no metric
//   family  the metric is railsd_rail_FAMILY_total, with the label `label` of `value` unless they are ""
//   help    of the family, in its first line; "" in the others
#define RAILSD_RAIL_COUNTERS(X)                                                                                     \
  X(tx_payload_bytes, kAll, "payload_bytes", "direction", "tx",                                                     \
    "Payload bytes: acknowledged by the receiver (tx), arrived whole (rx).")                                        \
  X(rx_payload_bytes, kAll, "payload_bytes", "direction", "rx", "")                                                 \
  X(tx_chunks, kAll, "chunks", "direction", "tx", "Chunks acknowledged (tx) and frames arrived whole (rx).")        \
  X(rx_chunks, kAll, "chunks", "direction", "rx", "")                                                               \
  X(tx_fences, kAll, "fences", "direction", "tx",                                                                   \
    "Fences. A fence says that all bytes that the rail had of an exchange until then have arrived.")                \
  X(rx_fences, kAll, "fences", "direction", "rx", "")                                                               \
  X(tx_system_calls, kAll, "system_calls", "direction", "tx",                                                       \
    "System calls that moved payload; RDMA: posts (tx), sleeps until a completion (rx).")                           \
  X(rx_system_calls, kAll, "system_calls", "direction", "rx", "")                                                   \
  X(protocol_errors, kAll, "errors", "kind", "protocol",                                                            \
    "Failed data connections: closed because of invalid data (protocol), because their HELLO had a wrong version, " \
    "node, boot id or rail (refused), disconnect, connect; endpoint: queue pairs that went into error.")            \
  X(refused_connections, kAll, "errors", "kind", "refused", "")                                                     \
  X(disconnects, kAll, "errors", "kind", "disconnect", "")                                                          \
  X(connect_failures, kAll, "errors", "kind", "connect", "")                                                        \
  X(endpoint_errors, kVerbs, "errors", "kind", "endpoint", "")                                                      \
  X(rx_discarded_bytes, kAll, "discarded_bytes", "", "",                                                            \
    "Payload bytes that arrived for zones closed or unknown, and were discarded.")                                  \
  X(work_requests, kVerbs, "work_requests", "", "", "RDMA work requests posted.")                                   \
  X(completions, kVerbs, "completions", "", "", "RDMA completions polled.")                                         \
  X(weak_zones, kVerbs, "weak_zones", "", "",                                                                       \
    "Landing zones opened with a key that opens their whole segment to the sending node.")

// Written by the rail's thread only, read by any thread (relaxed).
struct RailCounters {
  using Counter = std::atomic<uint64_t>;

#define RAILSD_COUNTER(name, ...) Counter name{0};
  RAILSD_RAIL_COUNTERS(RAILSD_COUNTER)
#undef RAILSD_COUNTER
  // For tests and benchmarks only.
  Counter tx_frames{0}, polls{0}, connects{0};
  // Gauges: bytes taken by Post() and not done yet; queue pairs.
  Counter posted_bytes{0}, queue_pairs{0};
};

// The counters at one moment.
struct RailCounts {
#define RAILSD_COUNTER(name, ...) uint64_t name = 0;
  RAILSD_RAIL_COUNTERS(RAILSD_COUNTER)
#undef RAILSD_COUNTER
};

struct RailCounterInfo {
  enum Rails : uint8_t { kAll, kVerbs };

  const char* name;
  Rails rails;
  const char *family, *label, *value, *help;
  uint64_t RailCounts::*count;
  RailCounters::Counter RailCounters::*counter;
};

inline constexpr auto kRailCounters = std::to_array<RailCounterInfo>({
#define RAILSD_COUNTER(name, rails, family, label, value, help) \
  {#name, RailCounterInfo::rails, family, label, value, help, &RailCounts::name, &RailCounters::name},
    RAILSD_RAIL_COUNTERS(RAILSD_COUNTER)
#undef RAILSD_COUNTER
});

// May be called by any thread while the rail counts.
inline RailCounts Read(const RailCounters& counters) {
  RailCounts counts;
  for (const RailCounterInfo& info : kRailCounters) {
    counts.*info.count = (counters.*info.counter).load(std::memory_order_relaxed);
  }
  return counts;
}

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_RAIL_COUNTERS_H_
