// JobTable: what trainers ask, and how a job begins.
#include "agent/jobs/job_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/capacities.h"
#include "agent/jobs/local_copies.h"
#include "agent/jobs/patience.h"
#include "agent/jobs/reports.h"
#include "agent/jobs/waits.h"

namespace railsd {
namespace {

// How long a job waits for ranks of this node before other nodes hear which ones are missing.
constexpr absl::Duration kTellUnsubmittedAfter = absl::Seconds(1);
// More would take the engines too long, even if limits.max_message allows longer messages.
constexpr size_t kMaxGrantRanges = 1 << 17;
constexpr size_t kMaxGrantKeys = 1 << 20;

}  // namespace

ExchangeContext JobTable::ContextOf(const Parts& parts) {
  ExchangeContext context{parts.options, parts.peers, parts.rails, parts.board, parts.zones, {}};
  context.late_binding = parts.options->late_binding && parts.options->plan.policy == Policy::kLpt;
  for (const RailHandle& rail : *parts.rails) {
    const TransportTraits traits = rail.port->traits();
    context.traits.binds_zones = context.traits.binds_zones || traits.binds_zones;
    context.traits.zone_room = std::min(context.traits.zone_room, traits.zone_room);
    context.traits.max_rounds = std::min(context.traits.max_rounds, traits.max_rounds);
  }
  return context;
}

JobTable::JobTable(const Parts& parts)
    : options_(*parts.options),
      peers_(*parts.peers),
      sessions_(*parts.sessions),
      groups_(*parts.groups),
      outbox_(*parts.outbox),
      rails_(*parts.rails),
      zones_(*parts.zones),
      health_(*parts.health),
      copier_(*parts.copier),
      observer_(parts.observer),
      context_(ContextOf(parts)),
      records_(&context_),
      admission_(&options_, &peers_, &sessions_, &groups_, &jobs_, &records_),
      rehomer_(&context_, &outbox_, &jobs_,
               {.fail = [this](NodeJob& job, absl::Status why) { FailJob(job, std::move(why), true); },
                .answered =
                    [this](NodeJob& job, Exchange& exchange) {
                      CountArrived(exchange);
                      const Group* const group = groups_.Find(job.key.epoch);
                      if (absl::Status s = CheckFruitless(job, group, exchange, context_); !s.ok()) {
                        return FailJob(job, std::move(s), true);
                      }
                      if (group != nullptr) PlanExchange(job, *group, exchange);
                      FinishIfDone(job);
                    },
                .again = [this](absl::Time when) { Sooner(when); },
                .may_ask = [this](const Peer& from, JobKey key) { return MayAsk(from, key); },
                .outcome =
                    [this](JobKey key) {
                      // An aborted job without a tombstone (no room or no need for one) counts as complete. Its ABORT
                      // went out earlier on the same link, so the sender ends it as aborted.
                      const Group* const group = groups_.Find(key.epoch);
                      const bool ended = group == nullptr
                                             ? records_.EndedWell(key)
                                             : key.seq <= group->LastTaken() && records_.Tombstone(key) == nullptr;
                      return ended ? Rehomed::State::kComplete : Rehomed::State::kAborted;
                    }}),
      eager_(&context_, &outbox_, &jobs_,
             {.fail = [this](NodeJob& job, absl::Status why) { FailJob(job, std::move(why), true); },
              .received =
                  [this](NodeJob& job, Exchange& exchange) {
                    if (exchange.ready_waits) SendReady(job, exchange, RailsNow());
                    SettleZone(job, exchange);
                  },
              .sent = [this](NodeJob& job) { FinishIfDone(job); }}),
      grants_(&context_, &eager_, &outbox_, &jobs_,
              [this](NodeJob& job, absl::Status why) { FailJob(job, std::move(why), false); }),
      planner_(&context_, parts.speeds),
      tallies_(&context_, &outbox_),
      late_binder_(&context_, &jobs_),
      sent_bytes_(parts.rails->size()),
      landed_again_(parts.rails->size()) {}

NodeJob& JobTable::FindOrCreate(const Group& group, JobKey key) {
  std::unique_ptr<NodeJob>& slot = jobs_[key];
  if (slot != nullptr) return *slot;
  slot = std::make_unique<NodeJob>();
  NodeJob& job = *slot;
  job.key = key;
  job.tag = JobTag(next_tag_++);
  job.clock = &now_;
  by_tag_[job.tag] = &job;
  for (BytesByRail* bytes :
       {&job.rail_tx_bytes, &job.rail_rx_bytes, &job.rail_planned_bytes, &job.pinned_tx_bytes, &job.pinned_rx_bytes}) {
    bytes->assign(rails_.size(), 0);
  }
  job.recorder = records_.NewRecorder();
  job.tell_unsubmitted_at = now_ + kTellUnsubmittedAfter;
  Sooner(job.tell_unsubmitted_at);
  job.parts.MakeRoom(group.local_ranks.size());
  job.AddExchanges(&context_, group.layout);
  for (PeerIndex peer : group.lost) job.With(peer)->left_out = true;
  return job;
}

void JobTable::Submit(CheckedSubmission submission, Callback<absl::Status> done) {
  Group* group = nullptr;
  Session* session = nullptr;
  bool repeated = false;
  const absl::Status status = admission_.Check(submission, now_, &group, &session, &repeated);
  if (!status.ok() || repeated) {
    counters_.submissions_refused += !repeated;
    submission.Release();  // before the caller is told, who may then remove the segments
    const uint64_t ranges = submission.ranges;
    Discard(ranges, std::move(submission));
    return std::move(done)(status);
  }
  std::move(done)(absl::OkStatus());
  Accept(std::move(submission), *group, *session);
}

void JobTable::Accept(CheckedSubmission submission, Group& group, Session& session) {
  const Rank rank = submission.rank;
  const JobKey key = submission.job;
  NodeJob& job = FindOrCreate(group, key);
  job.tenant = session.tenant;
  group.ranks[rank.value()].last_seq = key.seq;
  ++session.active_parts;
  ++active_parts_;
  RankPart& part = job.parts.Add(rank);
  part.accepted = now_;
  part.deadline = now_ + std::min(submission.timeout, options_.max_job_time);
  Sooner(part.deadline);
  BeginReport(submission, group, &part.report);
  job.Take(std::move(submission), &part);
  const absl::Status* const tombstone = records_.Tombstone(key);
  if (tombstone != nullptr && !job.aborting()) job.failure = *tombstone;
  if (job.aborting()) {
    // The part can end at once: no copy or rail has used this rank's memory yet.
    FinishPart(job, part, job.failure);
    return Settle(job);
  }
  BeginCopies(job, group, part, &copier_);
  if (job.parts.size() == group.local_ranks.size()) Start(job, group);
  if (job.told_unsubmitted) TellUnsubmitted(job);
}

void JobTable::Start(NodeJob& job, const Group& group) {
  job.started = true;
  job.started_at = now_;
  held_readys_.Release(&job);
  for (RankPart* part : job.parts) part->report.state = JobState::kMatching;
  if (absl::Status s = CheckLocalRanks(job, group); !s.ok()) return FailJob(job, s, false);
  if (job.ranges <= kManyRanges) {
    builder_.Take(job, group.layout);
    builder_.Build();
    builder_.Give(&job);
    return Announce(job, group);
  }
  const auto builder = builders_[job.tag] = std::make_shared<StreamBuilder>();
  builder->Take(job, group.layout);
  job.building = true;
  copier_.Run([builder] { builder->Build(); }, job.tag);
}

void JobTable::Announce(NodeJob& job, const Group& group) {
  // The streams were built for all peers. Lost peers are left out here, in the same way as those lost later.
  job.inflow_bytes = HasCapacities(job) ? 0 : job.in_bytes;
  for (Exchange& exchange : job.exchanges) {
    if (exchange.left_out) DropExchange(job, group, exchange);
  }
  const Ready::Rails rails = RailsNow();
  job.ForEachByNeed([&](Exchange& exchange) {
    SendReady(job, exchange, rails);  // nothing, once the job aborts
    Sooner(StrandedUntil(peers_.Get(exchange.peer), nullptr, options_));
  });
  if (job.aborting()) return;
  for (Exchange& exchange : job.exchanges) {
    if (job.aborting() || !exchange.ready.has_value()) continue;
    Ready ready = exchange.TakeReady();
    Compare(job, group, exchange, ready);
  }
  if (job.aborting()) return;
  MaybeRunning(job);
  FinishIfDone(job);
}

Ready::Rails JobTable::RailsNow() {
  const absl::Span<const double> speeds = planner_.Speeds(now_);
  return {.bytes_per_s = BytesByRail(speeds.begin(), speeds.end()),
          .backlog_bytes = grants_.awaited_bytes() / rails_.size()};
}

void JobTable::SendReady(NodeJob& job, Exchange& exchange, const Ready::Rails& rails) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (!peer.up || exchange.ready_sent || exchange.left_out || job.aborting() || !job.started || job.building) return;
  if (!exchange.ready_waits && grants_.MayRide(job, exchange)) grants_.Open(job, exchange);
  exchange.ready_waits = exchange.in.open() && exchange.in.IsBinding();
  if (exchange.ready_waits) return;  // OnZoneEvent() calls this again
  ControlMessage message(std::in_place_type<Ready>);
  Ready& ready = std::get<Ready>(message);
  FillReady(job, exchange, peer, &ready);
  if (!eager_.Fill(job, exchange, &ready)) return;
  ready.rails = Ready::Rails(rails);  // a move, because assignments of lists copy number by number
  const bool grants = exchange.in.open() && exchange.in.IsBound();
  if (grants) ready.grant = exchange.in.BuildGrant();
  tallies_.Take(exchange.peer, &ready.tallies);
  const size_t flows = ready.sends.size() + ready.receives.size(), ranges = grants ? ready.grant->ranges.size() : 0;
  const absl::Status sent = ranges > kMaxGrantRanges || ranges * rails_.size() > kMaxGrantKeys
                                ? absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxGrantRanges, " ranges"))
                                : eager_.Send(job, exchange, std::move(message));
  if (!sent.ok()) {
    return FailJob(job,
                   absl::ResourceExhaustedError(absl::StrCat(
                       "job ", job.key.seq.value(), ": READY of ", flows, " flows and ", ranges, " ranges from ",
                       peers_.self(), " to ", peer.node, ": ", sent.message(),
                       ranges > 0 ? ", or let its ranks here receive into fewer" : ", or let its ranks send to fewer")),
                   false);
  }
  exchange.ready_sent = true;
  exchange.times.ready_sent = now_;
  if (!exchange.ready.has_value() && !exchange.compared) exchange.waits_since = now_;
  if (grants) exchange.times.grant_sent = now_;
  if (!eager_.NeedsNoRails(exchange)) Expect(job);
  grants_.Want(job, exchange);
}

