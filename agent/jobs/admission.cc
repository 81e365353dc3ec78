#include "agent/jobs/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/base/failed_ranks.h"
#include "agent/jobs/local_copies.h"
#include "agent/memory/segment.h"

namespace railsd {

const RankPart* Admission::UnderWay(const CheckedSubmission& submission) const {
  const auto job = jobs_.find(submission.job);
  if (job == jobs_.end()) return nullptr;
  return job->second->parts.Find(submission.rank);
}

absl::Status Admission::CheckMember(const CheckedSubmission& submission, Group** group_out,
                                    Session** session_out) const {
  Session* session = sessions_.Find(submission.session);
  if (session == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", submission.session.value(), " is not open"));
  }
  Group* group = groups_.Find(submission.job.epoch);
  // The answer does not show that another tenant's group exists.
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

// Checks a number that was taken before: the same content is the same job.
absl::Status Admission::CheckRepeated(const CheckedSubmission& submission) const {
  const Digest* known = nullptr;
  if (const RankPart* part = UnderWay(submission)) known = &part->submission.digest;
  if (known == nullptr) {
    const JobRecords::Finished* finished = records_.Find(submission.job, submission.rank);
    if (finished != nullptr) known = &finished->digest;
  }
  if (known == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("job.seq: ", submission.job.seq.value(), " ended long ago and is forgotten"));
  }
  // A prepared exchange that was released leaves no digest to compare. The job may be under way, so it is not called
  // refused.
  if (*known != submission.digest && submission.digest != Digest()) {
    return absl::AlreadyExistsError(
        absl::StrCat("job.seq: ", submission.job.seq.value(), " was submitted before with other content"));
  }
  return absl::OkStatus();
}

// OK when the epoch is not broken, or when this job goes on in a broken one.
absl::Status Admission::CheckAlive(const CheckedSubmission& submission, const Group& group) const {
  if (!group.broken || (submission.job.seq > JobSeq(0) && submission.job.seq <= group.good_until)) {
    return absl::OkStatus();
  }
  const auto code = group.replayable ? absl::StatusCode::kAborted : absl::StatusCode::kFailedPrecondition;
  return WithFailedRanks(
      absl::Status(code, absl::StrCat("group ", group.key.name, " is broken: ", group.why.message(), "; join again")),
      FailedRanks(group.why));
}

absl::Status Admission::CheckRanges(const CheckedSubmission& submission, const Group& group) const {
  if (submission.peers_end > group.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(submission.last_field, "[", submission.last_flow,
                                                   "].peer_rank: ", submission.peers_end - 1,
                                                   " is not below the world size ", group.world_size()));
  }
  if (absl::IsResourceExhausted(submission.verdict)) options_.refused->Count(Limit::kRangesPerSubmission);
  return submission.verdict;
}

// Flows between ranks of this node are copied by the processor, which cannot touch memory of a device.
absl::Status Admission::CheckLocalFlows(const CheckedSubmission& submission, const Group& group) const {
  if (submission.memory == nullptr || !submission.memory->has_device_memory()) return absl::OkStatus();
  absl::Status status;
  const auto check = [&](absl::string_view field, const CheckedFlow& flow, Rank from, Rank to) {
    if (!status.ok()) return;
    if (from == to && submission.flows->own_in_place) return;  // nothing is copied
    for (const MemoryPiece& piece : submission.memory->Pieces(flow.memory)) {
      if (piece.offset_bytes >= flow.bytes) return;  // of a prepared exchange that is not used as far
      if (piece.segment->kind() != MemoryKind::kDmaBuf) continue;
      status =
          absl::InvalidArgumentError(absl::StrCat(field, ": the flow from ", group.Describe(from), " to ",
                                                  group.Describe(to), " uses segment ", piece.segment->id().value(),
                                                  ", a dma-buf, and does not leave the node: the daemon cannot copy "
                                                  "memory of a device; copy these bytes on the "
                                                  "device and leave the flow out, or use memory of the host"));
      return;
    }
  };
  ForEachLocal(submission.sends, group,
               [&](const CheckedFlow& flow) { check("sends", flow, submission.rank, flow.peer); });
  ForEachLocal(submission.receives, group,
               [&](const CheckedFlow& flow) { check("receives", flow, flow.peer, submission.rank); });
  return status;
}

