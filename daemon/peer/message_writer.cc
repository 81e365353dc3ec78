// Converts the agent's control messages to rails.peer.v1.
#include <utility>
#include <variant>
#include <vector>

#include "daemon/peer/peer_conversion.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;

void EpochTo(const Epoch& epoch, pb::Epoch* out) {
  out->set_boot_id(epoch.boot.value());
  out->set_counter(epoch.counter);
}
void JobTo(const JobKey& job, pb::JobKey* out) {
  EpochTo(job.epoch, out->mutable_epoch());
  out->set_seq(job.seq.value());
}
void KeyTo(const GroupKey& key, pb::GroupKey* out) {
  out->set_tenant(key.tenant);
  out->set_name(key.name);
  out->set_key_digest(key.key_digest.data(), key.key_digest.size());
}
void RecoveryTo(const Recovery& recovery, pb::Recovery* out) {
  out->set_policy(static_cast<uint32_t>(recovery.policy));
  out->set_wait_limit_milliseconds(static_cast<uint64_t>(absl::ToInt64Milliseconds(recovery.wait_limit)));
}
void FlowsTo(const Ready::Flows& flows, pb::Flows* out) {
  const int count = static_cast<int>(flows.size());
  out->mutable_source_ranks()->Reserve(count);
  out->mutable_destination_ranks()->Reserve(count);
  out->mutable_lengths_bytes()->Reserve(count);
  for (const Ready::Flow& flow : flows) {
    out->add_source_ranks(flow.source.value());
    out->add_destination_ranks(flow.destination.value());
    out->add_lengths_bytes(flow.bytes);
  }
}
// `out`: RailConnections or RailKeys, which have these two columns.
template <typename Columns>
void ConnectionTo(const RailConnection& connection, Columns* out) {
  out->add_rails(connection.rail.value());
  out->add_connections(connection.connection);
}
void KeysTo(const std::vector<RailKeys>& rails, pb::RailKeys* out) {
  for (const RailKeys& rail : rails) {
    ConnectionTo(rail.rail, out);
    out->mutable_keys()->Add(rail.keys.begin(), rail.keys.end());
  }
}
void GrantTo(const Grant& grant, pb::Grant* out) {
  out->set_slot(grant.zone.slot);
  out->set_generation(grant.zone.generation);
  const int ranges = static_cast<int>(grant.ranges.size());
  out->mutable_range_addresses()->Reserve(ranges);
  out->mutable_range_lengths_bytes()->Reserve(ranges);
  for (const Grant::Range& range : grant.ranges) {
    out->add_range_addresses(range.address);
    out->add_range_lengths_bytes(range.length_bytes);
  }
  if (!grant.keys.empty()) KeysTo(grant.keys, out->mutable_keys());
}
void TallyTo(const Tally& tally, pb::Tally* out) {
  JobTo(tally.job, out->mutable_job());
  out->mutable_bytes()->Add(tally.bytes.begin(), tally.bytes.end());
}
std::string Cut(const std::string& text) { return text.substr(0, kMaxPeerText); }