void JobTable::Expect(const NodeJob& job) {
  const uint32_t priority = job.tenant->share().priority;
  if (priority == 0) return;
  for (RailHandle& rail : rails_) rail.Command({.kind = RailCommand::Kind::kExpect, .priority = priority});
}

void JobTable::Compare(NodeJob& job, const Group& group, Exchange& exchange, Ready& ready) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (exchange.left_out || exchange.compared) return;
  if (absl::Status s = CompareReady(job, group, exchange, peer, ready); !s.ok()) return FailJob(job, s, false);
  exchange.compared = true;
  job.peers_vote = std::max(job.peers_vote, ready.vote);
  if (HasCapacities(job)) TakeLengths(job, exchange, ready.sends);
  exchange.peer_rails = std::move(ready.rails);
  exchange.out.SetInflow(ready.inflow_ppm);
  eager_.OnReady(job, exchange, ready);
  if (exchange.rails_only) Sooner(StrandedUntil(peer, nullptr, options_));  // eager bytes waited for no rail
  if (ready.grant.has_value() && !job.aborting()) TakeGrant(job, group, exchange, *ready.grant);
  if (job.aborting()) return;
  grants_.Want(job, exchange);
  MaybeRunning(job);
  if (job.running) FinishIfDone(job);
}

void JobTable::TakeGrant(NodeJob& job, const Group& group, Exchange& exchange, const Grant& grant) {
  if (exchange.out.eager()) return;  // the peer guessed that rails carry it; it closes the zone when READY comes
  exchange.times.grant_received = now_;
  const absl::Status status =
      exchange.out.total_bytes() == 0 ? absl::InternalError("a grant for no bytes") : exchange.out.TakeGrant(grant);
  if (!status.ok()) {
    const std::string text = absl::StrCat("grant of ", peers_.Get(exchange.peer).node, " for job ", job.key.seq.value(),
                                          " of ", peers_.self(), ": ", status.message());
    return FailJob(job, absl::Status(status.code(), text), true);
  }
  if (exchange.out.NeedsKeys()) rehomer_.Mark(exchange.peer);
  PlanExchange(job, group, exchange);
}

