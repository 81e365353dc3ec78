// Fences of zones in the memory of other devices, which are flushed before they are reported.
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/completion_error.h"
#include "agent/transport/verbs/verbs_rail.h"

namespace railsd::verbs {

// False: the zone needs flushes, and this rail can make no queue pair for them.
bool VerbsRail::PlanFlush(BoundZone& bound) {
  if (bound.plan.flushes.empty()) return true;
  if (!MakeFlushQueuePair()) {
    Break(*bound.endpoint, ENOTCONN, "");  // made anew after a back-off
    return false;
  }
  bound.flush =
      std::make_shared<FlushPlan>(FlushPlan{bound.zone->ref, bound.zone->memory, std::move(bound.plan.flushes)});
  return true;
}

// Null: the fence of the zone is reported at once. A zone that is not bound here got no bytes over this rail.
std::shared_ptr<const FlushPlan> VerbsRail::FlushOf(ZoneRef zone) const {
  if (!flush_.used()) return nullptr;
  const auto found = zones_.find(zone.slot);
  return found == zones_.end() || found->second->zone->ref != zone ? nullptr : found->second->flush;
}

// Makes the queue pair for flushes unless there is one. False if it cannot be made.
bool VerbsRail::MakeFlushQueuePair() {
  if (flush_.has_queue_pair()) return true;  // or RestartFlushes() replaces it: fences wait
  const absl::StatusOr<RdmaDevice::Address> own = context_.device->Refresh();
  const absl::Status made = own.ok() ? flush_.MakeQueuePair(*own) : own.status();
  if (!made.ok()) Notice(&device_notice_, absl::StrCat("flushes of device memory: ", made.message()));
  return made.ok();
}

void VerbsRail::Flush(UnflushedFence fence) {
  flush_.Add(std::move(fence));
  PumpFlushes();
}

void VerbsRail::PumpFlushes() {
  if (flush_.empty() || flush_.failed()) return;
  if (!MakeFlushQueuePair()) {
    while (!flush_.empty()) GiveUpOldest(ENOTCONN, "there is no queue pair for it");
    return;
  }
  if (const int error = flush_.Pump(); error != 0) {
    FailFlush(error, std::string(CallFailed("posting a read", "ibv_post_send", error).message()));
  }
}

void VerbsRail::OnFlushed(const ibv_wc& completion, const WorkRequestId& id) {
  if (!flush_.IsUnderWay(id.sequence)) return;
  if (completion.status != IBV_WC_SUCCESS) {
    const CompletionError error = ExplainCompletion(completion.status);
    FailFlush(error.error_number, error.text);
    return;
  }
  flush_.Complete(id.sequence);
  UnflushedFence fence;
  while (flush_.TakeFlushed(&fence)) {
    if (fence.endpoint == nullptr) continue;
    fence.endpoint->last_progress = last_completion_;
    Report(*fence.endpoint, fence.plan->zone, fence.weight, fence.round);
  }
  PumpFlushes();
}

// A read has failed, or could not be posted.
void VerbsRail::FailFlush(int error_number, const std::string& why) {
  if (flush_.FailRead()) GiveUpOldest(error_number, why);
  Arm(0);  // RestartFlushes()
}

void VerbsRail::RestartFlushes() {
  if (!flush_.failed()) return;
  flush_.DestroyQueuePair();
  PollAllCompletions();   // its last completions have places in the completion queue until then
  if (draining_) Arm(0);  // they may have been the marker of an endpoint's drain, which makes no event
  flush_.Restart();
  PumpFlushes();
}

// Ends the connection of the oldest fence. The sender may have its acknowledgement and send nothing again, so the
// exchange fails, too.
void VerbsRail::GiveUpOldest(int error_number, const std::string& why) {
  const UnflushedFence fence = flush_.TakeOldest();
  if (fence.endpoint == nullptr) return;
  GiveUp(fence, error_number);
  Break(*fence.endpoint, error_number,
        absl::StrCat("bytes in the memory of a device could not be read back over the port itself: ", why));
}

// The fence is never reported.
void VerbsRail::GiveUp(const UnflushedFence& fence, int error_number) {
  ++receives_owed_;
  context_.events.Push({.kind = RailEvent::Kind::kReceiveFault,
                        .peer = fence.endpoint->peer.peer,
                        .error_number = error_number,
                        .zone = fence.plan->zone});
}

}  // namespace railsd::verbs
