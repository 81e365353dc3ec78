// JobTable: what peers and rails say.
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/job_table.h"
#include "agent/jobs/reports.h"
#include "agent/jobs/waits.h"

namespace railsd {
namespace {

uint64_t HeldBytesOf(const Ready& ready) {
  uint64_t bytes = (ready.sends.size() + ready.receives.size()) * sizeof(Ready::Flow);
  if (!ready.grant.has_value()) return bytes;
  bytes += ready.grant->ranges.size() * sizeof(Grant::Range);
  for (const RailKeys& rail : ready.grant->keys) bytes += rail.keys.size() * sizeof(uint32_t);
  return bytes;
}

}  // namespace

bool JobTable::OnMessage(const Peer& from, Ready&& message) {
  Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  peers_.Get(from.index).TakePlanned(message.planned_bytes);
  for (Tally& tally : std::exchange(message.tallies, {})) OnMessage(from, std::move(tally));
  // Its sender may not hear of the end from the node that caused it: the two may have lost each other, or not met yet.
  if (group->broken && message.job.seq > group->good_until) {
    groups_.SendBroken(*group, from);
    outbox_.Send(from.node, AbortOf(message.job, group->why));
    outbox_.Send(from.node, Quiesced{message.job, {}});
    return true;
  }
  const uint64_t seq = message.job.seq.value(), last = group->LastTaken().value();
  NodeJob* job = Find(message.job);
  const absl::Status* const tombstone = records_.Tombstone(message.job);
  // A job that is not there and was taken has ended without this READY: it was aborted, and why may be forgotten.
  if (job == nullptr && (tombstone != nullptr || seq <= last)) {
    outbox_.Send(from.node,
                 AbortOf(message.job, tombstone != nullptr ? *tombstone
                                                           : absl::AbortedError(absl::StrCat(
                                                                 "job ", seq, " has ended on ", peers_.self()))));
    outbox_.Send(from.node, Quiesced{message.job, {}});
    return true;
  }
  if (job == nullptr) job = &FindOrCreate(*group, message.job);
  if (seq > LastExpected(*group)) {
    FailJob(*job,
            options_.refused->Refuse(Limit::kJobsPerGroup, absl::StrCat(from.node, " submits job ", seq, ", ",
                                                                        peers_.self(), " is at ", last)),
            false);
    return true;
  }
  Exchange* const exchange = job->With(from.index);
  if (exchange == nullptr || exchange->ready.has_value() || exchange->compared) return false;
  if (const absl::Status taken = TakeReady(*job, *group, *exchange, message); !taken.ok()) {
    FailJob(*job, taken, false);
    return false;
  }
  exchange->times.ready_received = now_;
  exchange->ready = std::move(message);
  if (job->started && !job->building && !job->aborting()) Compare(*job, *group, *exchange);
  return true;
}

absl::Status JobTable::TakeReady(NodeJob& job, const Group& group, Exchange& exchange, const Ready& ready) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (absl::Status s = CheckReadyFlows(ready, group, exchange.peer, peer); !s.ok()) return s;
  if (job.started || job.aborting()) return absl::OkStatus();
  const uint64_t bytes = HeldBytesOf(ready);
  uint64_t& held = held_readys_[exchange.peer];
  if (held > 0 && held + bytes > kMaxHeldReadyBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "READY of ", peer.node, " for job ", job.key.seq.value(), ": ", held, " bytes of its READYs wait for ranks of ",
        peers_.self(), " to submit; ", kMaxHeldReadyBytes, " may; submit fewer jobs ahead"));
  }
  held += bytes;
  exchange.held_bytes = bytes;
  return absl::OkStatus();
}

void JobTable::ReleaseReadys(NodeJob& job) {
  for (auto& [peer, exchange] : job.exchanges) {
    if (exchange.held_bytes > 0) held_readys_[peer] -= std::exchange(exchange.held_bytes, 0);
  }
}

