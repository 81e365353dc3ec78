// JobTable: how a job ends.
#include <spdlog/fmt/fmt.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/base/log_value.h"
#include "agent/job/jobs.h"

namespace railsd {
namespace {

// Finished reports that operators can see.
constexpr size_t kRecentReports = 64;
// How long an ABORT may take after the data connections have shown that its sender gave up.
constexpr absl::Duration kAbortPatience = absl::Seconds(5);
// Tombstones of one group that peers can make this agent keep.
constexpr size_t kMaxTombstones = 4096;

}  // namespace

bool JobTable::OnMessage(const Peer& from, Abort&& message) {
  Group* group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  const absl::StatusCode code = message.code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : message.code;
  NodeJob* job = Find(message.job);
  std::string reason = absl::StrCat(message.reason, " (said ", from.node, ")");
  // The sender has not been told whom it waited for.
  if (job != nullptr && !job->started && !job->told_unsubmitted && absl::IsDeadlineExceeded(absl::Status(code, ""))) {
    absl::StrAppend(&reason, "; ", peers_.self(), " waited ", WaitsFor(*job));
  }
  const absl::Status why(code, reason);
  // In such a group the others may have lost whoever aborts, and wait for this node.
  const bool relays = group->recovery.policy == RecoveryPolicy::kDegrade;
  const bool news = Tombstone(*group, message.job.seq, why);
  if (job == nullptr) {
    if (remote_ && from.up) outbox_.Send(from.node, Quiesced{message.job, 0});  // it may hold zones for this node
    if (news && relays) TellAborted(*group, message.job, why, from.index);
    return true;
  }
  AbortJob(*job, why, relays);
  return true;
}

void JobTable::TellAborted(const Group& group, JobKey key, const absl::Status& why, std::optional<PeerIndex> except) {
  for (PeerIndex peer : group.peers) {
    if (peer != except && peers_.Get(peer).up) outbox_.Send(peers_.Get(peer).node, AbortOf(key, why));
  }
}

bool JobTable::Tombstone(const Group& group, JobSeq seq, const absl::Status& why) {
  uint64_t taken_by_all = ~uint64_t{0};
  for (Rank rank : group.local_ranks) {
    const Group::Member& member = group.ranks[rank.value()];
    if (!member.gone) taken_by_all = std::min(taken_by_all, member.last_seq.value());
  }
  Ended& ended = ended_[group.epoch];
  // Every local rank has its outcome of those below: nobody can ask any more.
  ended.tombstones.erase(ended.tombstones.begin(), ended.tombstones.lower_bound(JobSeq(taken_by_all)));
  if (ended.tombstones.size() >= kMaxTombstones) return false;
  const bool may_come = seq.value() > taken_by_all && seq.value() <= LastExpected(group);
  return ended.tombstones.emplace(seq, why).second && may_come;
}

void JobTable::FailJob(NodeJob& job, absl::Status why, bool environment) {
  if (job.aborting()) return;
  const bool breaks = environment || job.running;
  AbortJob(job, why, true);
  Group* group = groups_.Find(job.key.epoch);
  // Jobs below this one may still end well.
  if (breaks && group != nullptr) groups_.Break(*group, JobSeq(job.key.seq.value() - 1), why);
}

void JobTable::AbortJob(NodeJob& job, absl::Status why, bool tell_peers) {
  if (job.aborting() || job.ended) return;
  job.failure = std::move(why);
  job.stop_copies->store(true, std::memory_order_relaxed);
  sprayer_.Drop(&job);
  if (job.outstanding_orders > 0) {
    for (RailHandle& rail : rails_) {
      RailCommand command;
      command.kind = RailCommand::Kind::kStopSends;
      command.job = job.tag;
      rail.Command(std::move(command));
    }
  }
  Group* const group = groups_.Find(job.key.epoch);
  const bool tells = tell_peers && group != nullptr;
  const bool replays = job.replayable && group != nullptr;
  for (auto& [peer, exchange] : job.peers) {
    // Its sender may not hear from whoever told this node, and has to know before rails say of what they drain from now
    // on that it is done with.
    const bool sends = exchange.zones != nullptr && !exchange.closing && exchange.ready_sent && !exchange.quiesced;
    if (sends && !tells && peers_.Get(peer).up) {
      // An ABORT does not say that the job can be replayed; the end of the epoch does, and comes first.
      if (replays) groups_.SendBroken(*group, peers_.Get(peer));
      outbox_.Send(peers_.Get(peer).node, AbortOf(job.key, job.failure));
    }
    if (remote_) {
      CloseWhenQuiesced(exchange);
    } else {
      CloseZones(exchange);
    }
  }
  SendQuiesced(job);
  if (group != nullptr) {
    Tombstone(*group, job.key.seq, job.failure);
    if (tell_peers) TellAborted(*group, job.key, job.failure);
  }
  Settle(job);
}

void JobTable::OnGroupBroken(const Group& group) {
  std::vector<NodeJob*> hit;
  for (const auto& [key, job] : jobs_) {
    if (key.epoch == group.epoch && key.seq > group.good_until) hit.push_back(job.get());
  }
  for (NodeJob* job : hit) {
    if (!job->aborting() && !job->ended) job->replayable = group.replayable;
    AbortJob(*job, group.why, false);
  }
}

void JobTable::ExpectAbort(NodeJob& job, const Peer& peer) {
  if (!job.closed_by.empty()) return;
  job.closed_by = peer.node;
  job.abort_expected_by = now_ + kAbortPatience;
  Sooner(job.abort_expected_by);
  sprayer_.Drop(&job);
}

void JobTable::AbortSession(SessionId session, const absl::Status& why) {
  std::vector<NodeJob*> hit;
  for (const auto& [key, job] : jobs_) {
    for (const auto& [rank, part] : job->parts) {
      if (part.submission.session == session && !part.terminal() && !job->aborting()) hit.push_back(job.get());
    }
  }
  for (NodeJob* job : hit) FailJob(*job, why, true);
}

bool JobTable::Quiescent(const NodeJob& job) const {
  if (job.outstanding_orders > 0 || job.copies_running > 0) return false;
  return std::all_of(job.peers.begin(), job.peers.end(), [](const auto& p) { return p.second.zones == nullptr; });
}

void JobTable::Settle(NodeJob& job) {
  if (job.ended || !Quiescent(job)) return;
  if (job.aborting()) {
    for (auto& [rank, part] : job.parts) {
      if (!part.terminal()) FinishPart(job, part, job.failure);
    }
  } else if (!job.started ||
             !std::all_of(job.parts.begin(), job.parts.end(), [](const auto& p) { return p.second.terminal(); })) {
    return;
  }
  job.ended = true;
  ReleaseOffers(job);
  ended_jobs_.push_back(job.key);
}

// One line for all ranks of this node.
void JobTable::LogEnd(const NodeJob& job) const {
  const RankPart* last = nullptr;     // the one that ended last
  const JobReport* failed = nullptr;  // of the first that failed
  uint64_t sent = 0, received = 0;
  absl::Duration elapsed;
  for (const auto& [rank, part] : job.parts) {
    if (last == nullptr || part.ended > last->ended) last = &part;
    if (failed == nullptr && !part.report.status.ok()) failed = &part.report;
    sent += part.report.bytes_sent;
    received += part.report.bytes_received;
    elapsed = std::max(elapsed, part.report.elapsed);
  }
  const spdlog::level::level_enum level = failed == nullptr ? spdlog::level::info : spdlog::level::warn;
  if (last == nullptr || !options_.log->should_log(level)) return;
  const JobReport& report = last->report;
  const auto rank_name = [](std::string* out, const auto& part) { absl::StrAppend(out, part.first.value()); };
  std::string line = fmt::format(
      "job_{} group={} epoch={:016x}.{} seq={} tag={} ranks={} bytes_sent={} bytes_received={} elapsed_seconds={:.6f} "
      "waiting_for_ranks_seconds={:.6f} waiting_for_peers_seconds={:.6f} sending_seconds={:.6f} "
      "receiving_seconds={:.6f} bound_seconds={:.6f} ratio_to_bound={:.3f}",
      failed == nullptr ? "done" : "failed", LogValue(report.group), job.key.epoch.boot.value(), job.key.epoch.counter,
      job.key.seq.value(), report.tag, absl::StrJoin(job.parts, ",", rank_name), sent, received,
      absl::ToDoubleSeconds(elapsed), absl::ToDoubleSeconds(report.waiting_for_ranks),
      absl::ToDoubleSeconds(report.waiting_for_peers), absl::ToDoubleSeconds(report.sending),
      absl::ToDoubleSeconds(report.receiving), absl::ToDoubleSeconds(report.node_bound), report.ratio_to_bound);
  if (failed != nullptr) {
    absl::StrAppend(&line, " rank=", failed->rank.value(), " code=", absl::StatusCodeToString(failed->status.code()),
                    " why=", LogValue(failed->status.message()));
  }
  options_.log->log(level, spdlog::string_view_t(line));
}

bool JobTable::Reap() {
  if (ended_jobs_.empty()) return false;
  for (const JobKey& key : ended_jobs_) {
    auto it = jobs_.find(key);
    if (it == jobs_.end()) continue;
    LogEnd(*it->second);
    KeepExplanation(*it->second);
    by_tag_.erase(it->second->tag);
    const uint64_t ranges = it->second->ranges;
    Discard(ranges, std::move(it->second));
    jobs_.erase(it);
  }
  ended_jobs_.clear();
  return true;
}

void JobTable::FinishIfDone(NodeJob& job, Rank rank) {
  RankPart& part = job.parts.at(rank);
  if (part.terminal() || job.aborting() || !job.running) return;
  if (part.sends_left_bytes > 0 || part.fenced_flows_left > 0 || part.copies_left > 0) return;
  if (part.receive_peers_left > 0) return;
  FinishPart(job, part, absl::OkStatus());
  Settle(job);
}

void JobTable::FinishIfDone(NodeJob& job) {
  for (auto& [rank, part] : job.parts) FinishIfDone(job, rank);
}

void JobTable::FillReport(const NodeJob& job, const RankPart& part, JobReport* out) const {
  JobReport& report = *out;
  report.elapsed = now_ - part.accepted;
  if (job.started) report.waiting_for_ranks = job.started_at - part.accepted;
  if (job.running) report.waiting_for_peers = job.running_at - job.started_at;
  if (job.first_chunk_at < absl::InfiniteFuture()) report.to_first_chunk = job.first_chunk_at - part.accepted;
  double speed = 0;
  report.drained_rails = 0;
  for (size_t r = 0; r < rails_.size(); ++r) {
    const bool used = job.rail_planned_bytes[r] + job.rail_tx_bytes[r] + job.rail_rx_bytes[r] > 0;
    if (!used && health_.Unwanted(RailIndex(static_cast<uint32_t>(r)))) {
      report.drained_rails |= uint64_t{1} << r;
    } else {
      speed += rails_[r].speed_bytes_per_s;
    }
  }
  if (job.out_bytes + job.in_bytes > 0 && speed > 0) {
    report.node_bound = absl::Seconds(NodeBoundSeconds(job.out_bytes, job.in_bytes, speed));
    if (job.started) report.ratio_to_bound = absl::FDivDuration(now_ - job.started_at, report.node_bound);
  }
  FillUse(job, speed, out);
  report.rail_tx_bytes = job.rail_tx_bytes;
  report.rail_rx_bytes = job.rail_rx_bytes;
  report.rail_planned_bytes = job.rail_planned_bytes;
}

void JobTable::FinishPart(NodeJob& job, RankPart& part, absl::Status status) {
  FillReport(job, part, &part.report);
  part.ended = now_;
  part.report.state = status.ok() ? JobState::kDone : JobState::kFailed;
  part.report.status = std::move(status);
  part.report.replayable = job.replayable && !part.report.status.ok();
  ++(part.report.status.ok() ? counters_.jobs_done : counters_.jobs_failed);
  --active_parts_;
  recent_.push_front(part.report);
  if (recent_.size() > kRecentReports) recent_.pop_back();
  Ended& ended = ended_[job.key.epoch];
  ended.reports[{job.key.seq, part.submission.rank}] = {part.submission.session, part.submission.digest, part.report,
                                                        job.in_bytes};
  Group* group = groups_.Find(job.key.epoch);
  if (group != nullptr && part.report.status.ok()) group->last_done = std::max(group->last_done, job.key.seq);
  const size_t kept =
      options_.finished_jobs_kept * (group == nullptr ? 1 : std::max<size_t>(1, group->local_ranks.size()));
  if (ended.reports.size() > kept) ended.reports.erase(ended.reports.begin());
  part.submission.Release();  // before anybody is told, and submits into the same memory
  if (observer_ != nullptr) observer_->OnJobFinished(part.submission.session, part.report);
  std::vector<Waiter> waiters = std::move(part.waiters);
  part.waiters.clear();
  for (Waiter& waiter : waiters) std::move(waiter.done)(part.report);
  Session& session = *sessions_.FindAny(part.submission.session);  // kept until its last part is terminal
  --session.active_parts;
  session.tenant->ReturnJob(part.report);
}

JobSeq JobTable::FinishedUntil(const Group& group, Rank rank) const {
  JobSeq until = group.ranks[rank.value()].last_seq;
  for (const auto& [key, job] : jobs_) {
    if (key.epoch != group.epoch) continue;
    auto part = job->parts.find(rank);
    if (part == job->parts.end() || part->second.terminal()) continue;
    until = std::min(until, JobSeq(key.seq.value() - 1));
  }
  return until;
}

bool JobTable::HasUnended(Epoch epoch, JobSeq until) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
    return job.first.epoch == epoch && job.first.seq <= until && job.second->HasUnendedPart();
  });
}

