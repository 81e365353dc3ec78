// JobTable: what trainers ask, and how a job begins.
#include "agent/jobs/job_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/steady_now.h"
#include "agent/jobs/reports.h"
#include "agent/jobs/waits.h"

namespace railsd {
namespace {

// How long ranks of a node may lie behind each other before other nodes hear who is missing.
constexpr absl::Duration kTellUnsubmittedAfter = absl::Seconds(1);
// More take the engines too long, however long messages may be. Where they are short, limits.max_message allows fewer.
constexpr size_t kMaxGrantRanges = 1 << 17;
constexpr size_t kMaxGrantKeys = 1 << 20;

// Null for a rank that is left out.
PreparedFlow* FlowWith(Rank peer, std::vector<PreparedFlow>& by_rank) {
  const auto before = [](const PreparedFlow& flow, Rank rank) { return flow.peer < rank; };
  const auto it = std::lower_bound(by_rank.begin(), by_rank.end(), peer, before);
  return it != by_rank.end() && it->peer == peer ? &*it : nullptr;
}

uint64_t BytesOf(const PreparedFlow* flow) { return flow == nullptr ? 0 : flow->bytes; }

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
      speeds_(*parts.speeds),
      health_(*parts.health),
      copier_(*parts.copier),
      observer_(parts.observer),
      context_(ContextOf(parts)),
      zone_room_(std::min<size_t>(context_.traits.zone_room, ZoneTable::kSlots - 1)),
      records_(&context_),
      admission_(&options_, &peers_, &sessions_, &groups_, &jobs_, &records_),
      rehomer_(&context_, &outbox_, &jobs_,
               {.fail = [this](NodeJob& job, absl::Status why) { FailJob(job, std::move(why), true); },
                .answered =
                    [this](NodeJob& job, Exchange& exchange) {
                      CountArrived(exchange);
                      if (FailIfFruitless(job, exchange)) return;
                      if (const Group* group = groups_.Find(job.key.epoch)) PlanExchange(job, *group, exchange);
                      FinishIfDone(job);
                    },
                .again = [this](absl::Time when) { Sooner(when); },
                .may_ask = [this](const Peer& from, JobKey key) { return MayAsk(from, key); },
                .outcome =
                    [this](JobKey key) {
                      const Group* const group = groups_.Find(key.epoch);
                      const bool ended = group == nullptr
                                             ? records_.EndedWell(key)
                                             : key.seq <= group->LastTaken() && records_.Tombstone(key) == nullptr;
                      return ended ? Rehomed::State::kComplete : Rehomed::State::kAborted;
                    }}),
      late_binder_(&context_, &jobs_),
      zone_owners_(ZoneTable::kSlots),
      sent_bytes_(parts.rails->size()),
      planned_bytes_(parts.rails->size()),
      landed_again_(parts.rails->size()),
      ledger_(parts.rails->size()) {}

NodeJob* JobTable::Find(JobKey key) {
  const auto it = jobs_.find(key);
  return it == jobs_.end() ? nullptr : it->second.get();
}

NodeJob& JobTable::FindOrCreate(const Group& group, JobKey key) {
  std::unique_ptr<NodeJob>& slot = jobs_[key];
  if (slot != nullptr) return *slot;
  slot = std::make_unique<NodeJob>();
  NodeJob& job = *slot;
  job.key = key;
  job.tag = JobTag(next_tag_++);
  job.clock = &now_;
  by_tag_[job.tag] = &job;
  job.stop_copies = std::make_shared<std::atomic<bool>>(false);
  job.rail_tx_bytes.assign(rails_.size(), 0);
  job.rail_rx_bytes.assign(rails_.size(), 0);
  job.rail_planned_bytes.assign(rails_.size(), 0);
  job.recorder = records_.NewRecorder();
  job.tell_unsubmitted_at = now_ + kTellUnsubmittedAfter;
  Sooner(job.tell_unsubmitted_at);
  for (PeerIndex peer : group.peers) {
    job.exchanges.try_emplace(peer, &context_, &job, peer).first->second.left_out = group.Lost(peer);
  }
  return job;
}

void JobTable::Submit(PreparedSubmission submission, Callback<absl::Status> done) {
  Group* group = nullptr;
  Session* session = nullptr;
  bool repeated = false;
  const absl::Status status = admission_.Check(submission, now_, &group, &session, &repeated);
  if (!status.ok() || repeated) {
    counters_.submissions_refused += !repeated;
    submission.Release();  // before the caller is told, and gives the segments back
    const uint64_t ranges = submission.ranges;
    Discard(ranges, std::move(submission));
    return std::move(done)(status);
  }
  std::move(done)(absl::OkStatus());
  Accept(std::move(submission), *group, *session);
}

void JobTable::Accept(PreparedSubmission submission, Group& group, Session& session) {
  const Rank rank = submission.rank;
  const JobKey key = submission.job;
  NodeJob& job = FindOrCreate(group, key);
  job.tenant = session.tenant;
  group.ranks[rank.value()].last_seq = key.seq;
  ++session.active_parts;
  ++active_parts_;
  RankPart& part = job.parts[rank];
  part.accepted = now_;
  part.deadline = now_ + std::min(submission.timeout, options_.max_job_time);
  Sooner(part.deadline);
  part.report.job = key;
  part.report.rank = rank;
  part.report.tag = submission.tag;
  part.report.tenant = group.key.tenant;
  part.report.group = group.key.name;
  part.report.bytes_to_send = submission.send_bytes;
  part.report.bytes_to_receive = submission.receive_bytes;
  part.submission = std::move(submission);
  job.ranges += part.submission.ranges;
  const absl::Status* const tombstone = records_.Tombstone(key);
  if (tombstone != nullptr && !job.aborting()) job.failure = *tombstone;
  if (job.aborting()) {
    // This rank's memory was never handed to anybody.
    FinishPart(job, part, job.failure);
    return Settle(job);
  }
  BeginCopies(job, group, part);
  if (job.parts.size() == group.local_ranks.size()) Start(job, group);
  if (job.told_unsubmitted) TellUnsubmitted(job);
}

void JobTable::BeginCopies(NodeJob& job, const Group& group, RankPart& part) {
  const auto other = [&](const PreparedFlow& flow) -> RankPart* {
    const auto it = group.ranks[flow.peer.value()].local ? job.parts.find(flow.peer) : job.parts.end();
    return it == job.parts.end() ? nullptr : &it->second;
  };
  for (const PreparedFlow& send : part.submission.sends) {
    if (RankPart* to = other(send)) BeginCopy(job, part, *to);
  }
  for (const PreparedFlow& receive : part.submission.receives) {
    if (RankPart* from = other(receive)) BeginCopy(job, *from, part);
  }
}

// Lengths that differ fail the job when all ranks have submitted (CheckLocalRanks).
void JobTable::BeginCopy(NodeJob& job, RankPart& from, RankPart& to) {
  const Rank source = from.submission.rank, destination = to.submission.rank;
  PreparedFlow* const send = FlowWith(destination, from.submission.sends);
  PreparedFlow* const receive = FlowWith(source, to.submission.receives);
  if (BytesOf(send) != BytesOf(receive) || BytesOf(send) == 0) return;
  const LocalCopy& copy =
      job.copies.emplace_back(LocalCopy{source, destination, std::move(send->memory), std::move(receive->memory)});
  ++job.copies_running;
  copier_.Submit({job.tag, job.copies.size() - 1, &copy.from, &copy.to, job.stop_copies, job.tenant->index(),
                  job.tenant->share()});
}

void JobTable::Start(NodeJob& job, const Group& group) {
  job.started = true;
  job.started_at = now_;
  ReleaseReadys(job);
  for (auto& [rank, part] : job.parts) part.report.state = JobState::kMatching;
  if (absl::Status s = CheckLocalRanks(job, group); !s.ok()) return FailJob(job, s, false);
  auto builder = std::make_shared<StreamBuilder>(&job, group);
  if (job.ranges <= kManyRanges) {
    builder->Build();
    builder->Give(&job);
    return Announce(job, group);
  }
  job.building = true;
  copier_.Run([builder] { builder->Build(); }, job.tag);
  builders_[job.tag] = std::move(builder);
}

void JobTable::Announce(NodeJob& job, const Group& group) {
  // In full at first, so that a peer that is lost before and one that is lost later are left out in one way.
  for (PeerIndex peer : group.peers) {
    if (Exchange& exchange = *job.With(peer); exchange.left_out) DropExchange(job, group, exchange);
  }
  for (PeerIndex peer : group.peers) {
    if (job.aborting()) return;
    SendReady(job, *job.With(peer));
    Sooner(StrandedUntil(peers_.Get(peer)));
  }
  for (PeerIndex peer : group.peers) {
    if (!job.aborting() && job.With(peer)->ready.has_value()) Compare(job, group, *job.With(peer));
  }
  if (job.aborting()) return;
  MaybeRunning(job);
  FinishIfDone(job);
}

bool JobTable::MayRide(const Exchange& exchange) const {
  if (!exchange.in.WaitsForZone()) return false;
  if (context_.traits.binds_zones && peers_.Get(exchange.peer).Connected() == 0) return false;
  // Room that waits for a peer that has not submitted may be missing elsewhere for ever: tests/model/ready.
  return (exchange.ready.has_value() ? 1 : 2) * (zones_.taken() + 1) <= zone_room_;
}

void JobTable::OpenZone(NodeJob& job, Exchange& exchange) {
  exchange.in.Open();
  ingress_left_bytes_ += exchange.in.total_bytes();
  zone_owners_[exchange.in.ref().slot] = {exchange.in.ref().generation, &job, &exchange};
}

void JobTable::SendReady(NodeJob& job, Exchange& exchange) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (!peer.up || exchange.ready_sent || exchange.left_out || job.aborting() || !job.started || job.building) return;
  if (!exchange.ready_waits && MayRide(exchange)) OpenZone(job, exchange);
  exchange.ready_waits = exchange.in.open() && exchange.in.IsBinding();
  if (exchange.ready_waits) return;  // OnZoneEvent() comes again
  Ready ready = BuildReady(job, exchange, peer);
  for (size_t r = 0; r < rails_.size(); ++r) {
    const RailIndex rail(static_cast<uint32_t>(r));
    ready.rails.push_back(
        {rail, static_cast<uint64_t>(rails_[r].speed_bytes_per_s), ingress_left_bytes_ / rails_.size()});
  }
  const bool grants = exchange.in.open() && exchange.in.IsBound();
  if (grants) ready.grant = exchange.in.BuildGrant();
  ready.tallies = std::exchange(tallies_[exchange.peer], {}).waiting;
  const size_t flows = ready.sends.size() + ready.receives.size(), ranges = grants ? ready.grant->ranges.size() : 0;
  const absl::Status sent = ranges > kMaxGrantRanges || ranges * rails_.size() > kMaxGrantKeys
                                ? absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxGrantRanges, " ranges"))
                                : outbox_.SendIfItFits(peer.node, std::move(ready));
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
  if (grants) exchange.times.grant_sent = now_;
  if (exchange.out.total_bytes() + exchange.in.total_bytes() > 0) Expect(job);
  WantGrant(job, exchange);
}

