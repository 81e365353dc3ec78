// Strong types for every identifier of the data plane: two ids of different kinds never compare or convert.
#ifndef RAILSD_AGENT_BASE_IDS_H_
#define RAILSD_AGENT_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace railsd {

// An integer with a meaning. `Tag` is a class that is never defined.
template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;  // NOLINT(modernize-use-nullptr): mistaken
  template <typename H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  Rep value_{};
};

// Index of a rail on this node; rail i of every node is connected to switch i.
using RailIndex = StrongId<class RailIndexTag, uint32_t>;
// Index of a remote node in this agent's table of peers; means nothing on another node.
using PeerIndex = StrongId<class PeerIndexTag, uint32_t>;
// Rank in a group, 0 .. world_size - 1.
using Rank = StrongId<class RankTag, uint32_t>;
// Number that a client gave to a job: one sequence per group and epoch.
using JobSeq = StrongId<class JobSeqTag, uint64_t>;
// One trainer process connected to this daemon.
using SessionId = StrongId<class SessionIdTag, uint64_t>;
// Number that a client gave to a segment; unique in its session.
using SegmentId = StrongId<class SegmentIdTag, uint32_t>;
// A prepared exchange of a session; 0: none.
using PreparedId = StrongId<class PreparedIdTag, uint64_t>;
// Random number drawn at each start of a daemon.
using BootId = StrongId<class BootIdTag, uint64_t>;
// Local handle of a job on this node; never reused, never sent.
using JobTag = StrongId<class JobTagTag, uint64_t>;

// Epoch of a group: the boot id of the agent of rank 0, which commits it, and that agent's counter. Unique over all
// groups.
struct Epoch {
  BootId boot;
  uint64_t counter = 0;
  friend auto operator<=>(const Epoch&, const Epoch&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Epoch& e) {
    return H::combine(std::move(state), e.boot, e.counter);
  }
};

// One job on all nodes: its group's epoch and the sequence number that the ranks gave it.
struct JobKey {
  Epoch epoch;
  JobSeq seq;
  friend auto operator<=>(const JobKey&, const JobKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const JobKey& k) {
    return H::combine(std::move(state), k.epoch, k.seq);
  }
};

// Names the zone of one exchange at its receiver, which assigns both numbers. Fences over RDMA carry the slot and the
// lower bits of the generation.
struct ZoneRef {
  static constexpr uint32_t kShortGenerations = 16;  // 4 bits
  uint16_t slot = 0;                                 // 0: none
  uint32_t generation = 0;                           // of the slot
  uint8_t short_generation() const { return static_cast<uint8_t>(generation % kShortGenerations); }
  friend auto operator<=>(const ZoneRef&, const ZoneRef&) = default;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_IDS_H_