void JobTable::PlanExchange(NodeJob& job, const Group& group, Exchange& exchange) {
  if (absl::Status s = planner_.Plan(job, group, exchange); !s.ok()) FailJob(job, std::move(s), true);
}

bool JobTable::OnMessage(const Peer& from, Ready&& message) {
  Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  peers_.Get(from.index).TakePlanned(message.planned_bytes);
  if (!message.tallies.empty()) {
    for (Tally& tally : std::exchange(message.tallies, {})) OnMessage(from, std::move(tally));
  }
  // The sender may not hear of the end from the node that caused it: the two may have lost each other, or not met yet.
  if (group->broken && message.job.seq > group->good_until) {
    groups_.SendBroken(*group, from);
    outbox_.Send(from.node, AbortOf(message.job, group->why));
    outbox_.Send(from.node, Quiesced{message.job, {}});
    return true;
  }
  NodeJob* job = Find(jobs_, message.job);
  if (job == nullptr) {
    if (absl::Status why = admission_.CheckAnnounced(*group, message.job, from); !why.ok()) {
      outbox_.Send(from.node, AbortOf(message.job, why));
      outbox_.Send(from.node, Quiesced{message.job, {}});
      return true;
    }
    job = &FindOrCreate(*group, message.job);
  }
  Exchange* const exchange = job->With(from.index);
  if (exchange == nullptr || exchange->ready.has_value() || exchange->compared) return false;
  const bool comparable = job->started && !job->building && !job->aborting();
  if (!job->started && !job->aborting()) {  // a started job holds it only until its streams are built
    absl::Status held = CheckReadyFlows(message, *group->layout, from);
    if (held.ok()) held = held_readys_.Hold(message, from, peers_.self(), exchange);
    if (!held.ok()) {
      FailJob(*job, held, false);
      return false;
    }
  }
  planner_.OnTold(message.rails, now_);  // once for each job
  exchange->times.ready_received = now_;
  EndWait(*exchange);
  if (comparable) {
    Compare(*job, *group, *exchange, message);
  } else {
    exchange->ready = std::move(message);
  }
  return true;
}