void JobTable::Expect(const NodeJob& job) {
  RailCommand command;
  command.kind = RailCommand::Kind::kExpect;
  command.priority = job.tenant->share().priority;
  if (command.priority == 0) return;
  for (RailHandle& rail : rails_) rail.Command(command);
}

// The grant that did not ride along follows once the peer's READY is here.
void JobTable::WantGrant(NodeJob& job, Exchange& exchange) {
  if (!exchange.ready_sent || !exchange.compared || exchange.in.total_bytes() == 0 || exchange.in.granted()) return;
  exchange.grant_waits = true;
  waiting_grants_.push_back({job.key, exchange.peer});
  SendLateGrants();
}

void JobTable::Compare(NodeJob& job, const Group& group, Exchange& exchange) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (exchange.left_out || exchange.compared) return;
  if (absl::Status s = CompareReady(job, group, exchange, peer); !s.ok()) return FailJob(job, s, false);
  exchange.compared = true;
  exchange.peer_rails = std::move(exchange.ready->rails);
  const std::optional<Grant> grant = std::move(exchange.ready->grant);
  exchange.ready.reset();
  if (grant.has_value()) TakeGrant(job, exchange, *grant);
  if (job.aborting()) return;
  WantGrant(job, exchange);
  MaybeRunning(job);
  FinishIfDone(job);
}

