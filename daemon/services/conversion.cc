#include "daemon/services/conversion.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "agent/base/failed_ranks.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"

namespace railsd {
namespace {

absl::Status BadField(const std::string& text) { return absl::InvalidArgumentError(text); }

// Reads the columns of one flow. `ranges_left`: how many more ranges the submission may have. Errors begin with the
// name of the field in the flow.
absl::Status ReadFlow(const rails::v1::FlowRanges& in, const AgentLimits& limits, uint64_t* ranges_left,
                      FlowRanges* out) {
  const int count = in.offsets_bytes_size();
  if (static_cast<uint64_t>(count) > *ranges_left) {
    return absl::ResourceExhaustedError(absl::StrCat(".offsets_bytes: more ranges in the submission than ",
                                                     "limits.max_ranges_per_submission ",
                                                     limits.max_ranges_per_submission));
  }
  *ranges_left -= static_cast<uint64_t>(count);
  if (in.lengths_bytes_size() != count) {
    return BadField(
        absl::StrCat(".lengths_bytes: ", in.lengths_bytes_size(), " entries beside ", count, " offsets_bytes"));
  }
  const bool one_segment = in.segment_ids_size() == 1;
  if (!one_segment && in.segment_ids_size() != count) {
    return BadField(absl::StrCat(".segment_ids: ", in.segment_ids_size(), " entries, neither 1 nor ", count));
  }
  out->peer = Rank(in.peer_rank());
  out->ranges.reserve(static_cast<size_t>(count));
  uint64_t total = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t offset = in.offsets_bytes(i), length = in.lengths_bytes(i);
    if (length > std::numeric_limits<uint64_t>::max() - offset) {
      return BadField(absl::StrCat(".offsets_bytes[", i, "]: ", offset, " + length ", length, " is past 64 bits"));
    }
    if (__builtin_add_overflow(total, length, &total)) {
      return BadField(absl::StrCat(".lengths_bytes[", i, "]: ", length, " takes the flow past 64 bits"));
    }
    out->ranges.push_back({SegmentId(in.segment_ids(one_segment ? 0 : i)), offset, length});
  }
  return absl::OkStatus();
}

template <typename Flows>
absl::Status ReadFlows(const Flows& in, const char* name, const AgentLimits& limits, uint64_t* ranges_left,
                       std::vector<FlowRanges>* out) {
  if (static_cast<uint64_t>(in.size()) > limits.max_world_size) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, ": ", in.size(), " flows, more than limits.max_world_size ", limits.max_world_size));
  }
  out->reserve(static_cast<size_t>(in.size()));
  for (int i = 0; i < in.size(); ++i) {
    if (absl::Status status = ReadFlow(in[i], limits, ranges_left, &out->emplace_back()); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, "[", i, "]", status.message()));
    }
  }
  return absl::OkStatus();
}

template <typename Request>
absl::Status ReadRanges(const Request& request, const AgentLimits& limits, Submission* out) {
  uint64_t ranges_left = limits.max_ranges_per_submission;
  absl::Status status = ReadFlows(request.sends(), "sends", limits, &ranges_left, &out->sends);
  if (status.ok()) status = ReadFlows(request.receives(), "receives", limits, &ranges_left, &out->receives);
  return status;
}

static_assert(static_cast<int>(JobState::kQueued) + 1 == rails::v1::JOB_STATE_QUEUED);
static_assert(static_cast<int>(JobState::kMatching) + 1 == rails::v1::JOB_STATE_MATCHING);
static_assert(static_cast<int>(JobState::kRunning) + 1 == rails::v1::JOB_STATE_RUNNING);
static_assert(static_cast<int>(JobState::kDone) + 1 == rails::v1::JOB_STATE_DONE);
static_assert(static_cast<int>(JobState::kFailed) + 1 == rails::v1::JOB_STATE_FAILED);

rails::v1::JobState StateTo(JobState state) { return static_cast<rails::v1::JobState>(static_cast<int>(state) + 1); }

}  // namespace

void EpochTo(const Epoch& epoch, rails::v1::Epoch* out) {
  out->set_boot_id(epoch.boot.value());
  out->set_counter(epoch.counter);
}

