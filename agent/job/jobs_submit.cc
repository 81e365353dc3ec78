// JobTable: what trainers ask.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/job/jobs.h"
#include "agent/job/validate.h"

namespace railsd {
namespace {

// How long ranks of a node may lie behind each other before other nodes hear who is missing.
constexpr absl::Duration kTellUnsubmittedAfter = absl::Seconds(1);

// Null for a rank that is left out.
PreparedFlow* FlowWith(Rank peer, std::vector<PreparedFlow>& by_rank) {
  const auto before = [](const PreparedFlow& flow, Rank rank) { return flow.peer < rank; };
  const auto it = std::lower_bound(by_rank.begin(), by_rank.end(), peer, before);
  return it != by_rank.end() && it->peer == peer ? &*it : nullptr;
}

uint64_t BytesOf(const PreparedFlow* flow) { return flow == nullptr ? 0 : flow->bytes; }

uint32_t FenceRoomOf(const std::vector<RailHandle>& rails) {
  uint32_t room = UINT32_MAX;
  for (const RailHandle& rail : rails) room = std::min(room, rail.port->FenceRoom());
  return room;
}

}  // namespace

JobTable::JobTable(const Parts& parts)
    : options_(*parts.options),
      peers_(*parts.peers),
      sessions_(*parts.sessions),
      groups_(*parts.groups),
      outbox_(*parts.outbox),
      rails_(*parts.rails),
      sprayer_(*parts.sprayer),
      health_(*parts.health),
      copier_(*parts.copier),
      observer_(parts.observer),
      remote_(std::any_of(rails_.begin(), rails_.end(), [](const RailHandle& r) { return r.port->WritesRemotely(); })),
      fence_room_(FenceRoomOf(rails_)),
      slots_(1),  // slot 0 means "no zones"
      told_rx_bytes_(parts.rails->size()),
      sent_bytes_(parts.rails->size()),
      planned_bytes_(parts.rails->size()),
      ledger_(parts.rails->size()) {}

NodeJob* JobTable::Find(JobKey key) {
  auto it = jobs_.find(key);
  return it == jobs_.end() ? nullptr : it->second.get();
}

absl::Status JobTable::CheckAdmission(const PreparedSubmission& submission, Group** group_out,
                                      Session** session_out) const {
  Session* session = sessions_.Find(submission.session);
  if (session == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", submission.session.value(), " is not open"));
  }
  Group* group = groups_.Find(submission.job.epoch);
  // Of another tenant it must not even show that it exists.
  if (group == nullptr || group->key.tenant != session->info.tenant) {
    return absl::NotFoundError(
        absl::StrCat("job.epoch: ", absl::Hex(submission.job.epoch.boot.value(), absl::kZeroPad16), ".",
                     submission.job.epoch.counter, " is no group of this node; join again"));
  }
  const uint32_t rank = submission.rank.value();
  if (rank >= group->world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job.rank: ", rank, " is not below the world size ", group->world_size()));
  }
  const Group::Member& member = group->ranks[rank];
  if (!member.local || member.gone || member.session != submission.session) {
    return absl::PermissionDeniedError(
        absl::StrCat("job.rank: ", rank, " of group ", group->key.name, " is not a rank of this session"));
  }
  *group_out = group;
  *session_out = session;
  return absl::OkStatus();
}

// A number that was taken before: the same content is the same job.
absl::Status JobTable::CheckRepeated(const PreparedSubmission& submission) const {
  if (submission.question) return absl::OkStatus();
  const Digest* known = nullptr;
  if (auto it = jobs_.find(submission.job); it != jobs_.end()) {
    if (auto part = it->second->parts.find(submission.rank); part != it->second->parts.end()) {
      known = &part->second.submission.digest;
    }
  }
  if (auto it = ended_.find(submission.job.epoch); known == nullptr && it != ended_.end()) {
    auto report = it->second.reports.find({submission.job.seq, submission.rank});
    if (report != it->second.reports.end()) known = &report->second.digest;
  }
  if (known == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("job.seq: ", submission.job.seq.value(), " ended long ago and is forgotten"));
  }
  if (*known != submission.digest) {
    return absl::AlreadyExistsError(
        absl::StrCat("job.seq: ", submission.job.seq.value(), " was submitted before with other content"));
  }
  return absl::OkStatus();
}

