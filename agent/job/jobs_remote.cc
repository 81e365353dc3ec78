// JobTable: exchanges over rails that write into remote memory. READY waits for keys and carries them, fences say what
// has arrived, and zones close only when their writers are out.
#include <spdlog/logger.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/job/jobs.h"

namespace railsd {
namespace {

// More take the engines too long, however long messages may be. Where they are short, limits.max_message allows fewer.
constexpr size_t kMaxReadyRanges = 1 << 17;
constexpr size_t kMaxReadyKeys = 1 << 20;
// How long the sender of an aborted job may take to say that it has stopped.
constexpr absl::Duration kQuiescePatience = absl::Seconds(1);

size_t RangeCount(const ReceiveSet& set) {
  return std::accumulate(set.zones.begin(), set.zones.end(), size_t{0},
                         [](size_t sum, const MemoryRanges& zone) { return sum + zone.range_count(); });
}

size_t FenceCount(const ReceiveSet& set) {
  return static_cast<size_t>(std::count_if(set.zones.begin(), set.zones.end(),
                                           [](const MemoryRanges& zone) { return zone.total_bytes() > 0; }));
}

// Rounds wrap around after 16; the one before the present one is far ahead of it.
bool IsOlderRound(uint8_t round, uint8_t present) { return ((present - round) & 15) - 1u < 8; }

}  // namespace

void JobTable::OpenRemoteZones(NodeJob& job, PeerExchange& exchange, std::shared_ptr<ReceiveSet> set) {
  const size_t ranges = RangeCount(*set), fences = FenceCount(*set);
  const std::string& node = peers_.Get(exchange.peer).node;
  exchange.fences.resize(set->zones.size());
  exchange.waiting = std::move(set);
  if (ranges > kMaxReadyRanges || ranges * rails_.size() > kMaxReadyKeys) {
    return FailJob(
        job,
        absl::ResourceExhaustedError(absl::StrCat(
            "job ", job.key.seq.value(), ": what comes from ", node, " lands in ", ranges, " ranges on ", peers_.self(),
            ", more than ", std::min(kMaxReadyRanges, kMaxReadyKeys / rails_.size()), "; use longer ones")),
        false);
  }
  if (fences > FenceSlots::kSlots) {
    return FailJob(job,
                   absl::ResourceExhaustedError(absl::StrCat("job ", job.key.seq.value(), ": ", fences, " flows from ",
                                                             node, " to ", peers_.self(), ", more than ",
                                                             FenceSlots::kSlots, " that can be told apart")),
                   false);
  }
  waiting_zones_.push_back({job.key, exchange.peer});
  OpenWaitingZones();
}

// In their order, but for those that wait for a rail to their peer: they hold up nobody.
void JobTable::OpenWaitingZones() {
  bool full = false;
  std::erase_if(waiting_zones_, [&](const WaitingZones& waiting) {
    NodeJob* job = Find(waiting.job);
    if (job == nullptr || job->aborting()) return true;
    PeerExchange& exchange = job->peers.at(waiting.peer);
    if (exchange.waiting == nullptr) return true;
    const Peer& peer = peers_.Get(waiting.peer);
    bool reachable = false;
    for (size_t r = 0; r < rails_.size(); ++r) reachable = reachable || peer.CanSend(r);
    if (full || !reachable) return false;
    full = !TryOpenRemote(*job, exchange);
    return !full;
  });
}

bool JobTable::TryOpenRemote(NodeJob& job, PeerExchange& exchange) {
  ReceiveSet& set = *exchange.waiting;
  const size_t fences = FenceCount(set), taken = fence_slots_.taken();
  if (fences > fence_slots_.free() || (taken > 0 && taken + fences > fence_room_)) return false;
  set.fences.clear();
  for (const MemoryRanges& zone : set.zones) {
    set.fences.push_back(zone.total_bytes() > 0 ? fence_slots_.Take() : FenceSlot{});
  }
  set.keys.assign(rails_.size(), {});
  exchange.opened = 0;
  HandOverZones(job, exchange, std::move(exchange.waiting));
  return true;
}

void JobTable::ReleaseFences(const ReceiveSet& set) {
  for (size_t zone = 0; zone < set.zones.size(); ++zone) {
    if (set.zones[zone].total_bytes() > 0) fence_slots_.Release(set.fences[zone]);
  }
}

void JobTable::OnZonesOpened(RailIndex rail, const RailEvent& event) {
  Slot* slot = FindSlot(event);
  // The zones of a peer that is left out meanwhile are closing, and count as received when they are closed.
  if (slot == nullptr || slot->job->aborting() || slot->exchange->left_out) return;
  NodeJob& job = *slot->job;
  PeerExchange& exchange = *slot->exchange;
  --exchange.rails_unopened;
  const bool complete = exchange.zones->keys[rail.value()].size() == RangeCount(*exchange.zones);
  const int error = event.error_number == 0 && !complete ? EPROTO : event.error_number;
  if (error == 0) {
    exchange.opened |= RailBit(rail.value());
  } else if (error != ENOTCONN) {
    return FailJob(job,
                   absl::ResourceExhaustedError(absl::StrCat(
                       "rail ", rail.value(), " of ", peers_.self(), " cannot open the zones of job ",
                       job.key.seq.value(), " to ", peers_.Get(exchange.peer).node, ": ", std::strerror(error))),
                   true);
  }
  if (exchange.rails_unopened > 0) return;
  if (exchange.opened == 0) {  // every rail went down meanwhile: again when one is up
    exchange.waiting = std::make_shared<ReceiveSet>();
    exchange.waiting->peer = exchange.peer;
    exchange.waiting->zones = exchange.zones->zones;
    return CloseZones(exchange);
  }
  SendReady(job, exchange, event.zone.slot);
  MaybeRunning(job);
  FinishIfDone(job);
}

void JobTable::AddRanges(const PeerExchange& exchange, Ready* ready) const {
  const ReceiveSet& set = *exchange.zones;
  const size_t count = RangeCount(set);
  ready->fences = set.fences;
  ready->ranges.reserve(count);
  ready->keys.reserve(count * rails_.size());
  RailMask wanted = 0;
  for (size_t r = 0; r < rails_.size(); ++r) wanted |= ready->rails[r].usable ? RailBit(r) & exchange.opened : 0;
  if (wanted == 0) wanted = exchange.opened;  // no other has keys
  for (size_t r = 0; r < rails_.size(); ++r) ready->rails[r].usable = (wanted & RailBit(r)) != 0;
  for (uint32_t zone = 0; zone < set.zones.size(); ++zone) {
    for (const MemoryRanges::Piece& piece : set.zones[zone].pieces()) {
      const size_t i = ready->ranges.size();
      ready->ranges.push_back({zone, reinterpret_cast<uintptr_t>(piece.address), piece.length_bytes});
      for (size_t r = 0; r < rails_.size(); ++r) {
        ready->keys.push_back(ready->rails[r].usable ? set.keys[r][i] : 0);
      }
    }
  }
}

absl::Status JobTable::FillRemote(const NodeJob& job, PeerExchange& exchange) const {
  if (exchange.out_bytes == 0) return absl::OkStatus();
  const Ready& ready = *exchange.ready;
  const auto bad = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("READY of ", peers_.Get(exchange.peer).node, " for job ",
                                            job.key.seq.value(), " of ", peers_.self(), ": ", what));
  };
  if (ready.fences.empty() && ready.ranges.empty()) {
    return bad("no ranges and no keys; rails over RDMA verbs need such rails at both ends");
  }
  if (ready.fences.size() != exchange.out.size()) {
    return bad(absl::StrCat(ready.fences.size(), " fences for ", exchange.out.size(), " flows"));
  }
  if (ready.keys.size() != ready.ranges.size() * ready.rails.size()) {
    return bad(absl::StrCat(ready.keys.size(), " keys for ", ready.ranges.size(), " ranges"));
  }
  for (const Ready::RailState& rail : ready.rails) {
    if (rail.usable && rail.rail.value() < rails_.size()) exchange.usable |= RailBit(rail.rail.value());
  }
  size_t i = 0;
  for (size_t f = 0; f < exchange.out.size(); ++f) {
    OutFlow& flow = exchange.out[f];
    RemoteZone& remote = flow.send.remote;
    const uint64_t total = flow.send.memory.total_bytes();
    uint64_t offset = 0;
    remote.fence = ready.fences[f];
    for (; i < ready.ranges.size() && ready.ranges[i].zone == f; ++i) {
      const Ready::ZoneRange& range = ready.ranges[i];
      if (range.length_bytes == 0 || range.length_bytes > total - offset) break;
      const size_t first_key = remote.keys.size();
      remote.pieces.push_back({offset, range.address, range.length_bytes, static_cast<uint32_t>(first_key)});
      remote.keys.resize(first_key + rails_.size(), 0);
      for (size_t r = 0; r < ready.rails.size(); ++r) {
        const size_t rail = ready.rails[r].rail.value();
        if (rail < rails_.size()) remote.keys[first_key + rail] = ready.keys[i * ready.rails.size() + r];
      }
      offset += range.length_bytes;
    }
    if (offset != total || (i < ready.ranges.size() && ready.ranges[i].zone <= f)) {
      return bad(absl::StrCat("its ranges do not cover the ", total, " bytes from rank ", flow.source.value(),
                              " to rank ", flow.destination.value(), " exactly"));
    }
  }
  if (i != ready.ranges.size()) return bad(absl::StrCat("a range for zone ", ready.ranges[i].zone, ", which is none"));
  return absl::OkStatus();
}