absl::Duration FromMilliseconds(uint64_t milliseconds) {
  constexpr uint64_t kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return milliseconds > kMax ? absl::InfiniteDuration() : absl::Milliseconds(static_cast<int64_t>(milliseconds));
}

absl::StatusOr<JoinRequest> JoinFrom(const rails::v1::JoinGroupRequest& request, SessionId session,
                                     const AgentLimits& limits) {
  if (request.name().empty()) return BadField("name: empty");
  if (request.name().size() > limits.max_name_bytes) {
    return BadField(
        absl::StrCat("name: ", request.name().size(), " bytes, more than limits.max_name ", limits.max_name_bytes));
  }
  if (request.join_key().size() > limits.max_join_key_bytes) {
    return BadField(absl::StrCat("join_key: ", request.join_key().size(), " bytes, more than limits.max_join_key ",
                                 limits.max_join_key_bytes));
  }
  if (request.world_size() == 0 || request.world_size() > limits.max_world_size) {
    return BadField(absl::StrCat("world_size: ", request.world_size(), ", outside 1 to limits.max_world_size ",
                                 limits.max_world_size));
  }
  if (request.rank() >= request.world_size()) {
    return BadField(absl::StrCat("rank: ", request.rank(), ", outside the world size ", request.world_size()));
  }
  if (request.recovery() < 0 || request.recovery() > rails::v1::RECOVERY_POLICY_DEGRADE) {
    return BadField(absl::StrCat("recovery: ", request.recovery(), " is no policy"));
  }
  const bool waits = request.recovery() == rails::v1::RECOVERY_POLICY_WAIT;
  if (waits != (request.wait_limit_milliseconds() > 0)) {
    return BadField(waits ? "wait_limit_milliseconds: 0; policy WAIT needs a limit"
                          : "wait_limit_milliseconds: only policy WAIT has a limit");
  }
  JoinRequest join;
  join.session = session;
  if (request.recovery() != rails::v1::RECOVERY_POLICY_UNSPECIFIED) {
    join.recovery.policy = static_cast<RecoveryPolicy>(request.recovery());
  }
  join.recovery.wait_limit = FromMilliseconds(request.wait_limit_milliseconds());
  join.next_seq = JobSeq(std::max<uint64_t>(1, request.next_seq()));
  join.name = request.name();
  join.join_key = request.join_key();
  join.world_size = request.world_size();
  join.rank = Rank(request.rank());
  join.timeout =
      request.timeout_milliseconds() == 0 ? absl::InfiniteDuration() : FromMilliseconds(request.timeout_milliseconds());
  return join;
}

void JoinTo(const GroupView& group, rails::v1::JoinGroupResponse* out) {
  EpochTo(group.epoch, out->mutable_epoch());
  for (const std::string& node : group.members) out->add_members(node);
}

absl::StatusOr<Epoch> EpochFrom(const rails::v1::Epoch& epoch, const char* field) {
  if (epoch.boot_id() == 0) return BadField(absl::StrCat(field, ".boot_id: 0; give the epoch that JoinGroup answered"));
  return Epoch{BootId(epoch.boot_id()), epoch.counter()};
}

absl::StatusOr<JobOfRank> JobFrom(const rails::v1::JobId& job, bool present) {
  if (!present) return BadField("job: missing");
  absl::StatusOr<Epoch> epoch = EpochFrom(job.epoch(), "job.epoch");
  if (!epoch.ok()) return epoch.status();
  if (job.seq() == 0) return BadField("job.seq: 0; sequence numbers start from 1");
  return JobOfRank{{*epoch, JobSeq(job.seq())}, Rank(job.rank())};
}

// The fields that all submissions have, however their ranges are given.
template <typename Request>
absl::StatusOr<Submission> NumberedFrom(const Request& request, SessionId session) {
  const absl::StatusOr<JobOfRank> job = JobFrom(request.job(), request.has_job());
  if (!job.ok()) return job.status();
  Submission out;
  out.session = session;
  out.job = job->job;
  out.rank = job->rank;
  out.tag = request.tag();
  out.capacities = request.capacities();
  out.vote = request.vote();
  out.urgent = request.urgent();
  out.timeout =
      request.timeout_milliseconds() == 0 ? absl::InfiniteDuration() : FromMilliseconds(request.timeout_milliseconds());
  return out;
}

