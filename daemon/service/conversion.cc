#include "daemon/service/conversion.h"

#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/operator.pb.h"

namespace railsd {
namespace {

absl::Status BadField(const std::string& text) { return absl::InvalidArgumentError(text); }

// Reads the columns of one flow.
absl::Status ReadFlow(const rails::v1::FlowRanges& in, const std::string& field, FlowRanges* out) {
  const int count = in.offsets_bytes_size();
  if (in.lengths_bytes_size() != count) {
    return BadField(
        absl::StrCat(field, ".lengths_bytes: ", in.lengths_bytes_size(), " entries beside ", count, " offsets_bytes"));
  }
  const bool one_segment = in.segment_ids_size() == 1;
  if (!one_segment && in.segment_ids_size() != count) {
    return BadField(absl::StrCat(field, ".segment_ids: ", in.segment_ids_size(), " entries, neither 1 nor ", count));
  }
  out->peer = Rank(in.peer_rank());
  out->ranges.reserve(static_cast<size_t>(count));
  uint64_t total = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t offset = in.offsets_bytes(i), length = in.lengths_bytes(i);
    if (length > std::numeric_limits<uint64_t>::max() - offset) {
      return BadField(
          absl::StrCat(field, ".offsets_bytes[", i, "]: ", offset, " + length ", length, " is past 64 bits"));
    }
    if (__builtin_add_overflow(total, length, &total)) {
      return BadField(absl::StrCat(field, ".lengths_bytes[", i, "]: ", length, " takes the flow past 64 bits"));
    }
    out->ranges.push_back({SegmentId(in.segment_ids(one_segment ? 0 : i)), offset, length});
  }
  return absl::OkStatus();
}

absl::Status TakeRanges(const rails::v1::FlowRanges& in, const std::string& field, const AgentLimits& limits,
                        uint64_t* ranges_left) {
  const uint64_t ranges = static_cast<uint64_t>(in.offsets_bytes_size());
  if (ranges > *ranges_left) {
    return absl::ResourceExhaustedError(absl::StrCat(field, ".offsets_bytes: more ranges in the submission than ",
                                                     "limits.max_ranges_per_submission ",
                                                     limits.max_ranges_per_submission));
  }
  *ranges_left -= ranges;
  return absl::OkStatus();
}

absl::Status ReadOwn(const rails::v1::FlowRanges& in, const std::string& field, const AgentLimits& limits,
                     uint64_t* ranges_left, std::vector<Range>* out) {
  FlowRanges flow;
  absl::Status status = TakeRanges(in, field, limits, ranges_left);
  if (status.ok()) status = ReadFlow(in, field, &flow);
  *out = std::move(flow.ranges);
  return status;
}

template <typename Flows>
absl::Status ReadFlows(const Flows& in, const char* name, Rank self, const AgentLimits& limits, uint64_t* ranges_left,
                       std::vector<FlowRanges>* out) {
  if (static_cast<uint64_t>(in.size()) > limits.max_world_size) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, ": ", in.size(), " flows, more than limits.max_world_size ", limits.max_world_size));
  }
  absl::flat_hash_set<uint32_t> seen;
  seen.reserve(static_cast<size_t>(in.size()));
  out->reserve(static_cast<size_t>(in.size()));
  for (int i = 0; i < in.size(); ++i) {
    const std::string field = absl::StrCat(name, "[", i, "]");
    if (in[i].peer_rank() == self.value()) {
      return BadField(absl::StrCat(field, ".peer_rank: ", in[i].peer_rank(), " is the rank itself"));
    }
    if (!seen.insert(in[i].peer_rank()).second) {
      return BadField(absl::StrCat(field, ".peer_rank: ", in[i].peer_rank(), " is given twice"));
    }
    FlowRanges flow;
    absl::Status status = TakeRanges(in[i], field, limits, ranges_left);
    if (status.ok()) status = ReadFlow(in[i], field, &flow);
    if (!status.ok()) return status;
    out->push_back(std::move(flow));
  }
  return absl::OkStatus();
}

void EpochTo(const Epoch& epoch, rails::v1::Epoch* out) {
  out->set_boot_id(epoch.boot.value());
  out->set_counter(epoch.counter);
}