void JobTable::StartFenced(PeerExchange& exchange) {
  exchange.posted_bytes.assign(rails_.size(), 0);
  exchange.rail_orders.assign(rails_.size(), 0);
  exchange.unposted_bytes = exchange.out_bytes;
  for (OutFlow& flow : exchange.out) {
    flow.fenced.exchange = &exchange;
    flow.fenced.unposted_bytes = flow.send.memory.total_bytes();
    flow.fenced.usable = exchange.usable;
    ++exchange.fenced_flows_left;
  }
}

void JobTable::OnFence(RailIndex rail, const RailEvent& event) {
  Slot* slot = FindSlot(event);
  if (slot == nullptr || slot->job->aborting() || event.zone.index >= slot->exchange->fences.size()) return;
  NodeJob& job = *slot->job;
  PeerExchange& exchange = *slot->exchange;
  InFences& fences = exchange.fences[event.zone.index];
  if (IsOlderRound(event.round, fences.round) || (exchange.dead & RailBit(rail.value())) != 0) return;
  const Offer::Flow& flow = exchange.offer->flows[event.zone.index];
  const bool first = fences.seen == 0;
  const bool consistent = event.peer == exchange.peer && event.round == fences.round && flow.bytes > 0 &&
                          !fences.arrived && (fences.seen & RailBit(rail.value())) == 0 && event.fences > 0 &&
                          event.fences <= rails_.size() && (first || event.fences == fences.expected);
  if (!consistent) {
    const std::string& node = peers_.Get(exchange.peer).node;
    options_.log->warn("protocol_error rail={} peer={} why=\"fences that contradict each other\"", rail.value(), node);
    return FailJob(job,
                   absl::InternalError(absl::StrCat(
                       node, " sent a fence on rail ", rail.value(), " for the flow from rank ", flow.source.value(),
                       " to rank ", flow.destination.value(), " in job ", job.key.seq.value(), " (", event.fences,
                       " in round ", event.round, ") that contradicts what it sent before (",
                       std::popcount(fences.seen), " of ", fences.expected, " in round ", fences.round, ")")),
                   true);
  }
  fences.seen |= RailBit(rail.value());
  fences.expected = event.fences;
  if (std::popcount(fences.seen) < fences.expected) return;
  fences.arrived = true;
  job.parts.at(flow.destination).report.bytes_received += flow.bytes;
  NoteReceived(job, exchange, rail);
  exchange.in_left_bytes -= flow.bytes;
  ingress_left_bytes_ -= flow.bytes;
  if (exchange.in_left_bytes == 0) CloseZones(exchange);
}