bool JobTable::OnMessage(const Peer& from, LateGrant&& message) {
  NodeJob* const job = Find(message.job);
  Exchange* const exchange = job == nullptr ? nullptr : job->With(from.index);
  // A grant for a job that has ended is ignored: QUIESCED has been said, or answers the ABORT.
  if (exchange == nullptr || !exchange->compared || exchange->left_out || job->aborting()) return false;
  TakeGrant(*job, *exchange, message.grant);
  return true;
}

bool JobTable::OnMessage(const Peer& from, Tally&& message) {
  const Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr || group->RanksOn(from.index) == 0) return false;
  return records_.TakeTally(message, from.index, Find(message.job));
}

void JobTable::TellUnsubmitted(NodeJob& job) {
  const Group* const group = groups_.Find(job.key.epoch);
  if (group == nullptr || job.started || job.aborting()) return;
  job.told_unsubmitted = true;
  const Unsubmitted message{job.key, UnsubmittedHere(job, *group, sessions_)};
  for (PeerIndex peer : group->peers) {
    if (peers_.Get(peer).up && !group->Lost(peer)) outbox_.Send(peers_.Get(peer).node, message);
  }
}

bool JobTable::OnMessage(const Peer& from, Unsubmitted&& message) {
  const Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  NodeJob* const job = Find(message.job);
  if (job == nullptr) return true;  // nobody waits here
  Exchange* const exchange = job->With(from.index);
  if (exchange == nullptr) return false;
  for (const Unsubmitted::Member& member : message.members) {
    if (member.rank.value() >= group->world_size() || group->ranks[member.rank.value()].local ||
        group->ranks[member.rank.value()].peer != from.index) {
      return false;
    }
  }
  exchange->unsubmitted = std::move(message.members);
  return true;
}

bool JobTable::OnMessage(const Peer& from, Abort&& message) {
  Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  const absl::StatusCode code = message.code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : message.code;
  NodeJob* const job = Find(message.job);
  std::string reason = absl::StrCat(message.reason, " (said ", from.node, ")");
  // The sender has not been told whom it waited for.
  if (job != nullptr && !job->started && !job->told_unsubmitted && absl::IsDeadlineExceeded(absl::Status(code, ""))) {
    absl::StrAppend(&reason, "; ", peers_.self(), " waited ", WaitsFor(*job, group, peers_, sessions_));
  }
  const absl::Status why(code, reason);
  const bool news = AddTombstone(*group, message.job, why);
  if (job == nullptr) {
    outbox_.Send(from.node, Quiesced{message.job, {}});
    // In such a group the others may have lost whoever aborts, and wait for this node.
    if (news && group->recovery.policy == RecoveryPolicy::kDegrade) TellAborted(*group, message.job, why, from.index);
    return true;
  }
  if (job->ended) {
    outbox_.Send(from.node, Quiesced{message.job, {}});
    return true;
  }
  AbortJob(*job, why, from.index);
  return true;
}

bool JobTable::OnMessage(const Peer& from, Quiesced&& message) {
  NodeJob* const job = Find(message.job);
  if (job == nullptr) return groups_.Find(message.job.epoch) != nullptr;
  Exchange* const exchange = job->With(from.index);
  if (exchange == nullptr) return false;
  if (exchange->quiesced) return true;  // the first one names the connections
  exchange->quiesced = true;
  exchange->their_failed = std::move(message.failed);
  if (exchange->quiesced_by == absl::InfiniteFuture()) return true;
  CloseAborted(*exchange);
  SettleZone(*job, *exchange);
  return true;
}

