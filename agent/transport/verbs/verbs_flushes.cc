// Fences of zones in the memory of other devices, which are flushed before they are reported.
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/completion_error.h"
#include "agent/transport/verbs/verbs_rail.h"

namespace railsd::verbs {

// False: the zone needs flushes, and this rail has no queue pair for them.
bool VerbsRail::PlanFlush(BoundZone& bound) {
  if (bound.plan.flushes.empty()) return true;
  if (!MakeFlushQueue(*bound.endpoint)) {
    Break(*bound.endpoint, ENOTCONN, "");  // made anew after a back-off
    return false;
  }
  auto plan = std::make_shared<FlushPlan>();
  plan->zone = bound.zone->ref;
  plan->memory = bound.zone->memory;
  for (const ZonePlan::Flush& flush : bound.plan.flushes) {
    const auto& registration = static_cast<const DeviceRegistration&>(*flush.registration);
    plan->reads.push_back({flush.address, registration.remote_key()});
  }
  bound.flush = std::move(plan);
  flushes_ = true;
  return true;
}

// Null: the fence of the zone is reported at once. A zone that is not bound here got no bytes over this rail.
std::shared_ptr<const FlushPlan> VerbsRail::FlushOf(ZoneRef zone) const {
  if (!flushes_) return nullptr;
  const auto found = zones_.find(zone.slot);
  return found == zones_.end() || found->second->zone->ref != zone ? nullptr : found->second->flush;
}

// Makes a queue for flushes unless there is one for the endpoint's address. False if no fence can be flushed now.
bool VerbsRail::MakeFlushQueue(const Endpoint& endpoint) {
  // Each fence holds a receive, so the queue is full only if reads of endpoints that were given up do not end.
  if (flush_ != nullptr && (flush_->failed() || flush_->full())) return false;
  if (flush_ != nullptr && (flush_->own() == *endpoint.own || !flush_->empty())) return true;
  flush_.reset();
  const LaneId id(next_lane_++ & 0xffffff);
  absl::StatusOr<std::unique_ptr<FlushQueue>> made =
      FlushQueue::Create(&context_, completions_.get(), options_.tuning, id, *endpoint.own, receive_count_);
  if (!made.ok()) {
    Notice(&device_notice_, absl::StrCat("flushes of device memory: ", made.status().message()));
    return false;
  }
  flush_ = *std::move(made);
  return true;
}

void VerbsRail::Flush(UnflushedFence fence) {
  if (!MakeFlushQueue(*fence.endpoint)) {
    GiveUp(fence, ENOTCONN);
    Break(*fence.endpoint, ENOTCONN, "");
    return;
  }
  flush_->Add(std::move(fence));
  PumpFlushes();
}

void VerbsRail::PumpFlushes() {
  if (const int error = flush_->Pump(); error != 0) {
    FailFlushes(error, std::string(CallFailed("posting a read", "ibv_post_send", error).message()));
  }
}

void VerbsRail::OnFlushed(const ibv_wc& completion, const WorkRequestId& id) {
  if (flush_ == nullptr || flush_->id() != id.lane || flush_->failed()) return;
  if (completion.status != IBV_WC_SUCCESS) {
    const CompletionError error = ExplainCompletion(completion.status);
    FailFlushes(error.error_number, error.text);
    return;
  }
  flush_->Complete(id.sequence);
  UnflushedFence fence;
  while (flush_->TakeFlushed(&fence)) {
    if (fence.endpoint == nullptr) continue;
    fence.endpoint->last_progress = last_completion_;
    Report(*fence.endpoint, fence.plan->zone, fence.weight, fence.round);
  }
  PumpFlushes();
}

// Ends the connections whose fences wait. The sender may have its acknowledgement and send nothing again, so the
// exchange fails, too.
void VerbsRail::FailFlushes(int error_number, const std::string& why) {
  flush_->Fail();
  draining_ = true;  // FinishDrains() destroys the queue
  UnflushedFence fence;
  while (flush_->TakeFailed(&fence)) {
    if (fence.endpoint == nullptr) continue;
    GiveUp(fence, error_number);
    Break(*fence.endpoint, error_number,
          absl::StrCat("bytes in the memory of a device could not be read back over the port itself: ", why));
  }
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
