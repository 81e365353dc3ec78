// JobTable: the course of a job, as peers and rails tell it, and its end.
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/job_table.h"
#include "agent/jobs/local_copies.h"
#include "agent/jobs/patience.h"
#include "agent/jobs/reports.h"
#include "agent/jobs/waits.h"

namespace railsd {
namespace {

// How long an ABORT may take after the data connections have shown that its sender has aborted.
constexpr absl::Duration kAbortPatience = absl::Seconds(5);
// How long the sender of an aborted job may take to say that it has stopped.
constexpr absl::Duration kQuiescePatience = absl::Seconds(1);
}  // namespace

bool JobTable::OnMessage(const Peer& from, Abort&& message) {
  Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  NodeJob* const job = Find(jobs_, message.job);
  absl::Status why = SaidBy(from.node, message.code, message.reason, message.failed_ranks);
  // The sender does not know for which ranks it has waited: adds them.
  if (job != nullptr && !job->started && !job->told_unsubmitted && absl::IsDeadlineExceeded(why)) {
    const std::string waited = WaitsFor(*job, group, peers_, sessions_);
    why = WithFailedRanks(
        absl::DeadlineExceededError(absl::StrCat(why.message(), "; ", peers_.self(), " waited ", waited)),
        AwaitedRanks(*job, *group, sessions_));
  }
  const bool news = AddTombstone(*group, message.job, why);
  if (job == nullptr) {
    outbox_.Send(from.node, Quiesced{message.job, {}});
    // In such a group other members may have lost the aborting node, and may wait for this node.
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
  NodeJob* const job = Find(jobs_, message.job);
  if (job == nullptr) return groups_.Find(message.job.epoch) != nullptr;
  Exchange* const exchange = job->With(from.index);
  if (exchange == nullptr) return false;
  if (exchange->quiesced) return true;  // the first QUIESCED names the connections
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
  // If the receiver has everything, lost bytes have arrived, too; only their acknowledgement is missing.
  const bool arrived = report.kind == RailEvent::Kind::kCarried || report.kind == RailEvent::Kind::kFenceDone ||
                       (report.kind == RailEvent::Kind::kLost && sending.over() && !exchange.left_out);
  sending.OnReport(rail, report);
  if (arrived && report.length_bytes > 0) OnAcknowledged(exchange, rail, report.offset_bytes, report.length_bytes);
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
  RankPart* const* const parts = job.parts.begin();
  exchange.out.flows().ForEach(offset_bytes, length_bytes, [parts](const StreamFlow& flow, uint64_t bytes) {
    parts[flow.part]->report.bytes_sent += bytes;
  });
  job.last_acknowledged = exchange.times.last_acknowledged = now_;
  job.rail_tx_bytes[rail.value()] += length_bytes;
  sent_bytes_[rail.value()] += length_bytes;
  exchange.out.CountCarried(rail, length_bytes);
  job.tenant->CountSent(rail.value(), length_bytes);
  peers_.Get(exchange.peer).rails[rail.value()].tx_bytes += length_bytes;
}

void JobTable::CountArrived(Exchange& exchange) {
  if (!exchange.out.AnyArrived()) return;
  for (const Sending::Lost& lost : exchange.out.TakeArrived()) {
    OnAcknowledged(exchange, lost.rail, lost.offset_bytes, lost.length_bytes);
  }
}

void JobTable::OnZoneEvent(RailIndex rail, const RailEvent& event) {
  const Grants::Owner* const owner = grants_.OwnerOf(event.zone);
  if (owner == nullptr) return;
  NodeJob& job = *owner->job;
  Exchange& exchange = *owner->exchange;
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
      status = exchange.in.OnReceiveFault(rail, event);
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
    SendReady(job, exchange, RailsNow());
    MaybeRunning(job);
  }
  SettleZone(job, exchange);
  rehomer_.AnswerIfReady(exchange.peer);
  if (exchange.grant_waits) grants_.SendWaiting();
}

void JobTable::SettleZone(NodeJob& job, Exchange& exchange) {
  Peer& peer = peers_.Get(exchange.peer);
  const auto count = [&](size_t rail, uint64_t once, uint64_t again) {
    job.rail_rx_bytes[rail] += once;
    peer.rails[rail].rx_bytes += once;
    landed_again_[rail] += again;
  };
  if (!grants_.FreeIfQuiet(exchange, count)) return;
  if (exchange.in.eager()) {
    // Eager bytes were counted when they were copied.
  } else if (exchange.in.complete()) {
    RankPart* const* const parts = job.parts.begin();
    for (const StreamFlow& flow : exchange.in.flows()) parts[flow.part]->bytes_received += flow.bytes;
  } else {
    exchange.in.ForEachLanded([&](Rank rank, uint64_t bytes) { job.parts.Find(rank)->bytes_received += bytes; });
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
  const LocalCopy& copy = job.copies[result.index];
  if (result.status.ok()) counters_.local_copy_bytes += CountCopy(job, copy);
  if (job.aborting()) return Settle(job);
  if (!result.status.ok()) {
    return FailJob(job,
                   absl::Status(result.status.code(), absl::StrCat("copy from rank ", copy.source.value(), " to rank ",
                                                                   copy.destination.value(), " on ", peers_.self(),
                                                                   ": ", result.status.message())),
                   true);
  }
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
  if (peer.stranded_since < absl::InfiniteFuture()) Sooner(StrandedUntil(peer, nullptr, options_));
  for (auto& [key, job] : jobs_) {
    if (Exchange* const exchange = job->With(peer.index)) exchange->out.OnPathsChanged();
  }
}

void JobTable::OnPeerReachable(const Peer& peer) {
  for (auto& [key, job] : jobs_) {
    Exchange* const exchange = job->With(peer.index);
    const Group* const group = groups_.Find(key.epoch);
    if (exchange == nullptr || group == nullptr || !job->started || job->building || job->aborting()) continue;
    SendReady(*job, *exchange, RailsNow());
    PlanExchange(*job, *group, *exchange);
    exchange->out.OnPathsChanged();
  }
  rehomer_.Mark(peer.index);  // some may need keys
  rehomer_.AnswerIfReady(peer.index);
  grants_.SendWaiting();
}

void JobTable::OnPeerLost(const Peer& peer) {
  planner_.OnPeerLost(peer.index);
  rehomer_.OnPeerLost(peer.index);
  tallies_.OnPeerLost(peer.index);
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

// Every pair of nodes leaves its exchanges out without agreement with other nodes: a link is lost at both ends or at
// neither, and no third node depends on what the two exchange.
void JobTable::LeaveOut(NodeJob& job, const Group& group, Exchange& exchange) {
  DropExchange(job, group, exchange);
  if (!job.started || job.building) return;
  MaybeRunning(job);
  FinishIfDone(job);
}

void JobTable::DropExchange(NodeJob& job, const Group& group, Exchange& exchange) {
  exchange.left_out = true;
  EndWait(exchange);
  if (!job.started || job.building) return;  // Announce() leaves it out
  const bool through = exchange.compared && exchange.out.over() && exchange.in.done();
  for (uint32_t r = 0; !through && r < group.world_size(); ++r) {
    if (group.ranks[r].local || group.ranks[r].peer != exchange.peer) continue;
    for (RankPart* part : job.parts) {
      if (!part->terminal()) part->report.lost_ranks.push_back(Rank(r));
    }
  }
  job.inflow_bytes -= std::min(job.inflow_bytes, exchange.in.total_bytes());
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

void JobTable::TellAborted(const Group& group, JobKey key, const absl::Status& why, std::optional<PeerIndex> except) {
  for (PeerIndex peer : group.peers) {
    if (peer != except && peers_.Get(peer).up) outbox_.Send(peers_.Get(peer).node, AbortOf(key, why));
  }
}

bool JobTable::AddTombstone(const Group& group, JobKey key, const absl::Status& why) {
  uint64_t taken_by_all = ~uint64_t{0};
  for (Rank rank : group.local_ranks) {
    const Group::Member& member = group.ranks[rank.value()];
    if (!member.gone) taken_by_all = std::min(taken_by_all, member.last_seq.value());
  }
  if (key.seq.value() > admission_.LastExpected(group)) return false;  // no rank can be so far ahead
  const bool may_come = key.seq.value() > taken_by_all;
  return records_.AddTombstone(key, why, taken_by_all) && may_come;
}

void JobTable::FailJob(NodeJob& job, absl::Status why, bool environment) {
  if (job.aborting()) return;
  const bool breaks = environment || job.running;
  AbortJob(job, why);
  Group* const group = groups_.Find(job.key.epoch);
  // Jobs below this one may still end well.
  if (breaks && group != nullptr) groups_.Break(*group, JobSeq(job.key.seq.value() - 1), why);
}

// Tells every other member, since a member may have lost the node that aborted, or hear of it later. Members that may
// write into this node's memory answer when they have stopped.
void JobTable::AbortJob(NodeJob& job, absl::Status why, std::optional<PeerIndex> told_by) {
  if (job.aborting() || job.ended) return;
  job.failure = std::move(why);
  job.stop_copies.store(true, std::memory_order_relaxed);
  bool held = false;
  for (Exchange& exchange : job.exchanges) {
    EndWait(exchange);
    held = held || exchange.out.held();
    exchange.out.Stop();
  }
  for (size_t r = 0; held && r < rails_.size(); ++r) {
    rails_[r].Command({.kind = RailCommand::Kind::kStopSends, .job = job.tag});
  }
  if (const Group* group = groups_.Find(job.key.epoch)) {
    AddTombstone(*group, job.key, job.failure);
    TellAborted(*group, job.key, job.failure, told_by);
  }
  SayQuiesced(job);
  for (Exchange& exchange : job.exchanges) {
    if (!exchange.in.open()) continue;
    // A gate closes at once. Keys are revoked when the peer has stopped writing, at the latest after kQuiescePatience.
    const bool waits = context_.traits.binds_zones && exchange.in.granted() && !exchange.quiesced &&
                       !exchange.left_out && peers_.Get(exchange.peer).up;
    if (waits) {
      exchange.quiesced_by = now_ + kQuiescePatience;
      Sooner(exchange.quiesced_by);
    } else {
      CloseAborted(exchange);
    }
  }
  for (Exchange& exchange : job.exchanges) SettleZone(job, exchange);
  for (Exchange& exchange : job.exchanges) rehomer_.AnswerIfReady(exchange.peer);
  Settle(job);
}

void JobTable::CloseAborted(Exchange& exchange) {
  exchange.quiesced_by = absl::InfiniteFuture();
  exchange.in.Close(exchange.quiesced || !exchange.in.granted(), exchange.their_failed);
}

void JobTable::SayQuiesced(NodeJob& job) {
  for (Exchange& exchange : job.exchanges) {
    if (exchange.quiesced_said || exchange.out.held() || !peers_.Get(exchange.peer).up) continue;
    exchange.quiesced_said = true;
    outbox_.Send(peers_.Get(exchange.peer).node, Quiesced{job.key, exchange.out.failed()});
  }
}

void JobTable::OnGroupBroken(const Group& group) {
  std::vector<NodeJob*> hit;
  for (const auto& [key, job] : jobs_) {
    if (key.epoch == group.epoch && key.seq > group.good_until) hit.push_back(job.get());
  }
  for (NodeJob* job : hit) {
    if (!job->aborting() && !job->ended) job->replayable = group.replayable;
    AbortJob(*job, group.why);
  }
}

void JobTable::ExpectAbort(NodeJob& job, Exchange& exchange) {
  if (!job.closed_by.empty()) return;
  job.closed_by = peers_.Get(exchange.peer).node;
  job.abort_expected_by = now_ + kAbortPatience;
  Sooner(job.abort_expected_by);
  // In a group that goes on without lost nodes, the peer may have left this node out: then only this exchange stops.
  const Group* const group = groups_.Find(job.key.epoch);
  if (group != nullptr && group->recovery.policy == RecoveryPolicy::kDegrade) return exchange.out.Stop();
  for (Exchange& other : job.exchanges) other.out.Stop();
}

void JobTable::AbortSession(SessionId session, const absl::Status& why) {
  std::vector<NodeJob*> hit;
  for (const auto& [key, job] : jobs_) {
    for (const RankPart* part : job->parts) {
      if (part->submission.session == session && !part->terminal() && !job->aborting()) hit.push_back(job.get());
    }
  }
  for (NodeJob* job : hit) FailJob(*job, why, true);
}

void JobTable::FinishIfDone(NodeJob& job) {
  if (!job.Done() || job.aborting() || job.ended) return;
  for (RankPart* part : job.parts) {
    if (!part->terminal()) FinishPart(job, *part, absl::OkStatus());
  }
  Settle(job);
}

void JobTable::FinishPart(NodeJob& job, RankPart& part, absl::Status status) {
  FillReport(job, part, context_, health_, now_, &part.report);
  part.report.ended = now_;
  part.report.state = status.ok() ? JobState::kDone : JobState::kFailed;
  part.report.status = std::move(status);
  part.report.replayable = job.replayable && !part.report.status.ok();
  counters_.jobs_done += part.report.status.ok();
  counters_.jobs_failed += part.report.failed();
  --active_parts_;
  Group* const group = groups_.Find(job.key.epoch);
  if (group != nullptr && part.report.status.ok()) group->last_done = std::max(group->last_done, job.key.seq);
  records_.Add(job, part, options_.finished_jobs_kept);
  part.submission.Release();  // before the trainer is told, who may then use the memory for another job
  if (observer_ != nullptr) observer_->OnJobFinished(part.submission.session, part.report);
  auto waiters = std::exchange(part.waiters, {});
  for (Waiter& waiter : waiters) std::move(waiter.done)(part.report);
  Session& session = *sessions_.FindAny(part.submission.session);  // kept until its last part is terminal
  --session.active_parts;
  session.tenant->ReturnJob(part.report);
}

void JobTable::Settle(NodeJob& job) {
  if (job.ended || !job.Quiescent()) return;
  if (job.aborting()) {
    for (RankPart* part : job.parts) {
      if (!part->terminal()) FinishPart(job, *part, job.failure);
    }
  } else if (!job.started || job.HasUnendedPart()) {
    return;
  }
  job.ended = true;
  held_readys_.Release(&job);
  if (!job.aborting()) Sooner(tallies_.Add(job));
  ended_jobs_.push_back(job.key);
}

bool JobTable::Reap() {
  if (ended_jobs_.empty()) return false;
  for (const JobKey& key : ended_jobs_) {
    const auto it = jobs_.find(key);
    if (it == jobs_.end()) continue;
    LogEnd(*it->second, options_);
    records_.Keep(*it->second, ExplanationOf(*it->second, context_, health_, now_));
    by_tag_.erase(it->second->tag);
    const uint64_t ranges = it->second->ranges;
    Discard(ranges, std::move(it->second));
    jobs_.erase(it);
  }
  ended_jobs_.clear();
  return true;
}

}  // namespace railsd