void JobTable::OnRailEvent(RailIndex rail, const RailEvent& event) {
  switch (event.kind) {
    case RailEvent::Kind::kCarried:
    case RailEvent::Kind::kFenceDone:
    case RailEvent::Kind::kReturned:
    case RailEvent::Kind::kReleased:
    case RailEvent::Kind::kLost:
    case RailEvent::Kind::kShareEnded:
    case RailEvent::Kind::kSettled:
    case RailEvent::Kind::kSendFault:
      return OnSendReport(rail, event);
    case RailEvent::Kind::kReceiveFault:
    case RailEvent::Kind::kZoneOpened:
    case RailEvent::Kind::kZoneClosed:
    case RailEvent::Kind::kZoneQuiet:
    case RailEvent::Kind::kFence:
      return OnZoneEvent(rail, event);
    default:
      return;  // the engine's
  }
}

void JobTable::OnSendReport(RailIndex rail, const RailEvent& report) {
  Sending& sending = *report.stream->sending;
  NodeJob& job = *sending.job();
  Exchange& exchange = *job.With(sending.peer());
  // The receiver has everything: whatever became of the acknowledgement, the bytes have arrived.
  const bool arrived = report.kind == RailEvent::Kind::kCarried ||
                       (report.kind == RailEvent::Kind::kLost && sending.over() && !exchange.left_out);
  sending.OnReport(rail, report);
  if (arrived) OnAcknowledged(exchange, rail, report.offset_bytes, report.length_bytes);
  if (report.kind == RailEvent::Kind::kCarried) return;
  CountArrived(exchange);
  if (sending.InDoubt()) rehomer_.Mark(exchange.peer);
  if (job.aborting()) {
    SayQuiesced(job);
    return Settle(job);
  }
  if (report.kind == RailEvent::Kind::kSendFault && !sending.over() && !exchange.left_out) {
    return OnSendFault(job, exchange, rail, report);
  }
  if (exchange.done()) FinishIfDone(job);
}

void JobTable::OnSendFault(NodeJob& job, Exchange& exchange, RailIndex rail, const RailEvent& fault) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (fault.result == SendResult::kZoneClosed) return ExpectAbort(job, exchange);
  const std::string where = absl::StrCat("rail ", rail.value(), " to ", peer.node);
  if (fault.result == SendResult::kStopped) {
    return FailJob(job, absl::UnavailableError(absl::StrCat("the endpoint of ", where, " was given up")), true);
  }
  const Rank rank = fault.length_bytes > 0 ? exchange.out.flows().At(fault.offset_bytes).source : Rank(0);
  FailJob(job,
          absl::FailedPreconditionError(
              absl::StrCat("a page of a send range of rank ", rank.value(), " cannot be read (", where, ")")),
          true);
}

void JobTable::OnAcknowledged(Exchange& exchange, RailIndex rail, uint64_t offset_bytes, uint64_t length_bytes) {
  NodeJob& job = *exchange.out.job();
  exchange.out.flows().ForEach(offset_bytes, length_bytes, [&](const StreamFlow& flow, uint64_t bytes) {
    job.parts.at(flow.source).report.bytes_sent += bytes;
  });
  job.last_acknowledged = exchange.times.last_acknowledged = now_;
  job.rail_tx_bytes[rail.value()] += length_bytes;
  sent_bytes_[rail.value()] += length_bytes;
  exchange.out.CountCarried(rail, length_bytes);
  job.tenant->CountSent(rail.value(), length_bytes);
  peers_.Get(exchange.peer).rails[rail.value()].tx_bytes += length_bytes;
}

void JobTable::CountArrived(Exchange& exchange) {
  for (const Sending::Lost& lost : exchange.out.TakeArrived()) {
    OnAcknowledged(exchange, lost.rail, lost.offset_bytes, lost.length_bytes);
  }
}

