// Converts the agent's control messages to rails.peer.v1.
#include <utility>
#include <variant>

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
  }
  void operator()(const GroupBroken& m) const {
    auto* b = out->mutable_group_broken();
    EpochTo(m.epoch, b->mutable_epoch());
    b->set_code(static_cast<int32_t>(m.code));
    b->set_reason(Cut(m.reason));
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
  void operator()(const Offer& m) const {
    auto* b = out->mutable_offer();
    JobTo(m.job, b->mutable_job());
    b->set_tag(m.tag);
    const int count = static_cast<int>(m.flows.size());
    b->mutable_source_ranks()->Reserve(count);
    b->mutable_destination_ranks()->Reserve(count);
    b->mutable_lengths_bytes()->Reserve(count);
    for (const Offer::Flow& flow : m.flows) {
      b->add_source_ranks(flow.source.value());
      b->add_destination_ranks(flow.destination.value());
      b->add_lengths_bytes(flow.bytes);
    }
    b->set_retired_below(m.retired_below.value());
    b->mutable_planned_bytes()->Add(m.planned_bytes.begin(), m.planned_bytes.end());
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
    b->set_slot(m.slot);
    b->set_generation(m.generation);
    for (const Ready::RailState& rail : m.rails) {
      auto* r = b->add_rails();
      r->set_rail(rail.rail.value());
      r->set_usable(rail.usable);
      r->set_speed_bytes_per_second(rail.speed_bytes_per_s);
      r->set_backlog_bytes(rail.backlog_bytes);
    }
    const int ranges = static_cast<int>(m.ranges.size());
    b->mutable_range_zones()->Reserve(ranges);
    b->mutable_range_addresses()->Reserve(ranges);
    b->mutable_range_lengths_bytes()->Reserve(ranges);
    for (const Ready::ZoneRange& range : m.ranges) {
      b->add_range_zones(range.zone);
      b->add_range_addresses(range.address);
      b->add_range_lengths_bytes(range.length_bytes);
    }
    b->mutable_keys()->Add(m.keys.begin(), m.keys.end());
    b->mutable_fences()->Reserve(static_cast<int>(m.fences.size()));
    for (const FenceSlot& fence : m.fences) b->add_fences(fence.slot | uint32_t{fence.generation} << kFenceSlotBits);
  }
  void operator()(const Abort& m) const {
    auto* b = out->mutable_abort();
    JobTo(m.job, b->mutable_job());
    b->set_code(static_cast<int32_t>(m.code));
    b->set_reason(Cut(m.reason));
    b->set_breaks_group(m.breaks_group);
  }
  void operator()(const Quiesced& m) const {
    auto* b = out->mutable_quiesced();
    JobTo(m.job, b->mutable_job());
    b->set_failed_rails(m.failed_rails);
  }
  void operator()(const RailState& m) const {
    auto* b = out->mutable_rail_state();
    b->set_rail(m.rail.value());
    b->set_usable(m.usable);
    b->set_drained(m.drained);
  }
  void operator()(const Sent& m) const {
    auto* b = out->mutable_sent();
    JobTo(m.job, b->mutable_job());
    b->mutable_bytes()->Add(m.bytes.begin(), m.bytes.end());
  }
  void operator()(const Rehome& m) const {
    auto* b = out->mutable_rehome();
    JobTo(m.job, b->mutable_job());
    b->set_failed_rails(m.failed_rails);
    for (const Rehome::Flow& flow : m.flows) {
      b->add_zones(flow.zone);
      b->add_rounds(flow.round);
    }
  }
  void operator()(const Rehomed& m) const {
    auto* b = out->mutable_rehomed();
    JobTo(m.job, b->mutable_job());
    for (const Rehomed::Flow& flow : m.flows) {
      b->add_zones(flow.zone);
      b->add_rounds(flow.round);
      b->add_arrived(flow.arrived);
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