void JobTable::OnFencedDone(NodeJob& job, PeerExchange& exchange, const InFlight& done) {
  if (exchange.lost != 0) AskWhatArrived(job, exchange);  // it may have been the last on a rail that had failed before
  if (!done.fence) return;
  // One of an older round says nothing.
  if (done.fenced->over || done.round != done.fenced->round || done.fenced->asked) return;
  if (--done.fenced->fences_left > 0) return;
  done.fenced->over = true;
  --exchange.fenced_flows_left;
  --job.parts.at(done.source).fenced_flows_left;
}

void JobTable::OnPeerLost(const Peer& peer) {
  ledger_.Forget(peer.index);
  for (auto& [key, job] : jobs_) {
    auto it = job->peers.find(peer.index);
    if (it == job->peers.end() || it->second.quiesced_by == absl::InfiniteFuture()) continue;
    CloseZones(it->second, /*writers_stopped=*/false);
  }
}

void JobTable::CloseWhenQuiesced(PeerExchange& exchange) {
  if (std::exchange(exchange.waiting, nullptr) != nullptr && exchange.zones == nullptr) {
    ingress_left_bytes_ -= exchange.in_left_bytes;  // it was never opened
  }
  if (exchange.zones == nullptr || exchange.closing) return;
  const Peer& peer = peers_.Get(exchange.peer);
  if (!exchange.ready_sent || exchange.quiesced) return CloseZones(exchange);
  if (!peer.up) return CloseZones(exchange, /*writers_stopped=*/false);
  exchange.quiesced_by = now_ + kQuiescePatience;
  Sooner(exchange.quiesced_by);
}