void JobTable::OnZoneEvent(RailIndex rail, const RailEvent& event) {
  const ZoneOwner owner = zone_owners_[event.zone.slot];
  if (owner.job == nullptr || owner.generation != event.zone.generation) return;
  NodeJob& job = *owner.job;
  Exchange& exchange = *owner.exchange;
  absl::Status status;
  switch (event.kind) {
    case RailEvent::Kind::kZoneOpened:
      status = exchange.in.OnZoneOpened(rail, event);
      break;
    case RailEvent::Kind::kZoneClosed:
      exchange.in.OnZoneClosed(rail);
      break;
    case RailEvent::Kind::kZoneQuiet:
      exchange.in.OnZoneQuiet();
      break;
    case RailEvent::Kind::kFence:
      if (exchange.left_out || job.aborting()) return;
      status = exchange.in.OnFence(event);
      if (job.recorder != nullptr) job.recorder->OnReceived(rail, now_);
      job.last_received = exchange.times.last_received = now_;
      break;
    default:
      if (!exchange.in.open()) return;
      status = absl::FailedPreconditionError(
          absl::StrCat("a page of a receive range on ", peers_.self(), " cannot be written (rank ",
                       exchange.in.flows().At(event.offset_bytes).destination.value(), ")"));
  }
  if (!status.ok() && !job.aborting() && !exchange.left_out) {
    if (absl::IsInternal(status)) {
      options_.log->warn("protocol_error rail={} peer={} why=\"fences that contradict each other\"", rail.value(),
                         peers_.Get(exchange.peer).node);
    }
    return FailJob(job, absl::Status(status.code(), absl::StrCat("job ", job.key.seq.value(), ": ", status.message())),
                   true);
  }
  if (exchange.ready_waits && !exchange.in.IsBinding() && !job.aborting()) {
    SendReady(job, exchange);
    MaybeRunning(job);
  }
  SettleZone(job, exchange);
  rehomer_.AnswerIfReady(exchange.peer);
  if (exchange.grant_waits) SendLateGrants();
}

void JobTable::SettleZone(NodeJob& job, Exchange& exchange) {
  if (exchange.in.quiet()) return;
  const ZoneRef ref = exchange.in.ref();
  if (!exchange.in.FreeIfQuiet()) return;
  room_freed_ = true;
  zone_owners_[ref.slot] = {};
  ingress_left_bytes_ -= exchange.in.total_bytes();
  const std::vector<uint64_t>& landed = exchange.in.landed_by_rail();
  if (exchange.in.complete()) {
    for (const StreamFlow& flow : exchange.in.flows().all()) {
      job.parts.at(flow.destination).bytes_received += flow.bytes;
    }
  } else {
    exchange.in.ForEachLanded([&](Rank rank, uint64_t bytes) { job.parts.at(rank).bytes_received += bytes; });
  }
  for (size_t r = 0; r < rails_.size(); ++r) {
    job.rail_rx_bytes[r] += landed[r];
    landed_again_[r] += exchange.in.landed_again()[r];
    peers_.Get(exchange.peer).rails[r].rx_bytes += landed[r];
  }
  if (job.aborting()) return Settle(job);
  if (exchange.done()) FinishIfDone(job);
}

void JobTable::OnCopyResult(const CopyResult& result) {
  const auto it = by_tag_.find(result.job);
  if (it == by_tag_.end()) return;
  NodeJob& job = *it->second;
  if (result.index == CopyResult::kChore) {
    const std::shared_ptr<StreamBuilder> builder = std::move(builders_.extract(job.tag).mapped());
    job.building = false;
    if (job.aborting()) return Settle(job);
    builder->Give(&job);
    if (const Group* group = groups_.Find(job.key.epoch)) Announce(job, *group);
    return;
  }
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
  job.parts.at(copy.destination).bytes_received += bytes;
  FinishIfDone(job);
}

void JobTable::OnRailUp(RailIndex rail, const Peer& peer, uint64_t connection) {
  for (auto& [key, job] : jobs_) {
    Exchange* const exchange = job->With(peer.index);
    if (exchange != nullptr && exchange->in.open()) exchange->in.OnRailUp(rail, connection);
  }
}

