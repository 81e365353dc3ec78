// Landing zones: keys that open them, fences that close them.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/verbs_rail.h"

namespace railsd::verbs {

void VerbsRail::Opened(OpenSet& open, int error_number) {
  RailEvent event;
  event.kind = RailEvent::Kind::kZonesOpened;
  event.peer = open.set->peer;
  event.zone.slot = open.set->slot;
  event.zone.generation = open.set->generation;
  event.error_number = error_number;
  context_.events.Push(event);
}

void VerbsRail::Closed(uint32_t slot, uint32_t generation) {
  RailEvent event;
  event.kind = RailEvent::Kind::kZonesClosed;
  event.zone.slot = slot;
  event.zone.generation = generation;
  context_.events.Push(event);
}

void VerbsRail::OpenZones(std::shared_ptr<const ReceiveSet> zones) {
  const ZoneKey key(zones->slot, zones->generation);
  std::unique_ptr<OpenSet>& place = sets_[key];
  if (place != nullptr) {  // a broken promise of the caller; what is open stays as it is
    Opened(*place, EEXIST);
    return;
  }
  place = std::make_unique<OpenSet>();
  OpenSet& open = *place;
  open.set = std::move(zones);
  NumberFences(*open.set);
  const auto found = endpoints_.find(open.set->peer);
  const size_t rail = context_.rail.value();
  int error_number = 0;
  // Connected will do: the peer may be up, and ask for READY, a moment before this end has heard so.
  if (found == endpoints_.end() || found->second->handshake.link_state() == LinkState::kInit ||
      found->second->phase != Endpoint::Phase::kLive) {
    error_number = ENOTCONN;
  } else if (open.set->keys.size() <= rail ||
             !PlanWindows(*open.set, context_.rail, found->second->lanes.size(), &open.plan)) {
    error_number = EINVAL;  // a segment is not registered here
  }
  if (error_number != 0) {
    open.state = OpenSet::State::kDead;
    Opened(open, error_number);
    return;
  }
  open.endpoint = found->second.get();
  if (!BindWindows(open)) {
    open.weak = true;
    std::vector<uint32_t>& keys = open.set->keys[rail];
    keys.clear();
    for (const ZonePlan::Range& range : open.plan.ranges) {
      keys.push_back(static_cast<const DeviceRegistration*>(range.registration)->remote_key());
    }
    AddTo(context_.counters.weak_zones, open.set->zones.size());
  }
  if (open.pending == 0) OnSettled(open);
}

// False: the zones are to be weak.
bool VerbsRail::BindWindows(OpenSet& open) {
  const size_t count = open.plan.windows.size();
  if (count == 0) return true;
  if (!context_.device->has_windows() || count > options_.tuning.max_windows) return false;
  TakeWindows(open, count);
  if (open.windows.size() < count) {
    for (WindowSlot& slot : open.windows) free_windows_.push_back(std::move(slot));
    open.windows.clear();
    Notice(&device_notice_,
           absl::StrCat("the device has no more memory windows (it offers ", context_.device->attributes().max_mw,
                        "): zones are weak, their key opens the whole segment"));
    return false;
  }
  open.pending = static_cast<uint32_t>(count);
  for (uint32_t w = 0; w < count; ++w) open.endpoint->lanes[open.plan.windows[w].lane]->Bind(&open, w);
  return true;
}

// As many as there are, up to `count`.
void VerbsRail::TakeWindows(OpenSet& open, size_t count) {
  while (open.windows.size() < count) {
    if (!free_windows_.empty()) {
      open.windows.push_back(std::move(free_windows_.back()));
      free_windows_.pop_back();
      continue;
    }
    WindowHandle window(ibv_alloc_mw(context_.device->domain(), IBV_MW_TYPE_2));
    if (window == nullptr) return;
    open.windows.push_back({std::move(window), false});
  }
}

// All that was asked for the set is done.
void VerbsRail::OnSettled(OpenSet& open) {
  if (open.state == OpenSet::State::kOpening) {
    open.state = OpenSet::State::kOpen;
    if (!open.weak) {
      std::vector<uint32_t>& keys = open.set->keys[context_.rail.value()];
      keys.clear();
      for (const ZonePlan::Range& range : open.plan.ranges) keys.push_back(open.windows[range.window].window->rkey);
    }
    Opened(open, 0);
    if (open.close_soon) CloseStrong(open);
    return;
  }
  if (open.state != OpenSet::State::kClosing) return;
  for (WindowSlot& slot : open.windows) slot.may_be_bound = false;
  Erase(open);
}

void VerbsRail::CloseZones(uint32_t slot, uint32_t generation, bool writers_stopped) {
  const auto found = sets_.find({slot, generation});
  if (found == sets_.end()) {
    Closed(slot, generation);
    return;
  }
  OpenSet& open = *found->second;
  CloseFences(*open.set);
  if (open.state == OpenSet::State::kDead) return Erase(open);
  if (open.state == OpenSet::State::kClosing) return;
  if (open.state == OpenSet::State::kOpening) {  // nobody has the key yet
    open.close_soon = true;
  } else if (!writers_stopped) {
    // Without a key a device refuses the next packet, but Soft-RoCE does not wait for the one that it is writing.
    open.state = OpenSet::State::kClosing;  // DropZones() ends it
    Break(*open.endpoint, ECONNRESET, "zones were closed under a writer that has not stopped");
  } else if (open.weak) {
    Erase(open);
  } else {
    CloseStrong(open);
  }
}

void VerbsRail::CloseStrong(OpenSet& open) {
  open.state = OpenSet::State::kClosing;
  if (open.windows.empty()) {
    Erase(open);
    return;
  }
  open.pending = static_cast<uint32_t>(open.windows.size());
  for (uint32_t w = 0; w < open.windows.size(); ++w) {
    open.endpoint->lanes[open.plan.windows[w].lane]->Invalidate(&open, w);
  }
}

// Nothing can land in it any more.
void VerbsRail::Erase(OpenSet& open) {
  for (WindowSlot& slot : open.windows) {
    if (!slot.may_be_bound) free_windows_.push_back(std::move(slot));
  }
  const ZoneKey key(open.set->slot, open.set->generation);
  Closed(key.first, key.second);
  sets_.erase(key);
}

void VerbsRail::DropZones(Endpoint& endpoint) {
  std::vector<OpenSet*> closing;
  for (auto& [key, open] : sets_) {
    if (open->endpoint != &endpoint) continue;
    const OpenSet::State state = open->state;
    open->windows.clear();  // a window must go before the queue pair that it is bound to
    open->endpoint = nullptr;
    open->pending = 0;
    open->state = OpenSet::State::kDead;
    // Whatever broke it: the rail is down to that peer, and the others may do without it.
    if (state == OpenSet::State::kOpening) Opened(*open, ENOTCONN);
    if (state == OpenSet::State::kClosing || open->close_soon) closing.push_back(open.get());
  }
  std::erase_if(context_.settled, [](const OpenSet* open) { return open->state == OpenSet::State::kDead; });
  for (OpenSet* open : closing) Erase(*open);
}

void VerbsRail::NumberFences(const ReceiveSet& set) {
  for (uint32_t i = 0; i < set.fences.size() && i < set.zones.size(); ++i) {
    if (set.zones[i].total_bytes() == 0) continue;  // nothing is sent, not even a fence
    fences_[set.fences[i].slot] = {set.fences[i].generation, set.peer, {set.slot, set.generation, i}, true};
  }
}

void VerbsRail::CloseFences(const ReceiveSet& set) {
  for (const FenceSlot& fence : set.fences) {
    const auto found = fences_.find(fence.slot);
    if (found != fences_.end() && found->second.zone.slot == set.slot &&
        found->second.zone.generation == set.generation) {
      found->second.open = false;
    }
  }
}

// A flow's fence: all that its sender posted to this rail before it is in memory.
void VerbsRail::OnFence(const ibv_wc& completion) {
  const auto lane = lanes_by_number_.find(completion.qp_num);
  if (lane == lanes_by_number_.end()) {  // of a queue pair that is gone
    ++receives_owed_;
    return;
  }
  Endpoint& endpoint = *lane->second->endpoint();
  const FenceImmediate fence = DecodeFence(ntohl(completion.imm_data));
  const auto found = fences_.find(fence.slot.slot);
  const bool known = found != fences_.end() && found->second.generation == fence.slot.generation &&
                     found->second.peer == endpoint.peer.peer && fence.fences > 0;
  if (!known) {
    ++receives_owed_;
    BreakBad(endpoint,
             absl::StrCat("it sent a fence for slot ", fence.slot.slot, " (generation ", int{fence.slot.generation},
                          ", ", int{fence.fences}, " fences), which is not one of its flows"));
    return;
  }
  if (!found->second.open) {
    ++receives_owed_;
    return;
  }
  AddTo(context_.counters.rx_fences, 1);
  RailEvent event;
  event.kind = RailEvent::Kind::kFence;
  event.peer = endpoint.peer.peer;
  event.zone = found->second.zone;
  event.fences = fence.fences;
  event.round = fence.round;
  context_.events.Push(event);
}

}  // namespace railsd::verbs