rails::v1::JobState StateTo(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return rails::v1::JOB_STATE_QUEUED;
    case JobState::kMatching:
      return rails::v1::JOB_STATE_MATCHING;
    case JobState::kRunning:
      return rails::v1::JOB_STATE_RUNNING;
    case JobState::kDone:
      return rails::v1::JOB_STATE_DONE;
    case JobState::kFailed:
      return rails::v1::JOB_STATE_FAILED;
  }
  return rails::v1::JOB_STATE_UNSPECIFIED;
}

}  // namespace

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

absl::StatusOr<Submission> SubmissionFrom(const rails::v1::SubmitAllToAllRequest& request, SessionId session,
                                          const AgentLimits& limits) {
  const absl::StatusOr<JobOfRank> job = JobFrom(request.job(), request.has_job());
  if (!job.ok()) return job.status();
  Submission out;
  out.session = session;
  out.job = job->job;
  out.rank = job->rank;
  out.attempt = request.attempt();
  out.question = request.question();
  out.tag = request.tag();
  out.timeout =
      request.timeout_milliseconds() == 0 ? absl::InfiniteDuration() : FromMilliseconds(request.timeout_milliseconds());
  uint64_t ranges_left = limits.max_ranges_per_submission;
  absl::Status status = ReadFlows(request.sends(), "sends", out.rank, limits, &ranges_left, &out.sends);
  if (status.ok()) status = ReadFlows(request.receives(), "receives", out.rank, limits, &ranges_left, &out.receives);
  if (status.ok()) status = ReadOwn(request.own_sends(), "own_sends", limits, &ranges_left, &out.own_reads);
  if (status.ok()) status = ReadOwn(request.own_receives(), "own_receives", limits, &ranges_left, &out.own_writes);
  if (!status.ok()) return status;
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
  for (Rank rank : report.lost_ranks) out->add_lost_ranks(rank.value());
  out->set_replayable(report.replayable);
}

namespace {

static_assert(static_cast<int>(HealthState::kUp) + 1 == rails::v1::RAIL_STATE_UP);
static_assert(static_cast<int>(HealthState::kSuspect) + 1 == rails::v1::RAIL_STATE_SUSPECT);
static_assert(static_cast<int>(HealthState::kDown) + 1 == rails::v1::RAIL_STATE_DOWN);
static_assert(static_cast<int>(HealthState::kProbing) + 1 == rails::v1::RAIL_STATE_PROBING);
static_assert(static_cast<int>(HealthState::kDrainedByPeer) + 1 == rails::v1::RAIL_STATE_DRAINED_BY_PEER);

rails::v1::RailState StateTo(HealthState state) {
  return static_cast<rails::v1::RailState>(static_cast<int>(state) + 1);
}

void HealthTo(const RailHealthView& health, rails::v1::RailHealth* out) {
  out->set_state(StateTo(health.state));
  out->set_drained(health.drained);
  out->set_why(health.why);
  out->set_flaps(health.flaps);
  out->set_drains(health.drains);
  out->set_held_seconds(absl::ToDoubleSeconds(health.held));
}

}  // namespace

void RailTo(const RailView& rail, rails::v1::RailStatus* out) {
  out->set_index(rail.index.value());
  out->set_name(rail.name);
  out->set_address(rail.address);
  out->set_interface(rail.interface);
  out->set_speed_bytes_per_second(rail.speed_bytes_per_s);
  out->set_measured_bytes_per_second(rail.measured_bytes_per_s);
  out->set_peers_up(rail.peers_up);
  out->set_peers_known(rail.peers_known);
  out->set_peers_drained(rail.peers_drained);
  out->set_queued_bytes(rail.queued_bytes);
  out->set_in_flight_bytes(rail.in_flight_bytes);
  out->set_tx_payload_bytes(rail.tx_payload_bytes);
  out->set_rx_payload_bytes(rail.rx_payload_bytes);
  out->set_tx_chunks(rail.tx_chunks);
  out->set_rx_chunks(rail.rx_chunks);
  out->set_tx_system_calls(rail.tx_system_calls);
  out->set_rx_system_calls(rail.rx_system_calls);
  out->set_protocol_errors(rail.protocol_errors);
  out->set_refused_connections(rail.refused_connections);
  out->set_disconnects(rail.disconnects);
  out->set_connect_failures(rail.connect_failures);
  HealthTo(rail.health, out->mutable_health());
  out->set_planned_bytes_per_second(rail.planned_bytes_per_s);
  out->set_planned_bytes(rail.planned_bytes);
  if (rail.device.name.empty()) return;
  auto* device = out->mutable_device();
  device->set_name(rail.device.name);
  device->set_port(rail.device.port);
  device->set_state(rail.device.state);
  device->set_link_layer(rail.device.link_layer);
  device->set_gid(rail.device.gid);
  device->set_gid_index(rail.device.gid_index);
  device->set_mtu_bytes(rail.device.mtu_bytes);
  device->set_windows(rail.device.windows);
  device->set_queue_pairs(static_cast<uint32_t>(rail.queue_pairs));
  device->set_work_requests(rail.work_requests);
  device->set_completions(rail.completions);
  device->set_tx_fences(rail.tx_fences);
  device->set_rx_fences(rail.rx_fences);
  device->set_weak_zones(rail.weak_zones);
  device->set_endpoint_errors(rail.endpoint_errors);
}

