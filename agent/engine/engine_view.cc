// Engine: the snapshot for operators.
#include <algorithm>

#include "agent/engine/engine.h"

namespace railsd {
namespace {

RailView ViewOfRail(const RailSpec& spec, RailIndex index, const RailHandle& handle, const RailSpeeds& speeds) {
  const size_t r = index.value();
  const RailCounters& counters = handle.port->counters();
  const auto read = [](const RailCounters::Counter& counter) { return counter.load(std::memory_order_relaxed); };
  RailView view;
  view.index = index;
  view.name = spec.name;
  view.address = spec.address;
  view.interface = spec.interface;
  view.speed_bytes_per_s = static_cast<uint64_t>(handle.speed_bytes_per_s);
  view.measured_bytes_per_s = static_cast<uint64_t>(speeds.measured(r));
  view.window_bytes = handle.progress->window_bytes;
  view.in_flight_bytes = read(handle.progress->in_flight_bytes);
  view.queued_bytes = handle.backlog_bytes() - std::min(handle.backlog_bytes(), view.in_flight_bytes);
  view.returned_chunks = read(handle.progress->returned_chunks);
  view.counts = Read(counters);
  view.device = handle.port->Device();
  view.queue_pairs = read(counters.queue_pairs);
  return view;
}

}  // namespace

AgentSnapshot Engine::Snapshot(size_t queue_depth) const {
  AgentSnapshot snapshot;
  snapshot.node = options_.node;
  snapshot.boot = options_.boot;
  snapshot.draining = draining_;
  for (size_t r = 0; r < rails_.size(); ++r) {
    const RailIndex index(static_cast<uint32_t>(r));
    snapshot.rails.push_back(ViewOfRail(options_.rails[r], index, rails_[r], speeds_));
    RailView& view = snapshot.rails.back();
    view.health = health_.View(index, now_);
    view.planned_bytes_per_s = static_cast<uint64_t>(speeds_.ForPlan(r, now_));
    view.planned_bytes = jobs_.planned_bytes(r);
    view.counts.rx_payload_bytes += jobs_.records().told_rx_bytes(r);  // the rail itself cannot count these bytes
    view.counts.rx_payload_bytes -= std::min(view.counts.rx_payload_bytes, jobs_.landed_again(r));
    view.counts.tx_payload_bytes = jobs_.sent_bytes(r);
  }
  const std::vector<BytesByRail> landing = jobs_.LandingByPeer();
  const std::vector<absl::Duration> waits = jobs_.WaitsByPeer();
  for (size_t p = 0; p < peers_.size(); ++p) {
    const Peer& peer = peers_.Get(PeerIndex(static_cast<uint32_t>(p)));
    if (peer.forgotten) continue;
    PeerView view{peer.node, peer.boot, peer.up, {}, {}, peer.why};
    view.ready_wait = peer.ready_wait + waits[p];
    for (size_t r = 0; r < rails_.size(); ++r) {
      view.rails_up.push_back(Has(peer.connected, r));
      view.rail_states.push_back(health_.PathState(RailIndex(static_cast<uint32_t>(r)), peer.index, now_));
      view.rail_addresses.push_back(peer.rails[r].address);
      view.rail_tx_bytes.push_back(peer.rails[r].tx_bytes);
      uint64_t& shown = peer.rails[r].shown_rx_bytes;
      shown = std::max(shown, peer.rails[r].rx_bytes + landing[p][r]);
      view.rail_rx_bytes.push_back(shown);
      snapshot.rails[r].peers_known += peer.rails[r].known;
      snapshot.rails[r].planned_rx_bytes += peer.rails[r].planned_rx_bytes;
      const bool drained = peer.up && view.rail_states[r] == HealthState::kDrainedByPeer;
      snapshot.rails[r].peers_up += view.rails_up[r] && !drained;
      snapshot.rails[r].peers_drained += drained;
    }
    snapshot.peers.push_back(std::move(view));
  }
  for (const auto& [id, session] : sessions_.all()) {
    snapshot.sessions.push_back({id, session->info, static_cast<uint32_t>(session->memory->count()),
                                 session->segment_bytes, session->memberships});
  }
  for (const auto& [epoch, group] : groups_.all()) snapshot.groups.push_back(group->View());
  snapshot.forming = groups_.FormingHere();
  snapshot.tenants = tenants_.Views(now_);
  snapshot.active_jobs = jobs_.ActiveReports();
  snapshot.finished_jobs = jobs_.records().Recent();
  jobs_.FillCounters(&snapshot.counters);
  snapshot.counters.groups_formed = groups_.formed();
  snapshot.counters.control_messages_in = messages_in_;
  snapshot.counters.control_messages_out = outbox_.sent();
  snapshot.counters.control_messages_ignored = messages_ignored_;
  snapshot.counters.engine_queue_depth = queue_depth;
  return snapshot;
}

}  // namespace railsd