// A submission that takes the next number of its rank.
absl::Status JobTable::CheckNew(const PreparedSubmission& submission, Group& group, Session& session) {
  const uint64_t seq = submission.job.seq.value();
  Group::Member& member = group.ranks[submission.rank.value()];
  const uint64_t last = member.last_seq.value();
  // An earlier attempt can still be on its way when a later one is answered; its client counts on that answer.
  if (submission.attempt < member.attempt) {
    return absl::AbortedError(
        absl::StrCat("attempt: ", submission.attempt, " comes after ", member.attempt, ", which has been answered"));
  }
  member.attempt = submission.attempt;
  if (submission.question) return absl::NotFoundError(absl::StrCat("job.seq: ", seq, " has not been accepted"));
  if (seq != last + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("job.seq: ", seq, ", the next of rank ", submission.rank.value(), " in this epoch is ", last + 1));
  }
  if (group.broken && submission.job.seq > group.good_until) {
    return absl::Status(group.replayable ? absl::StatusCode::kAborted : absl::StatusCode::kFailedPrecondition,
                        absl::StrCat("group ", group.key.name, " is broken: ", group.why.message(), "; join again"));
  }
  if (draining_ && submission.job.seq > group.cut) {
    return absl::UnavailableError(
        absl::StrCat(peers_.self(), " is draining; the last job taken is ", group.cut.value()));
  }
  size_t active = 0;
  for (const auto& [key, job] : jobs_) {
    auto part = key.epoch == submission.job.epoch ? job->parts.find(submission.rank) : job->parts.end();
    active += part != job->parts.end() && !part->second.terminal();
  }
  if (active >= std::max(1u, options_.limits.max_jobs_per_group)) {
    return options_.refused->Refuse(Limit::kJobsPerGroup,
                                    absl::StrCat(active, " jobs of rank ", submission.rank.value(),
                                                 " are under way in group ", group.key.name, "; wait for one"));
  }
  if (submission.peers_end > group.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(submission.last_peer, " is not below the world size ", group.world_size()));
  }
  if (!submission.verdict.ok()) {
    if (absl::IsResourceExhausted(submission.verdict)) options_.refused->Count(Limit::kRangesPerSubmission);
    return submission.verdict;
  }
  if (absl::Status s = ClaimMemory(submission); !s.ok()) return s;
  return session.tenant->TakeJob(/*head=*/active == 0, now_);  // last: what it takes, the job has
}

bool JobTable::IsUnderWay(const PreparedSubmission& submission) const {
  const auto job = jobs_.find(submission.job);
  if (job == jobs_.end()) return false;
  const auto part = job->second->parts.find(submission.rank);
  return part != job->second->parts.end() && part->second.submission.session == submission.session;
}