bool JobTable::OnMessage(const Peer& from, Quiesced&& message) {
  NodeJob* job = Find(message.job);
  if (job == nullptr) return groups_.Find(message.job.epoch) != nullptr;
  auto it = job->peers.find(from.index);
  if (it == job->peers.end()) return false;
  it->second.quiesced = true;
  it->second.rehomed |= message.failed_rails;
  if (it->second.quiesced_by < absl::InfiniteFuture()) CloseZones(it->second);
  return true;
}

void JobTable::SendQuiesced(NodeJob& job) {
  if (!job.aborting()) return;
  for (auto& [index, exchange] : job.peers) {
    const Peer& peer = peers_.Get(index);
    const bool busy = remote_ ? exchange.outstanding_orders > 0 : job.outstanding_orders > 0;
    if (!exchange.ready.has_value() || exchange.quiesced_sent || busy || !peer.up) continue;
    exchange.quiesced_sent = true;
    outbox_.Send(peer.node, Quiesced{job.key, exchange.failed});
  }
}

void JobTable::SendTallies() {
  for (const PeerExchange* exchange : sprayer_.fully_posted()) {
    const auto job = by_tag_.find(exchange->out.front().send.job);
    if (job == by_tag_.end() || job->second->aborting()) continue;
    outbox_.Send(peers_.Get(exchange->peer).node, Sent{job->second->key, exchange->posted_bytes});
  }
  sprayer_.fully_posted().clear();
}

bool JobTable::OnMessage(const Peer& from, Sent&& message) {
  if (!remote_ || message.bytes.size() > rails_.size()) return false;
  message.bytes.resize(rails_.size(), 0);
  const uint64_t total = std::accumulate(message.bytes.begin(), message.bytes.end(), uint64_t{0});
  if (NodeJob* job = Find(message.job)) {
    auto it = job->peers.find(from.index);
    if (it == job->peers.end() || total != it->second.in_bytes) return false;
    it->second.sent_bytes.resize(rails_.size(), 0);
    AddTally(message.job, from.index, it->second.sent_bytes, message.bytes);
    it->second.sent_bytes = std::move(message.bytes);
    return true;
  }
  auto ended = ended_.find(message.job.epoch);
  if (ended == ended_.end()) return false;
  auto report = ended->second.reports.lower_bound({message.job.seq, Rank(0)});
  if (report == ended->second.reports.end() || report->first.first != message.job.seq) return false;
  const std::vector<uint64_t>& known = report->second.report.rail_rx_bytes;
  const uint64_t so_far = std::accumulate(known.begin(), known.end(), uint64_t{0});
  if (so_far > report->second.node_in_bytes || total > report->second.node_in_bytes - so_far) return false;
  AddTally(message.job, from.index, std::vector<uint64_t>(rails_.size(), 0), message.bytes);
  return true;
}

void JobTable::AddTally(JobKey key, PeerIndex peer, const std::vector<uint64_t>& before,
                        const std::vector<uint64_t>& now) {
  const auto add = [&](std::vector<uint64_t>* rails) {
    rails->resize(rails_.size(), 0);
    for (size_t r = 0; r < rails_.size(); ++r) (*rails)[r] += now[r] - before[r];
  };
  add(&told_rx_bytes_);
  for (size_t r = 0; r < rails_.size(); ++r) peers_.Get(peer).rails[r].rx_bytes += now[r] - before[r];
  if (NodeJob* job = Find(key)) add(&job->rail_rx_bytes);
  for (JobReport& report : recent_) {
    if (report.job == key) add(&report.rail_rx_bytes);
  }
  auto ended = ended_.find(key.epoch);
  if (ended == ended_.end()) return;
  auto& reports = ended->second.reports;
  for (auto it = reports.lower_bound({key.seq, Rank(0)}); it != reports.end() && it->first.first == key.seq; ++it) {
    add(&it->second.report.rail_rx_bytes);
  }
}

}  // namespace railsd