bool JobTable::OnMessage(const Peer& from, LateGrant&& message) {
  NodeJob* const job = Find(jobs_, message.job);
  Exchange* const exchange = job == nullptr ? nullptr : job->With(from.index);
  // A grant for a job that has ended is ignored: QUIESCED has been said, or answers the ABORT.
  if (exchange == nullptr || !exchange->compared || exchange->left_out || job->aborting()) return false;
  const Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr) return false;
  TakeGrant(*job, *group, *exchange, message.grant);
  return true;
}

bool JobTable::OnMessage(const Peer& from, Tally&& message) {
  const Group* const group = groups_.Find(message.job.epoch);
  if (group == nullptr || group->RanksOn(from.index) == 0) return false;
  return records_.TakeTally(message, from.index, Find(jobs_, message.job));
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
  NodeJob* const job = Find(jobs_, message.job);
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

void JobTable::MaybeRunning(NodeJob& job) {
  if (job.running || job.aborting() || !job.started || job.building) return;
  for (; job.compared_until < job.exchanges.size(); ++job.compared_until) {
    const Exchange& exchange = job.exchanges[job.compared_until];
    if (!exchange.left_out && (!exchange.ready_sent || !exchange.compared)) return;
  }
  job.running = true;
  job.running_at = now_;
  for (RankPart* part : job.parts) {
    if (!part->terminal()) part->report.state = JobState::kRunning;
  }
}

void JobTable::Wait(SessionId session, JobKey key, Rank rank, absl::Duration timeout,
                    Callback<absl::StatusOr<JobReport>> done) {
  if (NodeJob* job = Find(jobs_, key)) {
    RankPart* const part = job->parts.Find(rank);
    if (part != nullptr && !part->terminal() && part->submission.session == session) {
      if (timeout <= absl::ZeroDuration()) {
        FillReport(*job, *part, context_, health_, now_, &part->report);
        return std::move(done)(part->report);
      }
      part->waiters.push_back({now_ + timeout, std::move(done)});
      return Sooner(now_ + timeout);
    }
  }
  const JobRecords::Finished* const finished = records_.Find(key, rank);
  if (finished != nullptr && finished->session == session) return std::move(done)(finished->report);
  std::move(done)(absl::NotFoundError(
      absl::StrCat("job.seq: ", key.seq.value(), " of rank ", rank.value(), " is not a job of this session")));
}

void JobTable::Cancel(SessionId session, JobKey key, Rank rank, Callback<absl::Status> done) {
  if (NodeJob* job = Find(jobs_, key)) {
    const RankPart* const part = job->parts.Find(rank);
    if (part != nullptr && part->submission.session == session) {
      std::move(done)(absl::OkStatus());
      if (part->terminal()) return;
      const Group* group = groups_.Find(key.epoch);
      return FailJob(*job,
                     absl::CancelledError(absl::StrCat("job ", key.seq.value(), " was cancelled by ",
                                                       group == nullptr ? "its owner" : group->Describe(rank))),
                     false);
    }
  }
  Wait(session, key, rank, absl::ZeroDuration(),
       [done = std::move(done)](absl::StatusOr<JobReport> report) mutable { std::move(done)(report.status()); });
}

void JobTable::Tick() {
  if (now_ < next_deadline_) return;
  next_deadline_ = absl::InfiniteFuture();
  std::vector<std::pair<NodeJob*, absl::Status>> late;
  std::vector<std::pair<Waiter, JobReport>> answers;
  std::vector<NodeJob*> silent;
  for (auto& [key, job] : jobs_) {
    for (Exchange& exchange : job->exchanges) {
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
    for (RankPart* one : job->parts) {
      RankPart& part = *one;
      if (part.terminal()) continue;
      const bool is_late = part.deadline <= now_ && !job->aborting();
      if (!job->aborting() && !is_late) Sooner(part.deadline);
      const bool wait_ends = std::any_of(part.waiters.begin(), part.waiters.end(),
                                         [this](const Waiter& waiter) { return waiter.deadline <= now_; });
      if (is_late || wait_ends) FillReport(*job, part, context_, health_, now_, &part.report);
      if (is_late) late.emplace_back(job.get(), DeadlineStatus(*job, part, groups_.Find(key.epoch), peers_, sessions_));
      for (Waiter& waiter : part.waiters) {
        if (waiter.deadline > now_) {
          Sooner(waiter.deadline);
          continue;
        }
        answers.emplace_back(std::move(waiter), part.report);
        waiter.done = nullptr;
      }
      part.waiters.erase(
          std::remove_if(part.waiters.begin(), part.waiters.end(), [](const Waiter& w) { return !w.done; }),
          part.waiters.end());
    }
  }
  for (auto& [waiter, report] : answers) std::move(waiter.done)(std::move(report));
  for (auto& [job, why] : late) FailJob(*job, why, false);
  for (auto& [job, why] : FindStranded(jobs_, groups_, context_, now_, &next_deadline_)) FailJob(*job, why, true);
  Sooner(tallies_.SendOld(now_));
  for (NodeJob* job : silent) {
    FailJob(*job,
            absl::AbortedError(absl::StrCat(job->closed_by, " closed its zone for job ", job->key.seq.value(),
                                            " early and did not say why")),
            true);
  }
}

JobSeq JobTable::FinishedUntil(const Group& group, Rank rank) const {
  JobSeq until = group.ranks[rank.value()].last_seq;
  for (const auto& [key, job] : jobs_) {
    if (key.epoch != group.epoch) continue;
    const RankPart* const part = job->parts.Find(rank);
    if (part == nullptr || part->terminal()) continue;
    until = std::min(until, JobSeq(key.seq.value() - 1));
  }
  return until;
}

void JobTable::FillCounters(AgentCounters* counters) const {
  *counters = counters_;
  counters->plans = planner_.plans();
  counters->planning_nanoseconds = planner_.nanoseconds();
  counters->jobs_active = active_parts_;
  counters->late_moves = late_binder_.moves();
  counters->open_zones = zones_.taken();
  counters->rehomed_exchanges = rehomer_.rehomed();
  eager_.FillCounters(counters);
}

}  // namespace railsd