absl::Status Admission::Keep(CheckedSubmission& layout) {
  Group* group = nullptr;
  Session* session = nullptr;
  if (absl::Status s = CheckMember(layout, &group, &session); !s.ok()) return s;
  if (absl::Status s = CheckAlive(layout, *group); !s.ok()) return s;
  if (absl::Status s = CheckRanges(layout, *group); !s.ok()) return s;
  PreparedExchanges& prepared = session->memory->prepared();
  if (prepared.Find(layout.prepared) != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("prepared_id: ", layout.prepared.value(), " is taken in this session"));
  }
  const AgentLimits& limits = options_.limits;
  if (prepared.count() >= limits.max_prepared_per_session) {
    return options_.refused->Refuse(Limit::kPreparedPerSession, absl::StrCat("the session has ", prepared.count(),
                                                                             " prepared exchanges; release one first"));
  }
  if (const uint64_t had = prepared.ranges(); had + layout.ranges > limits.max_prepared_ranges_per_session) {
    return options_.refused->Refuse(
        Limit::kPreparedRangesPerSession,
        absl::StrCat("the session's prepared exchanges have ", had, " ranges, ", layout.ranges,
                     " more would pass the limit of ", limits.max_prepared_ranges_per_session));
  }
  prepared.Add(layout.prepared,
               std::make_shared<PreparedExchange>(PreparedExchange{layout.job.epoch, layout.rank, layout.digest,
                                                                   layout.flows, layout.segments, layout.uses}));
  return absl::OkStatus();
}

// Checks a submission that takes the next number of its rank.
absl::Status Admission::CheckNew(const CheckedSubmission& submission, Group& group, Session& session, absl::Time now) {
  const uint64_t seq = submission.job.seq.value();
  const uint64_t last = group.ranks[submission.rank.value()].last_seq.value();
  if (seq != last + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("job.seq: ", seq, ", the next of rank ", submission.rank.value(), " in this epoch is ", last + 1));
  }
  if (absl::Status s = CheckAlive(submission, group); !s.ok()) return s;
  if (draining_ && submission.job.seq > group.cut) {
    return absl::UnavailableError(
        absl::StrCat(peers_.self(), " is draining; the last job taken is ", group.cut.value()));
  }
  size_t active = 0;
  for (const auto& [key, job] : jobs_) {
    const RankPart* const part = key.epoch == submission.job.epoch ? job->parts.Find(submission.rank) : nullptr;
    active += part != nullptr && !part->terminal();
  }
  if (active >= std::max(1u, options_.limits.max_jobs_per_group)) {
    return options_.refused->Refuse(Limit::kJobsPerGroup,
                                    absl::StrCat(active, " jobs of rank ", submission.rank.value(),
                                                 " are under way in group ", group.key.name, "; wait for one"));
  }
  if (absl::Status s = CheckRanges(submission, group); !s.ok()) return s;
  if (absl::Status s = CheckLocalFlows(submission, group); !s.ok()) return s;
  if (absl::Status s = ClaimMemory(submission); !s.ok()) return s;
  return session.tenant->TakeJob(/*head=*/active == 0, now);  // last, because an accepted job keeps what this takes
}

absl::Status Admission::Check(const CheckedSubmission& submission, absl::Time now, Group** group, Session** session,
                              bool* repeated) {
  // A job under way was accepted, also when its rank has left since, or its session ends.
  const RankPart* const part = UnderWay(submission);
  *repeated = part != nullptr && part->submission.session == submission.session;
  if (!*repeated) {
    if (absl::Status s = CheckMember(submission, group, session); !s.ok()) return s;
    const JobSeq seq = submission.job.seq;
    *repeated = seq <= (*group)->ranks[submission.rank.value()].last_seq && seq > JobSeq(0);
  }
  return *repeated ? CheckRepeated(submission) : CheckNew(submission, **group, **session, now);
}

absl::Status Admission::CheckAnnounced(const Group& group, JobKey key, const Peer& from) {
  if (const absl::Status* const tombstone = records_.Tombstone(key)) return *tombstone;
  const uint64_t seq = key.seq.value(), last = group.LastTaken().value();
  // The job has ended without this READY, so it was aborted. The reason is forgotten.
  if (seq <= last) return absl::AbortedError(absl::StrCat("job ", seq, " has ended on ", peers_.self()));
  if (seq <= LastExpected(group)) return absl::OkStatus();
  return options_.refused->Refuse(Limit::kJobsPerGroup,
                                  absl::StrCat(from.node, " submits job ", seq, ", ", peers_.self(), " is at ", last));
}

void Admission::SetDraining(bool draining) {
  draining_ = draining;
  if (!draining) return;
  for (const auto& [epoch, group] : groups_.all()) {
    for (Rank rank : group->local_ranks) group->cut = std::max(group->cut, group->ranks[rank.value()].last_seq);
  }
  for (const auto& [key, job] : jobs_) {  // jobs that other nodes have submitted are there, too
    if (Group* group = groups_.Find(key.epoch)) group->cut = std::max(group->cut, key.seq);
  }
}

}  // namespace railsd
