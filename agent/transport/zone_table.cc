#include "agent/transport/zone_table.h"

#include <utility>

namespace railsd {

ZoneTable::ZoneTable() : slots_(new Slot[kSlots]) {}

void ZoneTable::Open(std::shared_ptr<ReceiveZone> zone) {
  ++taken_;
  uint16_t number = 0;
  if (unused_ < kSlots) {
    number = static_cast<uint16_t>(unused_++);
  } else {
    number = rested_.front();
    rested_.pop_front();
  }
  Slot& slot = slots_[number];
  uint32_t generation = GenerationOf(slot.state.load(std::memory_order_relaxed)) + 1;
  if (generation == 0) generation = 1;
  zone->ref = {number, generation};
  slot.zone = std::move(zone);
  slot.state.store(uint64_t{generation} << 32 | kOpen, std::memory_order_seq_cst);
}

bool ZoneTable::Close(ZoneRef ref) { return (slots_[ref.slot].state.fetch_and(~kOpen) & kInside) == 0; }

void ZoneTable::Release(ZoneRef ref) {
  slots_[ref.slot].zone.reset();
  rested_.push_back(ref.slot);
  --taken_;
}

const ReceiveZone* ZoneTable::Enter(ZoneRef ref) {
  Slot& slot = slots_[ref.slot];
  uint64_t state = slot.state.load();
  do {
    if (GenerationOf(state) != ref.generation || (state & kOpen) == 0) return nullptr;
  } while (!slot.state.compare_exchange_weak(state, state + 1));
  return slot.zone.get();
}

bool ZoneTable::Leave(ZoneRef ref) {
  const uint64_t before = slots_[ref.slot].state.fetch_sub(1);
  return (before & kOpen) == 0 && (before & kInside) == 1;
}

ZoneTable::State ZoneTable::Look(uint16_t slot, uint8_t short_generation, ZoneRef* ref) const {
  const uint64_t state = slots_[slot].state.load();
  *ref = {slot, GenerationOf(state)};
  if (state == 0 || ref->short_generation() != short_generation) return State::kUnknown;
  return (state & kOpen) != 0 ? State::kOpen : State::kClosed;
}

}  // namespace railsd