void JobTable::SendLateGrants() {
  std::erase_if(waiting_grants_, [this](const WaitingGrant& waiting) {
    NodeJob* const job = Find(waiting.job);
    if (job == nullptr || job->aborting()) return true;
    Exchange& exchange = *job->With(waiting.peer);
    return exchange.left_out || TrySendLateGrant(*job, exchange);
  });
}

// True: it was sent. False: it waits for room, for rails to bind the zone, or for a rail to the peer.
bool JobTable::TrySendLateGrant(NodeJob& job, Exchange& exchange) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (exchange.in.WaitsForZone()) {
    if (context_.traits.binds_zones && peer.Connected() == 0) return false;
    // One alone can go past the room.
    if (zones_.free() == 0 || (zones_.taken() > 0 && zones_.taken() + 1 > zone_room_)) return false;
    OpenZone(job, exchange);
  }
  if (!exchange.ready_sent || exchange.in.IsBinding() || !exchange.in.open()) return false;
  if (!exchange.in.IsBound()) {
    exchange.in.BindAgain();
    return false;
  }
  LateGrant message{job.key, exchange.in.BuildGrant()};
  const size_t ranges = message.grant.ranges.size();
  exchange.grant_waits = false;
  exchange.times.grant_sent = now_;
  if (const absl::Status sent = outbox_.SendIfItFits(peer.node, std::move(message)); !sent.ok()) {
    FailJob(job,
            absl::ResourceExhaustedError(absl::StrCat("job ", job.key.seq.value(), ": grant of ", ranges,
                                                      " ranges from ", peers_.self(), " to ", peer.node, ": ",
                                                      sent.message(), ", or let its ranks here receive into fewer")),
            false);
  }
  return true;
}