void JobTable::OnRailLost(RailIndex rail, const Peer& peer, uint64_t connection) {
  for (auto& [key, job] : jobs_) {
    Exchange* const exchange = job->With(peer.index);
    if (exchange == nullptr) continue;
    exchange->out.OnRailDown(rail, connection);
    if (exchange->in.open()) exchange->in.OnRailDown(rail, connection);
  }
  rehomer_.Mark(peer.index);
  OnRailUnusable(peer);
}

void JobTable::OnRailUnusable(const Peer& peer) {
  if (peer.stranded_since < absl::InfiniteFuture()) Sooner(StrandedUntil(peer));
  for (auto& [key, job] : jobs_) {
    if (Exchange* const exchange = job->With(peer.index)) exchange->out.OnPathsChanged();
  }
}

void JobTable::OnPeerReachable(const Peer& peer) {
  for (auto& [key, job] : jobs_) {
    Exchange* const exchange = job->With(peer.index);
    const Group* const group = groups_.Find(key.epoch);
    if (exchange == nullptr || group == nullptr || !job->started || job->building || job->aborting()) continue;
    SendReady(*job, *exchange);
    PlanExchange(*job, *group, *exchange);
    exchange->out.OnPathsChanged();
  }
  rehomer_.Mark(peer.index);  // some may need keys
  rehomer_.AnswerIfReady(peer.index);
  SendLateGrants();
}

void JobTable::OnPeerLost(const Peer& peer) {
  ledger_.Forget(peer.index);
  rehomer_.OnPeerLost(peer.index);
  tallies_.erase(peer.index);
  for (auto& [key, job] : jobs_) {
    Exchange* const exchange = job->With(peer.index);
    if (exchange == nullptr || exchange->quiesced_by == absl::InfiniteFuture()) continue;
    exchange->quiesced_by = absl::InfiniteFuture();
    exchange->in.Close(/*writers_stopped=*/false);
    SettleZone(*job, *exchange);
  }
}

void JobTable::GoOnWithout(const Peer& peer) {
  std::vector<std::pair<NodeJob*, const Group*>> hit;
  for (const auto& [key, job] : jobs_) {
    const Group* const group = groups_.Find(key.epoch);
    if (group != nullptr && group->Lost(peer.index) && !job->aborting() && !job->ended)
      hit.emplace_back(job.get(), group);
  }
  for (auto& [job, group] : hit) {
    Exchange* const exchange = job->With(peer.index);
    if (exchange != nullptr && !exchange->left_out) LeaveOut(*job, *group, *exchange);
  }
}

// A link is lost at both of its ends or at none, and what two nodes exchange concerns no third one: every pair of nodes
// decides for itself, and needs no agreement with the others.
void JobTable::LeaveOut(NodeJob& job, const Group& group, Exchange& exchange) {
  DropExchange(job, group, exchange);
  if (!job.started || job.building) return;
  MaybeRunning(job);
  FinishIfDone(job);
}

void JobTable::DropExchange(NodeJob& job, const Group& group, Exchange& exchange) {
  exchange.left_out = true;
  if (!job.started || job.building) return;  // Announce() leaves it out
  const bool through = exchange.compared && exchange.out.over() && exchange.in.done();
  for (uint32_t r = 0; !through && r < group.world_size(); ++r) {
    if (group.ranks[r].local || group.ranks[r].peer != exchange.peer) continue;
    for (auto& [rank, part] : job.parts) {
      if (!part.terminal()) part.report.lost_ranks.push_back(Rank(r));
    }
  }
  // Rails give back what they have: they have been told that the peer is gone.
  exchange.out.GiveUp();
  exchange.in.GiveUp();
  exchange.in.Close(/*writers_stopped=*/false);
  if (job.closed_by == peers_.Get(exchange.peer).node) {  // the peer has left this node out, too
    job.closed_by.clear();
    job.abort_expected_by = absl::InfiniteFuture();
  }
  SettleZone(job, exchange);
}

}  // namespace railsd