absl::StatusOr<Submission> SubmissionFrom(const rails::v1::SubmitAllToAllRequest& request, SessionId session,
                                          const AgentLimits& limits) {
  absl::StatusOr<Submission> out = NumberedFrom(request, session);
  if (!out.ok()) return out.status();
  if (absl::Status status = ReadRanges(request, limits, &*out); !status.ok()) return status;
  return out;
}

absl::StatusOr<Submission> LayoutFrom(const rails::v1::PrepareAllToAllRequest& request, SessionId session,
                                      const AgentLimits& limits) {
  const absl::StatusOr<Epoch> epoch = EpochFrom(request.epoch(), "epoch");
  if (!epoch.ok()) return epoch.status();
  if (request.prepared_id() == 0) return BadField("prepared_id: 0; the client numbers from 1");
  Submission out;
  out.session = session;
  out.job.epoch = *epoch;
  out.rank = Rank(request.rank());
  out.prepared = PreparedId(request.prepared_id());
  if (absl::Status status = ReadRanges(request, limits, &out); !status.ok()) return status;
  return out;
}

absl::StatusOr<Submission> PreparedSubmissionFrom(const rails::v1::SubmitPreparedRequest& request, SessionId session) {
  absl::StatusOr<Submission> out = NumberedFrom(request, session);
  if (!out.ok()) return out.status();
  if (request.prepared_id() == 0) return BadField("prepared_id: 0; give that of PrepareAllToAll");
  out->prepared = PreparedId(request.prepared_id());
  out->lengths_bytes = request.lengths_bytes();
  return out;
}

void ReportTo(const JobReport& report, rails::v1::JobReport* out) {
  EpochTo(report.job.epoch, out->mutable_job()->mutable_epoch());
  out->mutable_job()->set_seq(report.job.seq.value());
  out->mutable_job()->set_rank(report.rank.value());
  out->set_tag(report.tag);
  out->set_tenant(report.tenant);
  out->set_group(report.group);
  out->set_state(StateTo(report.state));
  out->set_code(static_cast<int32_t>(report.status.code()));
  out->set_message(std::string(report.status.message()));
  for (Rank rank : FailedRanks(report.status)) out->add_failed_ranks(rank.value());
  out->set_bytes_to_send(report.bytes_to_send);
  out->set_bytes_sent(report.bytes_sent);
  out->set_bytes_to_receive(report.bytes_to_receive);
  out->set_bytes_received(report.bytes_received);
  out->set_elapsed_seconds(absl::ToDoubleSeconds(report.elapsed));
  out->set_waiting_for_ranks_seconds(absl::ToDoubleSeconds(report.waiting_for_ranks));
  out->set_waiting_for_peers_seconds(absl::ToDoubleSeconds(report.waiting_for_peers));
  out->set_to_first_chunk_seconds(absl::ToDoubleSeconds(report.to_first_chunk));
  out->set_sending_seconds(absl::ToDoubleSeconds(report.sending));
  out->set_receiving_seconds(absl::ToDoubleSeconds(report.receiving));
  auto* efficiency = out->mutable_efficiency();
  efficiency->set_total(report.efficiency.total);
  efficiency->set_data(report.efficiency.data);
  efficiency->set_moving(report.efficiency.moving);
  efficiency->set_utilisation(report.efficiency.utilisation);
  out->set_node_bound_seconds(absl::ToDoubleSeconds(report.node_bound));
  out->set_ratio_to_bound(report.ratio_to_bound);
  out->mutable_rail_tx_bytes()->Add(report.rail_tx_bytes.begin(), report.rail_tx_bytes.end());
  out->mutable_rail_rx_bytes()->Add(report.rail_rx_bytes.begin(), report.rail_rx_bytes.end());
  out->mutable_rail_planned_bytes()->Add(report.rail_planned_bytes.begin(), report.rail_planned_bytes.end());
  out->set_eager_sent_bytes(report.eager_sent_bytes);
  out->set_eager_received_bytes(report.eager_received_bytes);
  out->set_highest_vote(report.highest_vote);
  out->mutable_received_by_rank()->Add(report.received_by_rank.begin(), report.received_by_rank.end());
  for (Rank rank : report.lost_ranks) out->add_lost_ranks(rank.value());
  out->set_replayable(report.replayable);
}

}  // namespace railsd