void JobTable::TakeGrant(NodeJob& job, Exchange& exchange, const Grant& grant) {
  exchange.times.grant_received = now_;
  const absl::Status status =
      exchange.out.total_bytes() == 0 ? absl::InternalError("a grant for no bytes") : exchange.out.TakeGrant(grant);
  if (!status.ok()) {
    return FailJob(
        job,
        absl::Status(status.code(), absl::StrCat("grant of ", peers_.Get(exchange.peer).node, " for job ",
                                                 job.key.seq.value(), " of ", peers_.self(), ": ", status.message())),
        true);
  }
  if (exchange.out.NeedsKeys()) rehomer_.Mark(exchange.peer);
  if (const Group* group = groups_.Find(job.key.epoch)) PlanExchange(job, *group, exchange);
}

void JobTable::PlanExchange(NodeJob& job, const Group& group, Exchange& exchange) {
  if (exchange.planned || !exchange.out.granted() || exchange.out.asked() || job.aborting() || exchange.left_out)
    return;
  const Peer& peer = peers_.Get(exchange.peer);
  plan_flows_.clear();
  if (options_.plan.policy == Policy::kLpt) {
    plan_flows_.push_back({exchange.out.total_bytes(), 0, 0, 0});  // evenness is asked for per destination node
  } else {
    for (const StreamFlow& flow : exchange.out.flows().all()) {
      const uint64_t hash = (uint64_t{flow.source.value()} << 32) + flow.destination.value() + 1;
      plan_flows_.push_back(
          {flow.bytes, group.ranks[flow.source.value()].place, group.ranks[flow.destination.value()].place, hash});
    }
  }
  plan_rails_.assign(rails_.size(), PlanRail{});
  for (size_t r = 0; r < rails_.size(); ++r) {
    plan_rails_[r].source_speed = speeds_.ForPlan(r, now_);
    plan_rails_[r].usable = false;
    plan_rails_[r].source_backlog_bytes = rails_[r].backlog_bytes();
  }
  for (const Ready::RailState& rail : exchange.peer_rails) {
    if (rail.rail.value() >= rails_.size()) continue;
    PlanRail& mine = plan_rails_[rail.rail.value()];
    mine.destination_speed = static_cast<double>(rail.speed_bytes_per_s);
    mine.destination_backlog_bytes = rail.backlog_bytes;
    mine.usable = peer.CanSendOver(rail.rail.value(), exchange.out.Usable());
  }
  const absl::Time before = SteadyNow();
  const absl::Status planned = BuildPlan(plan_flows_, plan_rails_, exchange.peer, options_.plan, &ledger_, &workspace_);
  // No rail is up towards the peer: planned again when one comes up; the job's deadline bounds the wait.
  if (absl::IsUnavailable(planned)) return;
  if (!planned.ok()) return FailJob(job, planned, true);
  ++counters_.plans;
  counters_.planning_nanoseconds += static_cast<uint64_t>(absl::ToInt64Nanoseconds(SteadyNow() - before));
  exchange.planned = true;
  exchange.times.planned = now_;
  exchange.planned_bytes.assign(rails_.size(), 0);
  for (const PlanRun& run : workspace_.runs) {
    exchange.planned_bytes[run.rail.value()] += run.length_bytes;
    job.rail_planned_bytes[run.rail.value()] += run.length_bytes;
    planned_bytes_[run.rail.value()] += run.length_bytes;
    peers_.Get(exchange.peer).rails[run.rail.value()].planned_tx_bytes += run.length_bytes;
  }
  job.first_chunk_at = std::min(job.first_chunk_at, now_);
  // The plan of a whole stream is one flow that begins at 0.
  exchange.out.Start(workspace_.runs, /*by_flow=*/options_.plan.policy != Policy::kLpt);
}

