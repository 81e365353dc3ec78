// JobTable: what peers and rails say.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/steady_now.h"
#include "agent/job/jobs.h"

namespace railsd {
bool JobTable::OnMessage(const Peer& from, Offer&& message) {
  Group* group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  peers_.Get(from.index).TakePlanned(message.planned_bytes);
  message.planned_bytes = {};
  Ended& ended = ended_[message.job.epoch];
  // Its sender may not hear of the end from the node that caused it: the two may have lost each other, or not met yet.
  if (group->broken && message.job.seq > group->good_until) {
    groups_.SendBroken(*group, from);
    return true;
  }
  if (const auto aborted = ended.tombstones.find(message.job.seq); aborted != ended.tombstones.end()) {
    outbox_.Send(from.node, AbortOf(message.job, aborted->second));
    return true;
  }
  const uint64_t last = group->LastTaken().value();
  NodeJob* job = Find(message.job);
  // The job has ended here, and why is forgotten. It ended without this OFFER, so it was aborted before the sender was
  // connected.
  if (job == nullptr && message.job.seq.value() <= last) {
    const absl::Status ended_here =
        absl::AbortedError(absl::StrCat("job ", message.job.seq.value(), " has ended on ", peers_.self()));
    outbox_.Send(from.node, AbortOf(message.job, ended_here));
    return true;
  }
  const uint64_t seq = message.job.seq.value();
  if (job == nullptr) job = &FindOrCreate(*group, message.job);
  if (seq > LastExpected(*group)) {
    FailJob(*job,
            options_.refused->Refuse(Limit::kJobsPerGroup, absl::StrCat(from.node, " offers job ", seq, ", ",
                                                                        peers_.self(), " is at ", last)),
            false);
    return true;
  }
  auto exchange = job->peers.find(from.index);
  if (exchange == job->peers.end() || exchange->second.offer.has_value()) return false;
  if (const absl::Status taken = TakeOffer(*job, *group, exchange->second, message); !taken.ok()) {
    FailJob(*job, taken, false);
    return false;
  }
  exchange->second.offer = std::move(message);
  exchange->second.times.offer_received = now_;
  if (job->started && !job->aborting()) Match(*job, *group, exchange->second);
  return true;
}

void JobTable::HandOverZones(NodeJob& job, PeerExchange& exchange, std::shared_ptr<ReceiveSet> set) {
  uint32_t slot = static_cast<uint32_t>(slots_.size());
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  set->slot = slot;
  set->generation = ++slots_[slot].generation;
  slots_[slot].job = &job;
  slots_[slot].exchange = &exchange;
  exchange.zones = std::move(set);
  slots_[slot].rails_open = exchange.rails_unopened = static_cast<uint32_t>(rails_.size());
  // Every rail has the command before the READY can leave this node, and looks for it when a frame comes whose zone it
  // does not know: nobody is woken, but for keys, which READY waits for.
  for (RailHandle& rail : rails_) {
    RailCommand command;
    command.kind = RailCommand::Kind::kOpenZones;
    command.zones = exchange.zones;
    rail.Command(std::move(command), /*wake=*/remote_);
  }
  if (remote_) return;  // OnZonesOpened() goes on
  if (ZonesHandedOver()) return SendReady(job, exchange, slot);
  held_readies_.push_back({slot, exchange.zones->generation});
}

bool JobTable::ZonesHandedOver() const {
  return std::all_of(rails_.begin(), rails_.end(), [](const RailHandle& r) { return r.receiving_overflow.empty(); });
}

void JobTable::SendHeldReadies() {
  if (held_readies_.empty() || !ZonesHandedOver()) return;
  for (const HeldReady& held : std::exchange(held_readies_, {})) {
    Slot& slot = slots_[held.slot];
    if (slot.job == nullptr || slot.generation != held.generation || slot.job->aborting()) continue;
    NodeJob& job = *slot.job;
    SendReady(job, *slot.exchange, held.slot);
    MaybeRunning(job);
    FinishIfDone(job);
  }
}

void JobTable::SendReady(NodeJob& job, PeerExchange& exchange, uint32_t slot) {
  const Peer& peer = peers_.Get(exchange.peer);
  Ready ready;
  ready.job = job.key;
  ready.slot = slot;
  ready.generation = slot == 0 ? 0 : slots_[slot].generation;
  for (size_t r = 0; r < rails_.size(); ++r) {
    const RailIndex rail(static_cast<uint32_t>(r));
    ready.rails.push_back({rail, health_.EndUsable(rail), static_cast<uint64_t>(rails_[r].speed_bytes_per_s),
                           ingress_left_bytes_ / rails_.size()});
  }
  if (remote_ && slot != 0) AddRanges(exchange, &ready);
  const size_t ranges = ready.ranges.size();
  if (const absl::Status sent = outbox_.SendIfItFits(peer.node, std::move(ready)); !sent.ok()) {
    return FailJob(job,
                   absl::ResourceExhaustedError(absl::StrCat(
                       "job ", job.key.seq.value(), ": READY of ", ranges, " ranges from ", peers_.self(), " to ",
                       peer.node, ": ", sent.message(), ", or let its ranks here receive into fewer")),
                   false);
  }
  exchange.ready_sent = true;
  exchange.times.ready_sent = now_;
  if (exchange.out_bytes + exchange.in_bytes > 0) sprayer_.Expect(*job.tenant, now_);
}

bool JobTable::OnMessage(const Peer& from, Ready&& message) {
  NodeJob* job = Find(message.job);
  if (job == nullptr) {
    // It ended here before it had begun; its receiver waits for this before it lets go of the memory.
    if (remote_ && from.up) outbox_.Send(from.node, Quiesced{message.job, 0});
    return false;
  }
  if (!job->started) return false;
  auto exchange = job->peers.find(from.index);
  if (exchange == job->peers.end() || !exchange->second.offer_sent) return false;
  if (exchange->second.ready.has_value()) return OnKeysLost(*job, exchange->second, message);
  exchange->second.ready = std::move(message);
  exchange->second.times.ready_received = now_;
  if (job->aborting()) {
    SendQuiesced(*job);
    return false;
  }
  if (remote_) {
    if (absl::Status s = FillRemote(*job, exchange->second); !s.ok()) {
      FailJob(*job, s, true);
      return true;
    }
  }
  PlanExchange(*job, exchange->second);
  MaybeRunning(*job);
  FinishIfDone(*job);
  return true;
}

void JobTable::PlanExchange(NodeJob& job, PeerExchange& exchange) {
  if (exchange.planned || !exchange.ready.has_value() || job.aborting() || exchange.left_out) return;
  const Peer& peer = peers_.Get(exchange.peer);
  plan_flows_.clear();
  for (const OutFlow& flow : exchange.out) {
    const uint64_t hash = (uint64_t{flow.source.value()} << 32) + flow.destination.value() + 1;
    plan_flows_.push_back({flow.send.memory.total_bytes(), flow.source_place, flow.destination_place, hash});
  }
  plan_rails_.assign(rails_.size(), PlanRail{});
  for (size_t r = 0; r < rails_.size(); ++r) {
    plan_rails_[r].source_speed = sprayer_.PlanSpeed(r, now_);
    plan_rails_[r].usable = false;
    plan_rails_[r].source_backlog_bytes = sprayer_.queued_bytes(r) + sprayer_.in_flight_bytes(r);
  }
  for (const Ready::RailState& rail : exchange.ready->rails) {
    if (rail.rail.value() >= rails_.size()) continue;
    PlanRail& mine = plan_rails_[rail.rail.value()];
    mine.destination_speed = static_cast<double>(rail.speed_bytes_per_s);
    mine.destination_backlog_bytes = rail.backlog_bytes;
    mine.usable = remote_ && exchange.out_bytes > 0 ? peer.CanSendWithKeys(rail.rail.value(), exchange.usable)
                                                    : rail.usable && peer.CanSend(rail.rail.value());
  }
  const absl::Time before = SteadyNow();
  const absl::Status planned = BuildPlan(plan_flows_, plan_rails_, exchange.peer, options_.plan, &ledger_, &workspace_);
  if (!planned.ok()) {
    // No rail is up towards the peer: planned again when one comes up; the job's deadline bounds the wait.
    if (planned.code() == absl::StatusCode::kUnavailable) {
      // What its receiver's ends can do by then is known from RailState.
      for (Ready::RailState& rail : exchange.ready->rails) rail.usable = rail.usable || !remote_;
      return;
    }
    return FailJob(job, planned, true);
  }
  ++counters_.plans;
  counters_.planning_nanoseconds += static_cast<uint64_t>(absl::ToInt64Nanoseconds(SteadyNow() - before));
  exchange.planned = true;
  exchange.times.planned = now_;
  if (remote_) StartFenced(exchange);
  for (const PlanRun& run : workspace_.runs) {
    OutFlow& flow = exchange.out[run.flow];
    job.rail_planned_bytes[run.rail.value()] += run.length_bytes;
    planned_bytes_[run.rail.value()] += run.length_bytes;
    peers_.Get(exchange.peer).rails[run.rail.value()].planned_tx_bytes += run.length_bytes;
    sprayer_.Queue(&job, &flow.send, flow.source, {exchange.ready->slot, exchange.ready->generation, run.flow}, run,
                   remote_ ? &flow.fenced : nullptr);
  }
}

void JobTable::MaybeRunning(NodeJob& job) {
  if (job.running || job.aborting() || !job.started) return;
  for (const auto& [peer, exchange] : job.peers) {
    if (!exchange.left_out && (!exchange.ready_sent || !exchange.ready.has_value())) return;
  }
  job.running = true;
  job.running_at = now_;
  for (auto& [rank, part] : job.parts) {
    if (!part.terminal()) part.report.state = JobState::kRunning;
  }
}

void JobTable::OnPeerReachable(const Peer& peer) {
  for (size_t r = 0; r < rails_.size(); ++r) {
    if (!peer.CanSend(r)) sprayer_.Evacuate(r, peer.index);  // there is a way again
  }
  for (auto& [key, job] : jobs_) {
    auto exchange = job->peers.find(peer.index);
    if (exchange == job->peers.end() || !job->started || job->aborting()) continue;
    SendOffer(*job, exchange->second);
    PlanExchange(*job, exchange->second);
  }
  OpenWaitingZones();
}

void JobTable::OnRailEvent(RailIndex rail, const RailEvent& event) {
  switch (event.kind) {
    case RailEvent::Kind::kSendDone:
      return OnSendDone(event);
    case RailEvent::Kind::kReceived:
      return OnReceived(rail, event);
    case RailEvent::Kind::kReceiveFault:
      return OnReceiveFault(event);
    case RailEvent::Kind::kZonesClosed:
      return OnZonesClosed(event);
    case RailEvent::Kind::kZonesOpened:
      return OnZonesOpened(rail, event);
    case RailEvent::Kind::kFence:
      return OnFence(rail, event);
    case RailEvent::Kind::kPeerUp:
    case RailEvent::Kind::kPeerDown:
    case RailEvent::Kind::kLinkDown:
    case RailEvent::Kind::kLinkUp:
    case RailEvent::Kind::kPeerStalled:
    case RailEvent::Kind::kBadPeer:
      return;  // the engine's
  }
}

void JobTable::OnSendDone(const RailEvent& event) {
  const InFlight done = sprayer_.Finish(event, now_);
  NodeJob& job = *done.job;
  --job.outstanding_orders;
  if (job.aborting()) {
    if (done.fenced != nullptr && event.result == SendResult::kRailFailed) {
      done.fenced->exchange->failed |= RailBit(done.rail.value());
    }
    if (event.result == SendResult::kAcknowledged) CountSent(job, done.peer, done.rail, done.length_bytes);
    SendQuiesced(job);
    return Settle(job);
  }
  if ((remote_ || event.result != SendResult::kAcknowledged) && job.peers.at(done.peer).left_out) {
    return OnLeftOutDone(job, done, event);
  }
  RankPart& part = job.parts.at(done.source);
  const auto where = [&] { return absl::StrCat("rail ", done.rail.value(), " to ", peers_.Get(done.peer).node); };
  switch (event.result) {
    case SendResult::kAcknowledged:
      // By the connection after the one that failed: the receiver does not count what comes over that.
      if (done.fenced != nullptr && (done.fenced->usable & RailBit(done.rail.value())) == 0) {
        return OnOrderLost(job, done, event);
      }
      part.report.bytes_sent += done.length_bytes;
      part.sends_left_bytes -= done.length_bytes;
      CountSent(job, done.peer, done.rail, done.length_bytes);
      if (done.fenced != nullptr) OnFencedDone(job, *done.fenced->exchange, done);
      FinishIfDone(job, done.source);
      if (remote_ && job.outstanding_orders == 0) Settle(job);  // the last may have been of a flow that is over
      return;
    case SendResult::kMemoryFault:
      return FailJob(job,
                     absl::FailedPreconditionError(absl::StrCat("a page of a send range of rank ", done.source.value(),
                                                                " cannot be read (", where(), ")")),
                     true);
    case SendResult::kReturned:
      return OnReturned(job, done, event);
    case SendResult::kRailFailed:
      if (done.fenced != nullptr) return OnOrderLost(job, done, event);
      return FailJob(
          job, absl::UnavailableError(absl::StrCat(where(), " failed in the middle of job ", job.key.seq.value())),
          true);
    case SendResult::kZoneClosed:
      return ExpectAbort(job, peers_.Get(done.peer));
    case SendResult::kStopped:
      return FailJob(job, absl::UnavailableError(absl::StrCat("the endpoint of ", where(), " was given up")), true);
  }
}

JobTable::Slot* JobTable::FindSlot(const RailEvent& event) {
  const ZoneRef& zone = event.zone;
  if (zone.slot >= slots_.size() || slots_[zone.slot].job == nullptr) return nullptr;
  return slots_[zone.slot].generation == zone.generation ? &slots_[zone.slot] : nullptr;
}

void JobTable::OnReceived(RailIndex rail, const RailEvent& event) {
  Slot* slot = FindSlot(event);
  if (slot == nullptr) return;
  NodeJob& job = *slot->job;
  PeerExchange& exchange = *slot->exchange;
  if (job.aborting() || event.zone.index >= exchange.in.size()) return;
  if (!exchange.in[event.zone.index].Add(event.offset_bytes, event.length_bytes)) {
    return FailJob(job,
                   absl::InternalError(absl::StrCat(peers_.Get(exchange.peer).node, " sent bytes [", event.offset_bytes,
                                                    ", +", event.length_bytes,
                                                    ") of a flow twice or past its end in job ", job.key.seq.value())),
                   true);
  }
  RankPart& part = job.parts.at(exchange.offer->flows[event.zone.index].destination);
  part.report.bytes_received += event.length_bytes;
  job.rail_rx_bytes[rail.value()] += event.length_bytes;
  peers_.Get(exchange.peer).rails[rail.value()].rx_bytes += event.length_bytes;
  NoteReceived(job, exchange, rail);
  exchange.in_left_bytes -= event.length_bytes;
  ingress_left_bytes_ -= event.length_bytes;
  if (exchange.in_left_bytes == 0) CloseZones(exchange);
}

void JobTable::OnReceiveFault(const RailEvent& event) {
  Slot* slot = FindSlot(event);
  if (slot == nullptr || slot->job->aborting() || event.zone.index >= slot->exchange->in.size()) return;
  const Rank rank = slot->exchange->offer->flows[event.zone.index].destination;
  FailJob(*slot->job,
          absl::FailedPreconditionError(absl::StrCat("a page of a receive range of rank ", rank.value(), " on ",
                                                     peers_.self(), " cannot be written")),
          true);
}

void JobTable::CloseZones(PeerExchange& exchange, bool writers_stopped) {
  if (exchange.zones == nullptr || exchange.closing) return;
  exchange.closing = true;
  exchange.quiesced_by = absl::InfiniteFuture();
  // Mostly no rail is inside a receive, and then nobody waits for the rails: they see the command when they are next
  // awake. Where peers write by themselves only the end of the keys proves that they are out.
  const bool quiet = !remote_ && exchange.zones->gate.Close();
  for (size_t r = 0; r < rails_.size(); ++r) {
    RailCommand command;
    command.kind = RailCommand::Kind::kCloseZones;
    command.slot = exchange.zones->slot;
    command.generation = exchange.zones->generation;
    command.writers_stopped = writers_stopped && (exchange.rehomed & RailBit(r)) == 0;
    command.awaited = !quiet;
    rails_[r].Command(std::move(command), /*wake=*/!quiet);
  }
  if (!quiet) return;
  Slot& slot = slots_[exchange.zones->slot];
  // The rails may hold the set for a while, but not the trainers' memory.
  Discard(slot.job->ranges, std::exchange(exchange.zones->zones, {}));
  OnZonesQuiet(slot);
}

// Nothing lands in the slot's zones any more.
void JobTable::OnZonesQuiet(Slot& slot) {
  NodeJob& job = *slot.job;
  PeerExchange& exchange = *slot.exchange;
  slot.job = nullptr;
  slot.exchange = nullptr;
  if (remote_) ReleaseFences(*exchange.zones);
  exchange.zones.reset();
  if (exchange.waiting != nullptr) {  // opened again when a rail is up
    exchange.closing = false;
    return waiting_zones_.push_back({job.key, exchange.peer});
  }
  ingress_left_bytes_ -= exchange.in_left_bytes;
  if (job.aborting()) return;
  exchange.received = true;
  for (auto& [rank, part] : job.parts) --part.receive_peers_left;
  FinishIfDone(job);
}

// The slot may be used again when every rail has forgotten the zones.
void JobTable::OnZonesClosed(const RailEvent& event) {
  if (event.zone.slot >= slots_.size()) return;
  Slot& slot = slots_[event.zone.slot];
  if (slot.generation != event.zone.generation || slot.rails_open == 0 || --slot.rails_open > 0) return;
  free_slots_.push_back(event.zone.slot);
  if (slot.job == nullptr) return;
  NodeJob& job = *slot.job;
  OnZonesQuiet(slot);
  if (job.aborting()) Settle(job);
  if (remote_) OpenWaitingZones();
}

void JobTable::OnCopyResult(const CopyResult& result) {
  auto it = by_tag_.find(result.job);
  if (it == by_tag_.end()) return;
  NodeJob& job = *it->second;
  --job.copies_running;
  if (job.aborting()) return Settle(job);
  const LocalCopy& copy = job.copies[result.index];
  if (!result.status.ok()) {
    return FailJob(job,
                   absl::Status(result.status.code(), absl::StrCat("copy from rank ", copy.source.value(), " to rank ",
                                                                   copy.destination.value(), " on ", peers_.self(),
                                                                   ": ", result.status.message())),
                   true);
  }
  const uint64_t bytes = copy.from.total_bytes();
  counters_.local_copy_bytes += bytes;
  job.parts.at(copy.source).report.bytes_sent += bytes;
  job.parts.at(copy.destination).report.bytes_received += bytes;
  for (Rank rank : {copy.source, copy.destination}) {
    --job.parts.at(rank).copies_left;
    FinishIfDone(job, rank);
  }
}

}  // namespace railsd