bool JobTable::HasUnendedAfter(Epoch epoch, JobSeq until) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
    return job.first.epoch == epoch && job.first.seq > until && job.second->HasUnendedPart();
  });
}

bool JobTable::HasJobs(Epoch epoch) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) { return job.first.epoch == epoch; });
}

void JobTable::Tick() {
  if (now_ < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  std::vector<std::pair<NodeJob*, absl::Status>> late;
  std::vector<std::pair<Waiter, JobReport>> answers;
  std::vector<NodeJob*> silent;
  for (auto& [key, job] : jobs_) {
    for (auto& [peer, exchange] : job->peers) {
      if (!job->aborting() || exchange.quiesced_by == absl::InfiniteFuture()) continue;
      if (exchange.quiesced_by > now_) {
        Sooner(exchange.quiesced_by);
      } else {
        CloseZones(exchange, /*writers_stopped=*/false);
      }
    }
    if (!job->started && !job->aborting() && !job->told_unsubmitted) {
      if (job->tell_unsubmitted_at <= now_) {
        TellUnsubmitted(*job);
      } else {
        Sooner(job->tell_unsubmitted_at);
      }
    }
    if (job->abort_expected_by <= now_ && !job->aborting()) silent.push_back(job.get());
    if (!job->aborting() && job->abort_expected_by > now_) Sooner(job->abort_expected_by);
    for (auto& [rank, part] : job->parts) {
      if (part.terminal()) continue;
      if (part.deadline <= now_ && !job->aborting()) {
        late.emplace_back(job.get(), DeadlineStatus(*job, part));
      } else if (!job->aborting()) {
        Sooner(part.deadline);
      }
      for (Waiter& waiter : part.waiters) {
        if (waiter.deadline > now_) {
          Sooner(waiter.deadline);
          continue;
        }
        FillReport(*job, part, &part.report);
        answers.emplace_back(std::move(waiter), part.report);
        waiter.done = nullptr;
      }
      std::erase_if(part.waiters, [](const Waiter& w) { return !w.done; });
    }
  }
  for (auto& [waiter, report] : answers) std::move(waiter.done)(std::move(report));
  for (auto& [job, why] : late) FailJob(*job, why, false);
  FailStranded();
  for (NodeJob* job : silent) {
    FailJob(*job,
            absl::AbortedError(absl::StrCat(job->closed_by, " closed its zones for job ", job->key.seq.value(),
                                            " early and did not say why")),
            true);
  }
}

void JobTable::FillCounters(AgentCounters* counters) const {
  *counters = counters_;
  counters->jobs_active = active_parts_;
  counters->stolen_chunks = sprayer_.stolen_chunks();
  counters->fence_slots = fence_slots_.taken();
}

std::vector<JobReport> JobTable::ActiveReports() const {
  std::vector<JobReport> reports;
  for (const auto& [key, job] : jobs_) {
    for (auto& [rank, part] : job->parts) {
      if (part.terminal()) continue;
      FillReport(*job, part, &part.report);
      reports.push_back(part.report);
    }
  }
  return reports;
}

std::vector<JobReport> JobTable::FinishedReports() const { return {recent_.begin(), recent_.end()}; }

}  // namespace railsd