void JobTable::MaybeRunning(NodeJob& job) {
  if (job.running || job.aborting() || !job.started || job.building) return;
  for (const auto& [peer, exchange] : job.exchanges) {
    if (!exchange.left_out && (!exchange.ready_sent || !exchange.compared)) return;
  }
  job.running = true;
  job.running_at = now_;
  for (auto& [rank, part] : job.parts) {
    if (!part.terminal()) part.report.state = JobState::kRunning;
  }
}

void JobTable::Wait(SessionId session, JobKey key, Rank rank, absl::Duration timeout,
                    Callback<absl::StatusOr<JobReport>> done) {
  if (NodeJob* job = Find(key)) {
    const auto it = job->parts.find(rank);
    if (it != job->parts.end() && !it->second.terminal() && it->second.submission.session == session) {
      if (timeout <= absl::ZeroDuration()) {
        FillReport(*job, it->second, context_, health_, now_, &it->second.report);
        return std::move(done)(it->second.report);
      }
      it->second.waiters.push_back({now_ + timeout, std::move(done)});
      return Sooner(now_ + timeout);
    }
  }
  const JobRecords::Finished* const finished = records_.Find(key, rank);
  if (finished != nullptr && finished->session == session) return std::move(done)(finished->report);
  std::move(done)(absl::NotFoundError(
      absl::StrCat("job.seq: ", key.seq.value(), " of rank ", rank.value(), " is not a job of this session")));
}

void JobTable::Cancel(SessionId session, JobKey key, Rank rank, Callback<absl::Status> done) {
  if (NodeJob* job = Find(key)) {
    const auto it = job->parts.find(rank);
    if (it != job->parts.end() && it->second.submission.session == session) {
      std::move(done)(absl::OkStatus());
      if (it->second.terminal()) return;
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

JobSeq JobTable::FinishedUntil(const Group& group, Rank rank) const {
  JobSeq until = group.ranks[rank.value()].last_seq;
  for (const auto& [key, job] : jobs_) {
    if (key.epoch != group.epoch) continue;
    const auto part = job->parts.find(rank);
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

void JobTable::FillCounters(AgentCounters* counters) const {
  *counters = counters_;
  counters->jobs_active = active_parts_;
  counters->late_moves = late_binder_.moves();
  counters->open_zones = zones_.taken();
  counters->rehomed_exchanges = rehomer_.rehomed();
}

}  // namespace railsd
