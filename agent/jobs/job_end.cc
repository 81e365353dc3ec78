// JobTable: how a job ends.
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/job_table.h"
#include "agent/jobs/reports.h"
#include "agent/jobs/waits.h"

namespace railsd {
namespace {

// How long an ABORT may take after the data connections have shown that its sender gave up.
constexpr absl::Duration kAbortPatience = absl::Seconds(5);
// How long the sender of an aborted job may take to say that it has stopped.
constexpr absl::Duration kQuiescePatience = absl::Seconds(1);
// Where the peer is cut off altogether its link falls silent for `peer_lost`, too, and says more of why: it has the
// first word.
constexpr absl::Duration kControlFirst = absl::Seconds(1);
// Rails flap. With more rounds than this in a row, and nothing arrived in the time in which a peer is given up, it is
// the receiver that takes nothing: a zone that it does not have, or connections that it ends each time.
constexpr uint32_t kMaxFruitlessRounds = 4;
// A tally goes alone when no READY has carried it for so long, or when so many wait.
constexpr absl::Duration kTallyPatience = absl::Milliseconds(10);

}  // namespace

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
  if (key.seq.value() > LastExpected(group)) return false;  // no rank can be so far ahead
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

// Every other member hears of it, since it may have lost whoever aborted, or hear of that later; and whoever may write
// into this node's memory says when it has stopped.
void JobTable::AbortJob(NodeJob& job, absl::Status why, std::optional<PeerIndex> told_by) {
  if (job.aborting() || job.ended) return;
  job.failure = std::move(why);
  job.stop_copies->store(true, std::memory_order_relaxed);
  bool held = false;
  for (auto& [peer, exchange] : job.exchanges) {
    held = held || exchange.out.held();
    exchange.out.Stop();
  }
  for (size_t r = 0; held && r < rails_.size(); ++r) {
    RailCommand command;
    command.kind = RailCommand::Kind::kStopSends;
    command.job = job.tag;
    rails_[r].Command(std::move(command));
  }
  if (const Group* group = groups_.Find(job.key.epoch)) {
    AddTombstone(*group, job.key, job.failure);
    TellAborted(*group, job.key, job.failure, told_by);
  }
  SayQuiesced(job);
  for (auto& [peer, exchange] : job.exchanges) {
    if (!exchange.in.open()) continue;
    // A gate closes at once; keys are taken back when nobody writes.
    const bool waits = context_.traits.binds_zones && exchange.in.granted() && !exchange.quiesced &&
                       !exchange.left_out && peers_.Get(peer).up;
    if (waits) {
      exchange.quiesced_by = now_ + kQuiescePatience;
      Sooner(exchange.quiesced_by);
    } else {
      CloseAborted(exchange);
    }
  }
  for (auto& [peer, exchange] : job.exchanges) SettleZone(job, exchange);
  for (auto& [peer, exchange] : job.exchanges) rehomer_.AnswerIfReady(peer);
  Settle(job);
}

void JobTable::CloseAborted(Exchange& exchange) {
  exchange.quiesced_by = absl::InfiniteFuture();
  exchange.in.Close(exchange.quiesced || !exchange.in.granted(), exchange.their_failed);
}

void JobTable::SayQuiesced(NodeJob& job) {
  for (auto& [peer, exchange] : job.exchanges) {
    if (exchange.quiesced_said || exchange.out.held() || !peers_.Get(peer).up) continue;
    exchange.quiesced_said = true;
    outbox_.Send(peers_.Get(peer).node, Quiesced{job.key, exchange.out.failed()});
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
  // Where groups go on without a node, the peer may have left this one out: that concerns nobody else.
  const Group* const group = groups_.Find(job.key.epoch);
  if (group != nullptr && group->recovery.policy == RecoveryPolicy::kDegrade) return exchange.out.Stop();
  for (auto& [index, other] : job.exchanges) other.out.Stop();
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

absl::Time JobTable::StrandedUntil(const Peer& peer, absl::Duration patience) const {
  return peer.stranded_since + std::max(options_.peer_lost, patience) + kControlFirst;
}

void JobTable::FailStranded() {
  struct Hit {
    NodeJob* job;
    const Peer* peer;
    absl::Duration waited;
  };
  std::vector<Hit> hit;
  for (auto& [key, job] : jobs_) {
    if (!job->started || job->aborting()) continue;
    const Group* const group = groups_.Find(key.epoch);
    const absl::Duration patience = group == nullptr ? absl::ZeroDuration() : group->recovery.wait_limit;
    for (auto& [index, exchange] : job->exchanges) {
      const Peer& peer = peers_.Get(index);
      const bool waits = !exchange.left_out && peer.up && peer.stranded_since < absl::InfiniteFuture() &&
                         !exchange.out.over() && (peer.Connected() & exchange.out.Usable()) == 0;
      if (!waits) continue;
      const absl::Time until = StrandedUntil(peer, patience);
      if (until > now_) {
        Sooner(until);
        continue;
      }
      hit.push_back({job.get(), &peer, std::max(options_.peer_lost, patience)});
      break;
    }
  }
  for (const auto& [job, peer, waited] : hit) {
    FailJob(*job,
            absl::UnavailableError(absl::StrCat("no rail of ", peers_.self(), " has reached ", peer->node, " for ",
                                                absl::FormatDuration(waited), " (job ", job->key.seq.value(), ")")),
            true);
  }
}

// Looks only when a round begins: where the network is slow, or a rail to it is waited for, none does.
bool JobTable::FailIfFruitless(NodeJob& job, Exchange& exchange) {
  const Group* const group = groups_.Find(job.key.epoch);
  const absl::Duration limit =
      std::max(options_.peer_lost, group == nullptr ? absl::ZeroDuration() : group->recovery.wait_limit);
  if (exchange.out.fruitless_rounds() < kMaxFruitlessRounds ||
      now_ < exchange.out.fruitless_since() + limit + kControlFirst) {
    return false;
  }
  FailJob(job,
          absl::UnavailableError(absl::StrCat("node ", peers_.Get(exchange.peer).node, " has taken nothing of job ",
                                              job.key.seq.value(), " for ", absl::FormatDuration(limit),
                                              ": the rails of ", peers_.self(), " failed under it ",
                                              exchange.out.fruitless_rounds(), " times")),
          true);
  return true;
}

void JobTable::FinishIfDone(NodeJob& job) {
  if (job.aborting() || job.ended || !job.started || job.building || !job.Done()) return;
  for (auto& [rank, part] : job.parts) {
    if (!part.terminal()) FinishPart(job, part, absl::OkStatus());
  }
  Settle(job);
}

void JobTable::FinishPart(NodeJob& job, RankPart& part, absl::Status status) {
  FillReport(job, part, context_, health_, now_, &part.report);
  part.ended = now_;
  part.report.state = status.ok() ? JobState::kDone : JobState::kFailed;
  part.report.status = std::move(status);
  part.report.replayable = job.replayable && !part.report.status.ok();
  ++(part.report.status.ok() ? counters_.jobs_done : counters_.jobs_failed);
  --active_parts_;
  Group* const group = groups_.Find(job.key.epoch);
  if (group != nullptr && part.report.status.ok()) group->last_done = std::max(group->last_done, job.key.seq);
  records_.Add(job, part,
               options_.finished_jobs_kept * (group == nullptr ? 1 : std::max<size_t>(1, group->local_ranks.size())));
  part.submission.Release();  // before anybody is told, and submits into the same memory
  if (observer_ != nullptr) observer_->OnJobFinished(part.submission.session, part.report);
  std::vector<Waiter> waiters = std::move(part.waiters);
  part.waiters.clear();
  for (Waiter& waiter : waiters) std::move(waiter.done)(part.report);
  Session& session = *sessions_.FindAny(part.submission.session);  // kept until its last part is terminal
  --session.active_parts;
  session.tenant->ReturnJob(part.report);
}

void JobTable::Settle(NodeJob& job) {
  if (job.ended || !job.Quiescent()) return;
  if (job.aborting()) {
    for (auto& [rank, part] : job.parts) {
      if (!part.terminal()) FinishPart(job, part, job.failure);
    }
  } else if (!job.started || job.HasUnendedPart()) {
    return;
  }
  job.ended = true;
  ReleaseReadys(job);
  if (!job.aborting()) AddTallies(job);
  ended_jobs_.push_back(job.key);
}

void JobTable::AddTallies(NodeJob& job) {
  if (!context_.traits.binds_zones) return;  // the receiver's rails have seen the bytes
  for (auto& [peer, exchange] : job.exchanges) {
    if (exchange.out.total_bytes() == 0 || exchange.left_out || !peers_.Get(peer).up) continue;
    Tally tally{job.key, {}};
    for (size_t r = 0; r < rails_.size(); ++r) tally.bytes.push_back(exchange.out.carried_bytes(r));
    Tallies& tallies = tallies_[peer];
    if (tallies.waiting.size() >= Ready::kMaxTallies) continue;
    tallies.waiting.push_back(std::move(tally));
    tallies.since = std::min(tallies.since, now_);
    Sooner(tallies.since + kTallyPatience);
  }
}

void JobTable::SendOldTallies() {
  for (auto& [peer, tallies] : tallies_) {
    if (tallies.since + kTallyPatience > now_) {
      if (!tallies.waiting.empty()) Sooner(tallies.since + kTallyPatience);
      continue;
    }
    for (Tally& tally : std::exchange(tallies, {}).waiting) outbox_.Send(peers_.Get(peer).node, std::move(tally));
  }
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

void JobTable::Tick() {
  if (now_ < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  std::vector<std::pair<NodeJob*, absl::Status>> late;
  std::vector<std::pair<Waiter, JobReport>> answers;
  std::vector<NodeJob*> silent;
  for (auto& [key, job] : jobs_) {
    for (auto& [peer, exchange] : job->exchanges) {
      if (exchange.quiesced_by == absl::InfiniteFuture()) continue;
      if (exchange.quiesced_by > now_) {
        Sooner(exchange.quiesced_by);
      } else {
        CloseAborted(exchange);
        SettleZone(*job, exchange);
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
      const bool is_late = part.deadline <= now_ && !job->aborting();
      if (!job->aborting() && !is_late) Sooner(part.deadline);
      const bool wait_ends = std::any_of(part.waiters.begin(), part.waiters.end(),
                                         [this](const Waiter& waiter) { return waiter.deadline <= now_; });
      if (is_late || wait_ends) FillReport(*job, part, context_, health_, now_, &part.report);
      if (is_late) {
        const std::string waits_for = WaitsFor(*job, groups_.Find(key.epoch), peers_, sessions_);
        late.emplace_back(job.get(), DeadlineStatus(*job, part, waits_for, peers_.self()));
      }
      for (Waiter& waiter : part.waiters) {
        if (waiter.deadline > now_) {
          Sooner(waiter.deadline);
          continue;
        }
        answers.emplace_back(std::move(waiter), part.report);
        waiter.done = nullptr;
      }
      std::erase_if(part.waiters, [](const Waiter& w) { return !w.done; });
    }
  }
  for (auto& [waiter, report] : answers) std::move(waiter.done)(std::move(report));
  for (auto& [job, why] : late) FailJob(*job, why, false);
  FailStranded();
  SendOldTallies();
  for (NodeJob* job : silent) {
    FailJob(*job,
            absl::AbortedError(absl::StrCat(job->closed_by, " closed its zone for job ", job->key.seq.value(),
                                            " early and did not say why")),
            true);
  }
}

}  // namespace railsd
