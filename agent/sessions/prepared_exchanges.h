// Exchanges that a session has prepared: checked once, submitted many times.
#ifndef RAILSD_AGENT_SESSIONS_PREPARED_EXCHANGES_H_
#define RAILSD_AGENT_SESSIONS_PREPARED_EXCHANGES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "agent/base/ids.h"
#include "agent/memory/memory_ranges.h"
#include "agent/sessions/job_memory.h"

namespace railsd {

struct HeldSegment;

using Digest = std::array<uint8_t, 32>;

// One flow of a submission. Uses the first `bytes` of its memory.
struct CheckedFlow {
  Rank peer;
  uint64_t bytes = 0;
  MemoryTable::Stream memory = {};  // in the table of its FlowSet
};

// The checked flows of one rank. Immutable: all jobs of a prepared exchange share one.
struct FlowSet {
  std::vector<CheckedFlow> sends, receives;   // by rank
  std::shared_ptr<const MemoryTable> memory;  // of both
  uint64_t send_bytes = 0, receive_bytes = 0;
  uint64_t ranges = 0;        // as given by the client
  bool own_in_place = false;  // the rank receives from itself where it sends from
  // In the client's order of flows, sends first: the place of each flow in `sends` or `receives`. Only prepared
  // exchanges have it.
  std::vector<uint32_t> places;
  Digest lengths = {};  // SHA-256 of the full length of each flow, in that order
};

// The segments that the ranges of a submission name. They cannot be removed from the session while they are held.
using HeldSegments = absl::flat_hash_map<SegmentId, std::shared_ptr<const HeldSegment>>;

struct PreparedExchange {
  Epoch epoch;
  Rank rank;
  Digest digest;  // of its ranges
  std::shared_ptr<const FlowSet> flows;
  std::shared_ptr<const HeldSegments> segments;
  std::shared_ptr<const UsedMemory> uses;
};

// The prepared exchanges of one session. Any thread. They come and go on the engine's thread only.
class PreparedExchanges {
 public:
  // The caller has checked that the id is free.
  void Add(PreparedId id, std::shared_ptr<const PreparedExchange> exchange);
  // Null for an unknown one.
  std::shared_ptr<const PreparedExchange> Find(PreparedId id) const;
  // False for an unknown one. Jobs under way keep the ranges that they use.
  bool Remove(PreparedId id);
  // Removes all exchanges of one rank in one epoch, which has ended for the rank.
  void Remove(Epoch epoch, Rank rank);
  void Clear();
  size_t count() const;
  uint64_t ranges() const;  // of all of them
  std::vector<std::shared_ptr<const UsedMemory>> Uses() const;

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<PreparedId, std::shared_ptr<const PreparedExchange>> exchanges_;  // guarded by mutex_
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_PREPARED_EXCHANGES_H_