void PeerTo(const PeerView& peer, rails::v1::PeerStatus* out) {
  out->set_node(peer.node);
  out->set_boot_id(peer.boot.value());
  out->set_up(peer.up);
  for (const bool up : peer.rails_up) out->add_rails_up(up);
  for (const std::string& address : peer.rail_addresses) out->add_rail_addresses(address);
  out->set_why(peer.why);
  for (const HealthState state : peer.rail_states) out->add_rail_states(StateTo(state));
  out->mutable_rail_tx_bytes()->Add(peer.rail_tx_bytes.begin(), peer.rail_tx_bytes.end());
  out->mutable_rail_rx_bytes()->Add(peer.rail_rx_bytes.begin(), peer.rail_rx_bytes.end());
  out->set_version(peer.version);
  out->set_connections(peer.connections);
}

void StatusTo(const AgentSnapshot& snapshot, rails::v1::GetStatusResponse* out) {
  for (const SessionView& session : snapshot.sessions) {
    auto* s = out->add_sessions();
    s->set_session_id(session.id.value());
    s->set_pid(session.info.pid);
    s->set_uid(session.info.uid);
    s->set_gid(session.info.gid);
    s->set_tenant(session.info.tenant);
    s->set_segments(session.segments);
    s->set_segment_bytes(session.segment_bytes);
    s->set_memberships(session.memberships);
  }
  for (const GroupView& group : snapshot.groups) {
    auto* g = out->add_groups();
    g->set_tenant(group.tenant);
    g->set_name(group.name);
    EpochTo(group.epoch, g->mutable_epoch());
    g->set_world_size(group.world_size);
    for (const std::string& node : group.members) g->add_members(node);
    for (const Rank rank : group.local_ranks) g->add_local_ranks(rank.value());
    g->set_broken(group.broken);
    g->set_why_broken(group.broken ? group.why.ToString() : "");
    g->set_recovery(static_cast<rails::v1::RecoveryPolicy>(group.recovery.policy));
    g->set_wait_limit_milliseconds(static_cast<uint64_t>(absl::ToInt64Milliseconds(group.recovery.wait_limit)));
    for (const std::string& node : group.lost) g->add_lost_nodes(node);
  }
  for (const TenantView& tenant : snapshot.tenants) {
    auto* t = out->add_tenants();
    t->set_name(tenant.name);
    for (const QuotaKind kind : kAllQuotas) {
      auto* quota = t->add_quotas();
      quota->set_name(QuotaName(kind));
      quota->set_value(tenant.quota[kind]);
      quota->set_in_use(tenant.in_use[kind]);
      quota->set_refused(tenant.refused[kind]);
    }
    t->set_jobs_done(tenant.jobs_done);
    t->set_jobs_failed(tenant.jobs_failed);
    t->set_bytes_sent(tenant.bytes_sent);
    t->set_bytes_received(tenant.bytes_received);
    t->set_weight(tenant.share.weight);
    t->set_priority(tenant.share.priority);
    t->mutable_rail_sent_bytes()->Add(tenant.rail_sent_bytes.begin(), tenant.rail_sent_bytes.end());
  }
  out->set_draining(snapshot.draining);
  out->set_jobs_active(snapshot.counters.jobs_active);
  out->set_jobs_done(snapshot.counters.jobs_done);
  out->set_jobs_failed(snapshot.counters.jobs_failed);
}

}  // namespace railsd
