// The zones of this node: where peers' exchanges land. The engine opens and closes them; rails look them up.
#ifndef RAILSD_AGENT_TRANSPORT_ZONE_TABLE_H_
#define RAILSD_AGENT_TRANSPORT_ZONE_TABLE_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/fixed_array.h"
#include "agent/base/ids.h"
#include "agent/base/rail_mask.h"
#include "agent/memory/memory_ranges.h"
#include "agent/transport/landing.h"

namespace railsd {

// Where one exchange lands: the scatter table of its stream.
struct ReceiveZone {
  // `binds_zones`: as TransportTraits has it.
  ReceiveZone(size_t rails, bool binds_zones) : keys(binds_zones ? rails : 0), landed(binds_zones ? 0 : rails) {}
  // Bytes [begin, begin + length) of the stream are in memory. The rail's thread.
  void AddLanded(size_t rail, uint64_t begin, uint64_t length) const {
    if (landed[rail].bytes() == 0) carriers.fetch_or(RailBit(rail), std::memory_order_relaxed);
    landed[rail].Add(begin, length);
  }
  // Calls visit(rail, landing) for each rail that has carried bytes, as far as this thread sees it.
  template <typename Visit>
  void ForEachLanding(Visit visit) const {
    for (RailMask rails = carriers.load(std::memory_order_relaxed); rails != 0; rails &= rails - 1) {
      const auto rail = static_cast<size_t>(std::countr_zero(rails));
      visit(rail, landed[rail]);
    }
  }

  PeerIndex peer;  // only this peer may write here
  ZoneRef ref;
  MemoryRanges memory;  // addressed by the offset in the stream
  // By rail, for transports that bind zones: one key for every piece of `memory`. The rail's thread fills its own keys
  // before it pushes kZoneOpened.
  mutable absl::FixedArray<std::vector<uint32_t>, kUsualRails> keys;
  // By rail, for transports that do not bind zones; and the rails whose landing has bytes.
  mutable absl::FixedArray<Landing, kUsualRails> landed;
  mutable std::atomic<RailMask> carriers{0};
  // Set when a page of the zone could not be written (kReceiveFault). Fences of the zone are then not published.
  mutable std::atomic<bool> unwritable{false};
};

// A slot has a gate. Rails enter it before each system call that writes into the zone and leave it after. A closed gate
// admits no rail, so no rail writes into the zone any more once Close() finds the gate empty. Peers that have keys may
// write until the zone is unbound. Close() wakes no rail. All operations on the gate are atomic.
class ZoneTable {
 public:
  static constexpr size_t kSlots = 1 << 16;  // slot 0 is never used

  ZoneTable();
  ZoneTable(const ZoneTable&) = delete;
  ZoneTable& operator=(const ZoneTable&) = delete;

  // The engine's thread:

  size_t taken() const { return taken_; }
  size_t free() const { return kSlots - 1 - taken_; }
  // Sets `zone->ref` to the slot that has rested longest, in its next generation, and opens it. free() is more than 0.
  void Open(std::shared_ptr<ReceiveZone> zone);
  // Lets no rail enter from now on. True: no rail is inside. False: the last rail to leave pushes a kZoneQuiet.
  bool Close(ZoneRef ref);
  // The zone is closed, and no rail touches it any more. Forgets it; the slot may be used again.
  void Release(ZoneRef ref);

  // Threads of rails:

  // Returns null if the zone is not open. Otherwise the zone is not released before Leave(), although it may be closed.
  const ReceiveZone* Enter(ZoneRef ref);
  // Returns true if the zone was closed meanwhile and no other rail is inside. The caller then pushes a kZoneQuiet.
  bool Leave(ZoneRef ref);

  enum class State { kOpen, kClosed, kUnknown };
  // Returns the state of the slot's present generation, if its lower bits are `short_generation`; `*ref` names it.
  // kUnknown: the slot has no such generation.
  State Look(uint16_t slot, uint8_t short_generation, ZoneRef* ref) const;

 private:
  struct Slot {
    std::atomic<uint64_t> state{0};  // generation, whether it is open, how many are inside
    std::shared_ptr<const ReceiveZone> zone;
  };
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kInside = kOpen - 1;
  static uint32_t GenerationOf(uint64_t state) { return static_cast<uint32_t>(state >> 32); }

  const std::unique_ptr<Slot[]> slots_;
  std::deque<uint16_t> rested_;
  uint32_t unused_ = 1;  // slots from this on were never taken
  size_t taken_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_ZONE_TABLE_H_
