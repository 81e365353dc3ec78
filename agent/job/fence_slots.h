// The numbers that fences carry: 65,536 of them, each with a generation, so that a fence of a flow that is over is not
// taken for one of the flow that has its number now.
#ifndef RAILSD_AGENT_JOB_FENCE_SLOTS_H_
#define RAILSD_AGENT_JOB_FENCE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "agent/base/ids.h"

namespace railsd {

// Owned by the engine's thread.
class FenceSlots {
 public:
  static constexpr size_t kSlots = 1 << 16;

  size_t free() const { return kSlots - taken_; }
  size_t taken() const { return taken_; }

  // free() is more than 0. The number that has rested longest, in its next generation.
  FenceSlot Take() {
    ++taken_;
    uint16_t slot = 0;
    if (generations_.size() < kSlots) {
      slot = static_cast<uint16_t>(generations_.size());
      generations_.push_back(0);
    } else {
      slot = rested_.front();
      rested_.pop_front();
      generations_[slot] = static_cast<uint8_t>((generations_[slot] + 1) % FenceSlot::kGenerations);
    }
    return {slot, generations_[slot]};
  }
  // Its flow is over everywhere.
  void Release(FenceSlot fence) {
    --taken_;
    rested_.push_back(fence.slot);
  }

 private:
  std::vector<uint8_t> generations_;  // of those taken before
  std::deque<uint16_t> rested_;
  size_t taken_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_FENCE_SLOTS_H_
