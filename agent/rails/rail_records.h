// Records of one rail's work for one job, for `railsctl explain`.
#ifndef RAILSD_AGENT_RAILS_RAIL_RECORDS_H_
#define RAILSD_AGENT_RAILS_RAIL_RECORDS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "agent/base/ids.h"

namespace railsd {

// Written by the rail's thread while the job runs, read by the engine's at any time: chunks below the count do not
// change any more. The storage exists from the beginning, so that a chunk costs no allocation.
class RailRecords {
 public:
  struct Chunk {
    PeerIndex peer;
    bool returned = false;  // not acknowledged: given back, lost with its connection, or stopped
    uint64_t offset_bytes = 0, length_bytes = 0;
    absl::Time posted, ended;
  };
  struct Totals {
    uint64_t chunks = 0, returned_chunks = 0, under_way = 0;
    absl::Time first_posted = absl::InfiniteFuture(), last_acknowledged = absl::InfinitePast();
    absl::Duration busy;  // with something posted and not ended
  };

  // Clears the records and keeps the storage. Called while no rail writes.
  void Reset(size_t capacity) {
    chunks_.resize(capacity);
    for (Value* value : {&posted_, &ended_, &returned_}) value->store(0, std::memory_order_relaxed);
    first_posted_ns_.store(kNever, std::memory_order_relaxed);
    last_acknowledged_ns_.store(kNever, std::memory_order_relaxed);
    busy_ns_.store(0, std::memory_order_relaxed);
  }

  // The rail's thread.
  void OnPosted(absl::Time now) {
    const uint64_t posted = Read(posted_);
    if (Read(first_posted_ns_) == kNever) first_posted_ns_.store(Nanos(now), std::memory_order_relaxed);
    if (posted == Read(ended_)) AddBusy(-absl::ToUnixNanos(now));
    posted_.store(posted + 1, std::memory_order_relaxed);
  }
  void OnEnded(const Chunk& chunk) {
    const uint64_t ended = Read(ended_);
    if (ended < chunks_.size()) chunks_[ended] = chunk;
    if (chunk.returned) returned_.store(Read(returned_) + 1, std::memory_order_relaxed);
    if (!chunk.returned) last_acknowledged_ns_.store(Nanos(chunk.ended), std::memory_order_relaxed);
    if (Read(posted_) == ended + 1) AddBusy(absl::ToUnixNanos(chunk.ended));
    ended_.store(ended + 1, std::memory_order_release);
  }

  // Any thread. Calls visit(chunk) for each recorded chunk.
  template <typename Visit>
  void ForEachChunk(Visit visit) const {
    const uint64_t count = std::min<uint64_t>(ended_.load(std::memory_order_acquire), chunks_.size());
    for (uint64_t i = 0; i < count; ++i) visit(chunks_[i]);
  }
  // Chunks that have ended and had no room.
  uint64_t left_out() const { return std::max<uint64_t>(Read(ended_), chunks_.size()) - chunks_.size(); }
  // The totals at `now`, which matters only while a chunk is under way.
  Totals TotalsAt(absl::Time now) const {
    Totals out;
    out.chunks = Read(posted_);
    out.returned_chunks = Read(returned_);
    out.under_way = out.chunks - std::min(out.chunks, Read(ended_));
    if (Read(first_posted_ns_) != kNever) out.first_posted = At(Read(first_posted_ns_));
    if (Read(last_acknowledged_ns_) != kNever) out.last_acknowledged = At(Read(last_acknowledged_ns_));
    const int64_t busy_ns = busy_ns_.load(std::memory_order_relaxed);
    out.busy = absl::Nanoseconds(busy_ns < 0 ? std::max<int64_t>(0, busy_ns + absl::ToUnixNanos(now)) : busy_ns);
    return out;
  }

 private:
  using Value = std::atomic<uint64_t>;
  static constexpr uint64_t kNever = UINT64_MAX;
  static uint64_t Nanos(absl::Time time) { return static_cast<uint64_t>(absl::ToUnixNanos(time)); }
  static absl::Time At(uint64_t nanos) { return absl::FromUnixNanos(static_cast<int64_t>(nanos)); }
  static uint64_t Read(const Value& value) { return value.load(std::memory_order_relaxed); }
  void AddBusy(int64_t nanos) {
    busy_ns_.store(busy_ns_.load(std::memory_order_relaxed) + nanos, std::memory_order_relaxed);
  }

  std::vector<Chunk> chunks_;
  Value posted_{0}, ended_{0}, returned_{0};
  Value first_posted_ns_{kNever}, last_acknowledged_ns_{kNever};
  // The sum of the busy times. While the rail is busy, the beginning of the busy time, in nanoseconds since 1970, is
  // subtracted. The value is negative then, so one load tells both.
  std::atomic<int64_t> busy_ns_{0};
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_RECORDS_H_
