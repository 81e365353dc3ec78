// Zones: keys that open them, fences that say what is in them.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/verbs_rail.h"

namespace railsd::verbs {

void VerbsRail::Opened(const ReceiveZone& zone, uint64_t connection, int error_number) {
  context_.events.Push({.kind = RailEvent::Kind::kZoneOpened,
                        .peer = zone.peer,
                        .error_number = error_number,
                        .zone = zone.ref,
                        .connection = connection});
}

void VerbsRail::Closed(ZoneRef zone, RailEvent::Kind kind) { context_.events.Push({.kind = kind, .zone = zone}); }

void VerbsRail::Bind(std::shared_ptr<const ReceiveZone> zone) {
  const auto found = endpoints_.find(zone->peer);
  Endpoint* const endpoint = found == endpoints_.end() ? nullptr : found->second.get();
  ZonePlan plan;
  int error_number = 0;
  if (zones_.contains(zone->ref.slot)) {
    error_number = EEXIST;  // the caller's error; the bound zone stays as it is
  } else if (endpoint == nullptr || endpoint->phase != Endpoint::Phase::kLive ||
             endpoint->handshake.link_state() == LinkState::kInit) {
    // State kConnected suffices: the peer may be up, and send READY, a moment before this end has heard so.
    error_number = ENOTCONN;
  } else if (zone->keys.size() <= context_.rail.value() || !PlanWindows(zone->memory, context_.rail, &plan)) {
    error_number = EINVAL;  // a segment is not registered here
  }
  if (error_number != 0) {
    Opened(*zone, 0, error_number);
    return;
  }
  std::unique_ptr<BoundZone>& place = zones_[zone->ref.slot];
  place = std::make_unique<BoundZone>();
  BoundZone& bound = *place;
  bound.zone = std::move(zone);
  bound.endpoint = endpoint;
  bound.queue_pair = endpoint->queue_pairs[QueuePairOf(bound.zone->ref, endpoint->queue_pairs.size())].get();
  bound.plan = std::move(plan);
  if (!PlanFlush(bound)) {
    Opened(*bound.zone, 0, ENOTCONN);
    zones_.erase(bound.zone->ref.slot);
    return;
  }
  TakeWindows(bound);
  if (bound.windows.empty()) AddTo(context_.counters.weak_zones, 1);
  bound.pending = static_cast<uint32_t>(bound.windows.size());
  for (uint32_t w = 0; w < bound.windows.size(); ++w) bound.queue_pair->Bind(&bound, w);
  if (bound.pending == 0) OnSettled(bound);
}

// Takes a memory window for each window of the plan, or none if the zone is to be weak.
void VerbsRail::TakeWindows(BoundZone& bound) {
  const size_t count = bound.plan.windows.size();
  if (!context_.device->has_windows() || count > context_.tuning.max_windows) return;
  while (bound.windows.size() < count) {
    WindowHandle window;
    if (free_windows_.empty()) {
      window.reset(ibv_alloc_mw(context_.device->domain(), IBV_MW_TYPE_2));
    } else {
      window = std::move(free_windows_.back());
      free_windows_.pop_back();
    }
    if (window == nullptr) {
      std::move(bound.windows.begin(), bound.windows.end(), std::back_inserter(free_windows_));
      bound.windows.clear();
      Notice(&device_notice_,
             absl::StrCat("the device has no more memory windows (it offers ", context_.device->attributes().max_mw,
                          "): zones are weak, their key opens the whole segment"));
      return;
    }
    bound.windows.push_back(std::move(window));
  }
}

// Called when all binds, or all invalidates, of the zone are done.
void VerbsRail::OnSettled(BoundZone& bound) {
  if (bound.state == BoundZone::State::kClosing) {
    Erase(bound);
    return;
  }
  bound.state = BoundZone::State::kOpen;
  std::vector<uint32_t>& keys = bound.zone->keys[context_.rail.value()];
  keys.clear();
  for (const uint32_t w : bound.plan.window_of) {
    const auto* const whole = static_cast<const DeviceRegistration*>(bound.plan.windows[w].registration);
    keys.push_back(bound.windows.empty() ? whole->remote_key() : bound.windows[w]->rkey);
  }
  Opened(*bound.zone, bound.endpoint->handshake.connection(), 0);
  if (bound.close_soon) TakeKeysBack(bound);
}

void VerbsRail::Unbind(ZoneRef zone, bool writers_stopped) {
  const auto found = zones_.find(zone.slot);
  if (found == zones_.end() || found->second->zone->ref != zone) {
    Closed(zone);
    return;
  }
  BoundZone& bound = *found->second;
  if (bound.state == BoundZone::State::kClosing) return;
  if (bound.state == BoundZone::State::kOpening) {  // nobody has the key yet
    bound.close_soon = true;
  } else if (writers_stopped) {
    TakeKeysBack(bound);
  } else {
    // Without a key a device refuses the next packet. Soft-RoCE does not wait for the packet that it is writing.
    bound.state = BoundZone::State::kClosing;  // DropZones() ends it
    Break(*bound.endpoint, ECONNRESET, "a zone was closed while a peer still wrote into it");
  }
}

// Invalidates the zone's windows. If the queue pairs are in error, DropZones() ends the zone instead.
void VerbsRail::TakeKeysBack(BoundZone& bound) {
  bound.state = BoundZone::State::kClosing;
  if (bound.windows.empty() && bound.endpoint->phase == Endpoint::Phase::kLive) {
    Erase(bound);
    return;
  }
  bound.pending = static_cast<uint32_t>(bound.windows.size());
  for (uint32_t w = 0; w < bound.windows.size(); ++w) bound.queue_pair->Invalidate(&bound, w);
}

// Called when nothing can land in the zone any more and no window is bound.
void VerbsRail::Erase(BoundZone& bound) {
  std::move(bound.windows.begin(), bound.windows.end(), std::back_inserter(free_windows_));
  const ZoneRef zone = bound.zone->ref;
  zones_.erase(zone.slot);
  Closed(zone);
}

void VerbsRail::FreeWindows(const Endpoint& endpoint) {
  std::erase_if(context_.settled, [&](const BoundZone* bound) { return bound->endpoint == &endpoint; });
  for (const auto& [slot, bound] : zones_) {
    if (bound->endpoint == &endpoint) bound->windows.clear();
  }
}

void VerbsRail::DropZones(const Endpoint& endpoint) {
  absl::erase_if(zones_, [&](const auto& entry) {
    const BoundZone& bound = *entry.second;
    if (bound.endpoint != &endpoint) return false;
    // ENOTCONN whatever the cause: the rail is down to that peer, and other rails may carry the exchange.
    if (bound.state == BoundZone::State::kOpening) Opened(*bound.zone, 0, ENOTCONN);
    if (bound.state == BoundZone::State::kClosing || bound.close_soon) Closed(bound.zone->ref);
    return true;
  });
}

void VerbsRail::Report(const Endpoint& endpoint, ZoneRef zone, uint8_t weight, uint8_t round) {
  AddTo(context_.counters.rx_fences, 1);
  context_.events.Push(
      {.kind = RailEvent::Kind::kFence, .peer = endpoint.peer.peer, .zone = zone, .weight = weight, .round = round});
}

// Takes a fence: all bytes of the exchange that the peer posted to this rail before it are in memory.
void VerbsRail::OnFence(const ibv_wc& completion) {
  const auto queue_pair = queue_pairs_by_number_.find(completion.qp_num);
  if (queue_pair == queue_pairs_by_number_.end()) {  // of a queue pair that is gone
    ++receives_owed_;
    return;
  }
  Endpoint& endpoint = *queue_pair->second->endpoint();
  const FenceImmediate fence = DecodeFence(ntohl(completion.imm_data));
  ZoneRef ref;
  const ZoneTable::State state = options_.zones->Look(fence.slot, fence.generation, &ref);
  const ReceiveZone* const zone = state == ZoneTable::State::kOpen ? options_.zones->Enter(ref) : nullptr;
  const bool bad =
      state == ZoneTable::State::kUnknown || fence.weight == 0 || (zone != nullptr && zone->peer != endpoint.peer.peer);
  if (zone == nullptr || bad) {
    ++receives_owed_;  // a closed zone needs no fence
  } else if (std::shared_ptr<const FlushPlan> plan = FlushOf(ref)) {
    Flush({.plan = std::move(plan), .endpoint = &endpoint, .weight = fence.weight, .round = fence.round});
  } else {
    Report(endpoint, ref, fence.weight, fence.round);
  }
  if (zone != nullptr && options_.zones->Leave(ref)) Closed(ref, RailEvent::Kind::kZoneQuiet);
  if (!bad) return;
  BreakBad(endpoint, absl::StrCat("it sent a fence for slot ", fence.slot, " (generation ", int{fence.generation},
                                  ", weight ", int{fence.weight}, "), which is not one of its exchanges"));
}

}  // namespace railsd::verbs