struct Writer {
  pb::Message* out;
  void operator()(const GroupJoin& m) const {
    auto* b = out->mutable_group_join();
    KeyTo(m.key, b->mutable_key());
    b->set_world_size(m.world_size);
    b->set_rank(m.rank.value());
    RecoveryTo(m.recovery, b->mutable_recovery());
    b->set_next_seq(m.next_seq.value());
  }
  void operator()(const GroupLeave& m) const {
    auto* b = out->mutable_group_leave();
    KeyTo(m.key, b->mutable_key());
    b->set_rank(m.rank.value());
  }
  void operator()(const GroupCommit& m) const {
    auto* b = out->mutable_group_commit();
    KeyTo(m.key, b->mutable_key());
    EpochTo(m.epoch, b->mutable_epoch());
    for (const std::string& node : m.members) b->add_members(node);
    RecoveryTo(m.recovery, b->mutable_recovery());
    b->set_next_seq(m.next_seq.value());
  }
  void operator()(const GroupReject& m) const {
    auto* b = out->mutable_group_reject();
    KeyTo(m.key, b->mutable_key());
    b->set_rank(m.rank.value());
    b->set_code(static_cast<int32_t>(m.code));
    b->set_reason(Cut(m.reason));
    for (Rank rank : m.failed_ranks) b->add_failed_ranks(rank.value());
  }
  void operator()(const GroupBroken& m) const {
    auto* b = out->mutable_group_broken();
    EpochTo(m.epoch, b->mutable_epoch());
    b->set_code(static_cast<int32_t>(m.code));
    b->set_reason(Cut(m.reason));
    for (Rank rank : m.failed_ranks) b->add_failed_ranks(rank.value());
    b->set_last_seq(m.last_seq.value());
    b->set_replayable(m.replayable);
    b->set_left(m.left);
  }
  void operator()(const Leaving& m) const {
    EpochTo(m.epoch, out->mutable_leaving()->mutable_epoch());
    out->mutable_leaving()->set_seq(m.seq.value());
  }
  void operator()(const MayLeave& m) const {
    EpochTo(m.epoch, out->mutable_may_leave()->mutable_epoch());
    out->mutable_may_leave()->set_seq(m.seq.value());
  }
  void operator()(const Unsubmitted& m) const {
    auto* b = out->mutable_unsubmitted();
    JobTo(m.job, b->mutable_job());
    for (const Unsubmitted::Member& member : m.members) {
      b->add_ranks(member.rank.value());
      b->add_pids(member.pid);
    }
  }
  void operator()(const Ready& m) const {
    auto* b = out->mutable_ready();
    JobTo(m.job, b->mutable_job());
    b->set_tag(m.tag);
    b->set_capacities(m.capacities);
    b->set_vote(m.vote);
    if (!m.sends.empty()) FlowsTo(m.sends, b->mutable_sends());
    if (!m.receives.empty()) FlowsTo(m.receives, b->mutable_receives());
    b->mutable_rail_bytes_per_second()->Add(m.rails.bytes_per_s.begin(), m.rails.bytes_per_s.end());
    b->set_rail_backlog_bytes(m.rails.backlog_bytes);
    b->mutable_planned_bytes()->Add(m.planned_bytes.begin(), m.planned_bytes.end());
    for (const Tally& tally : m.tallies) TallyTo(tally, b->add_tallies());
    if (m.grant.has_value()) GrantTo(*m.grant, b->mutable_grant());
    b->set_eager(m.eager);
    b->set_rails_only(m.rails_only);
    b->set_inflow_ppm(m.inflow_ppm);
  }
  void operator()(const LateGrant& m) const {
    JobTo(m.job, out->mutable_late_grant()->mutable_job());
    GrantTo(m.grant, out->mutable_late_grant()->mutable_grant());
  }
  void operator()(const Tally& m) const { TallyTo(m, out->mutable_tally()); }
  void operator()(const Abort& m) const {
    auto* b = out->mutable_abort();
    JobTo(m.job, b->mutable_job());
    b->set_code(static_cast<int32_t>(m.code));
    b->set_reason(Cut(m.reason));
    for (Rank rank : m.failed_ranks) b->add_failed_ranks(rank.value());
  }
  void operator()(const Quiesced& m) const {
    auto* b = out->mutable_quiesced();
    JobTo(m.job, b->mutable_job());
    for (const RailConnection& connection : m.failed) ConnectionTo(connection, b->mutable_failed());
  }
  void operator()(const RailState& m) const {
    auto* b = out->mutable_rail_state();
    b->set_rail(m.rail.value());
    b->set_usable(m.usable);
    b->set_drained(m.drained);
    b->set_down(m.down);
  }
  void operator()(const Rehome& m) const {
    auto* b = out->mutable_rehome();
    for (const RailConnection& connection : m.failed) ConnectionTo(connection, b->mutable_failed());
    for (const Rehome::Exchange& exchange : m.exchanges) {
      auto* e = b->add_exchanges();
      JobTo(exchange.job, e->mutable_job());
      e->set_round(exchange.round);
    }
  }
  void operator()(const Rehomed& m) const {
    auto* b = out->mutable_rehomed();
    for (const Rehomed::Exchange& exchange : m.exchanges) {
      auto* e = b->add_exchanges();
      JobTo(exchange.job, e->mutable_job());
      e->set_state(static_cast<uint32_t>(exchange.state));
      if (exchange.state != Rehomed::State::kOpen) continue;
      e->set_round(exchange.round);
      if (!exchange.keys.empty()) KeysTo(exchange.keys, e->mutable_keys());
    }
  }
  void operator()(const RailSignal& m) const {
    auto* b = out->mutable_rail_signal();
    b->set_rail(m.rail.value());
    b->set_signal(m.bytes);
  }
};

}  // namespace

void MessageTo(const ControlMessage& message, pb::Message* out) { std::visit(Writer{out}, message); }

}  // namespace railsd