void JobTable::Submit(PreparedSubmission submission, Callback<absl::Status> done) {
  Group* group = nullptr;
  Session* session = nullptr;
  // A job under way was accepted, also when its rank has left since, or its session ends.
  bool repeated = IsUnderWay(submission);
  absl::Status status = repeated ? absl::OkStatus() : CheckAdmission(submission, &group, &session);
  const JobSeq seq = submission.job.seq;
  if (status.ok() && !repeated) repeated = seq <= group->ranks[submission.rank.value()].last_seq && seq > JobSeq(0);
  if (status.ok()) status = repeated ? CheckRepeated(submission) : CheckNew(submission, *group, *session);
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

void JobTable::SetDraining(bool draining) {
  draining_ = draining;
  if (!draining) return;
  for (const auto& [epoch, group] : groups_.all()) {
    for (Rank rank : group->local_ranks) group->cut = std::max(group->cut, group->ranks[rank.value()].last_seq);
  }
  for (const auto& [key, job] : jobs_) {  // those that other nodes have offered are there, too
    if (Group* group = groups_.Find(key.epoch)) group->cut = std::max(group->cut, key.seq);
  }
}

NodeJob& JobTable::FindOrCreate(const Group& group, JobKey key) {
  std::unique_ptr<NodeJob>& slot = jobs_[key];
  if (slot != nullptr) return *slot;
  slot = std::make_unique<NodeJob>();
  NodeJob& job = *slot;
  job.key = key;
  job.tag = JobTag(next_tag_++);
  by_tag_[job.tag] = &job;
  job.stop_copies = std::make_shared<std::atomic<bool>>(false);
  job.rail_tx_bytes.assign(rails_.size(), 0);
  job.rail_rx_bytes.assign(rails_.size(), 0);
  job.rail_planned_bytes.assign(rails_.size(), 0);
  job.timeline = NewTimeline();
  job.tell_unsubmitted_at = now_ + kTellUnsubmittedAfter;
  Sooner(job.tell_unsubmitted_at);
  for (PeerIndex peer : group.peers) {
    job.peers[peer].peer = peer;
    job.peers[peer].left_out = group.Lost(peer);
  }
  return job;
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
  Ended& ended = ended_[key.epoch];
  auto tombstone = ended.tombstones.find(key.seq);
  if (tombstone != ended.tombstones.end() && !job.aborting()) job.failure = tombstone->second;
  if (job.aborting()) {
    // This rank's memory was never handed to anybody.
    FinishPart(job, part, job.failure);
    return Settle(job);
  }
  BeginCopies(job, group, part);
  StartIfComplete(job, group);
  if (job.told_unsubmitted) TellUnsubmitted(job);
}

void JobTable::StartIfComplete(NodeJob& job, Group& group) {
  if (job.started || job.aborting() || job.parts.size() < group.local_ranks.size()) return;
  Start(job, group);
}

void JobTable::Start(NodeJob& job, Group& group) {
  job.started = true;
  ReleaseOffers(job);
  job.started_at = now_;
  for (auto& [rank, part] : job.parts) part.report.state = JobState::kMatching;
  if (absl::Status s = BuildFlows(job, group); !s.ok()) return FailJob(job, s, false);
  for (PeerIndex peer : group.peers) {
    SendOffer(job, job.peers[peer]);
    Sooner(StrandedUntil(peers_.Get(peer)));
  }
  for (PeerIndex peer : group.peers) {
    if (!job.aborting() && !job.peers[peer].left_out && job.peers[peer].offer.has_value())
      Match(job, group, job.peers[peer]);
  }
  if (job.aborting()) return;
  MaybeRunning(job);
  for (Rank rank : group.local_ranks) FinishIfDone(job, rank);
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

// Lengths that differ fail the job when all ranks have submitted (CheckLocalFlows).
void JobTable::BeginCopy(NodeJob& job, RankPart& from, RankPart& to) {
  const Rank source = from.submission.rank, destination = to.submission.rank;
  PreparedFlow* const send = FlowWith(destination, from.submission.sends);
  PreparedFlow* const receive = FlowWith(source, to.submission.receives);
  if (BytesOf(send) != BytesOf(receive) || BytesOf(send) == 0) return;
  const LocalCopy& copy =
      job.copies.emplace_back(LocalCopy{source, destination, std::move(send->memory), std::move(receive->memory)});
  ++from.copies_left;
  ++to.copies_left;
  ++job.copies_running;
  copier_.Submit({job.tag, job.copies.size() - 1, &copy.from, &copy.to, job.stop_copies, job.tenant->index(),
                  job.tenant->share()});
}

absl::Status JobTable::BuildFlows(NodeJob& job, Group& group) {
  const RankPart& first = job.parts.begin()->second;
  for (const auto& [rank, part] : job.parts) {
    if (part.submission.tag == first.submission.tag) continue;
    return absl::InvalidArgumentError(absl::StrCat("tag: ", group.Describe(rank), " says ", part.submission.tag, ", ",
                                                   group.Describe(first.submission.rank), " says ",
                                                   first.submission.tag, " for job ", job.key.seq.value()));
  }
  if (absl::Status s = CheckLocalFlows(job, group); !s.ok()) return s;
  for (auto& [rank, part] : job.parts) {
    AddOutFlows(job, group, part);
    AddInFlows(job, group, part);
    part.receive_peers_left = group.peers.size();
  }
  for (PeerIndex peer : group.peers) {
    PeerExchange& exchange = job.peers[peer];
    exchange.out_left_bytes->store(exchange.out_bytes, std::memory_order_relaxed);
    job.out_bytes += exchange.out_bytes;
  }
  // In full at first, so that a peer that is lost before and one that is lost later are left out in one way.
  for (PeerIndex peer : group.peers) {
    if (job.peers[peer].left_out) LeaveOut(job, group, job.peers[peer]);
  }
  return absl::OkStatus();
}

absl::Status JobTable::CheckLocalFlows(NodeJob& job, const Group& group) const {
  std::vector<std::pair<Rank, Rank>> flows;  // source, destination; as either of the two submitted it
  for (const auto& [rank, part] : job.parts) {
    for (const PreparedFlow& send : part.submission.sends) {
      if (group.ranks[send.peer.value()].local) flows.emplace_back(rank, send.peer);
    }
    for (const PreparedFlow& receive : part.submission.receives) {
      if (group.ranks[receive.peer.value()].local) flows.emplace_back(receive.peer, rank);
    }
  }
  std::sort(flows.begin(), flows.end());
  flows.erase(std::unique(flows.begin(), flows.end()), flows.end());
  for (const auto& [source, destination] : flows) {
    RankPart &from = job.parts.at(source), &to = job.parts.at(destination);
    PreparedFlow* const send = FlowWith(destination, from.submission.sends);
    PreparedFlow* const receive = FlowWith(source, to.submission.receives);
    const uint64_t sent = BytesOf(send), expected = BytesOf(receive);
    if (sent != expected) {
      return absl::InvalidArgumentError(absl::StrCat(group.Describe(source), " sends ", sent, " bytes to ",
                                                     group.Describe(destination), ", which expects ", expected,
                                                     " in job ", job.key.seq.value()));
    }
  }
  return absl::OkStatus();
}

void JobTable::AddOutFlows(NodeJob& job, const Group& group, RankPart& part) {
  const Rank source = part.submission.rank;
  for (PreparedFlow& send : part.submission.sends) {
    const Group::Member& destination = group.ranks[send.peer.value()];
    if (destination.local || send.bytes == 0) continue;
    PeerExchange& exchange = job.peers.at(destination.peer);
    OutFlow& flow = exchange.out.emplace_back();
    flow.source = source;
    flow.destination = send.peer;
    flow.source_place = group.ranks[source.value()].place;
    flow.destination_place = destination.place;
    flow.send.job = job.tag;
    flow.send.peer = exchange.peer;
    flow.send.left_bytes = exchange.out_left_bytes.get();
    flow.send.memory = std::move(send.memory);
    exchange.out_bytes += send.bytes;
    part.sends_left_bytes += send.bytes;
    part.fenced_flows_left += remote_;
  }
}

void JobTable::AddInFlows(NodeJob& job, const Group& group, RankPart& part) {
  for (PreparedFlow& receive : part.submission.receives) {
    const Group::Member& source = group.ranks[receive.peer.value()];
    if (source.local || receive.bytes == 0) continue;
    job.peers.at(source.peer)
        .expected.push_back({part.submission.rank, receive.peer, receive.bytes, std::move(receive.memory)});
  }
}

void JobTable::Wait(SessionId session, JobKey key, Rank rank, absl::Duration timeout,
                    Callback<absl::StatusOr<JobReport>> done) {
  if (NodeJob* job = Find(key)) {
    auto it = job->parts.find(rank);
    if (it != job->parts.end() && !it->second.terminal() && it->second.submission.session == session) {
      if (timeout <= absl::ZeroDuration()) {
        FillReport(*job, it->second, &it->second.report);
        return std::move(done)(it->second.report);
      }
      it->second.waiters.push_back({now_ + timeout, std::move(done)});
      return Sooner(now_ + timeout);
    }
  }
  if (auto ended = ended_.find(key.epoch); ended != ended_.end()) {
    auto it = ended->second.reports.find({key.seq, rank});
    if (it != ended->second.reports.end() && it->second.session == session) return std::move(done)(it->second.report);
  }
  std::move(done)(absl::NotFoundError(
      absl::StrCat("job.seq: ", key.seq.value(), " of rank ", rank.value(), " is not a job of this session")));
}

void JobTable::Cancel(SessionId session, JobKey key, Rank rank, Callback<absl::Status> done) {
  NodeJob* job = Find(key);
  if (job != nullptr) {
    auto it = job->parts.find(rank);
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

}  // namespace railsd
