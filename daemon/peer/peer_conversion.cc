#include "daemon/peer/peer_conversion.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;
constexpr size_t kMaxGroupText = 256;

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

const char* NameOf(const pb::Message& in) {
  const auto* field = pb::Message::descriptor()->FindFieldByNumber(static_cast<int>(in.body_case()));
  return field == nullptr ? "message" : field->name().c_str();
}

// Reads fields and keeps the first error.
class FieldReader {
 public:
  FieldReader(const pb::Message& message, uint32_t max_world_size) : message_(message), world_(max_world_size) {}
  const absl::Status& status() const { return status_; }
  void Fail(absl::string_view field, absl::string_view reason) {
    if (status_.ok()) status_ = Invalid(absl::StrCat(NameOf(message_), ".", field, ": ", reason));
  }

  Epoch ReadEpoch(const pb::Epoch& in, absl::string_view field) {
    if (in.boot_id() == 0) Fail(field, "boot_id: 0");
    return {BootId(in.boot_id()), in.counter()};
  }
  JobKey Job(const pb::JobKey& in) {
    if (in.seq() == 0) Fail("job.seq", "0");
    return {ReadEpoch(in.epoch(), "job.epoch"), JobSeq(in.seq())};
  }
  GroupKey Key(const pb::GroupKey& in) {
    GroupKey out;
    out.tenant = Text(in.tenant(), "key.tenant", kMaxGroupText);
    out.name = Text(in.name(), "key.name", kMaxGroupText);
    if (in.name().empty()) Fail("key.name", "empty");
    if (in.key_digest().size() != out.key_digest.size()) {
      Fail("key.key_digest", absl::StrCat(in.key_digest().size(), " bytes, not ", out.key_digest.size()));
    } else {
      std::copy(in.key_digest().begin(), in.key_digest().end(), out.key_digest.begin());
    }
    return out;
  }
  Rank ReadRank(uint32_t in, absl::string_view field) {
    if (in >= world_) Fail(field, absl::StrCat(in, ", outside the largest world size ", world_));
    return Rank(in);
  }
  uint32_t WorldSize(uint32_t in) {
    if (in == 0 || in > world_) Fail("world_size", absl::StrCat(in, ", outside 1 to ", world_));
    return in;
  }
  Recovery ReadRecovery(const pb::Recovery& in) {
    if (in.policy() > 3) Fail("recovery.policy", absl::StrCat(in.policy(), " is none"));
    return {static_cast<RecoveryPolicy>(std::max(in.policy(), 1u)),
            absl::Milliseconds(std::min<uint64_t>(in.wait_limit_milliseconds(), 1 << 30))};
  }
  JobSeq NextSeq(uint64_t in) {
    constexpr uint64_t kMax = uint64_t{1} << 62;  // leaves room to count up without overflow
    if (in > kMax) Fail("next_seq", absl::StrCat(in, ", more than ", kMax));
    return JobSeq(std::clamp<uint64_t>(in, 1, kMax));
  }
  RailIndex Rail(uint32_t in, absl::string_view field) {
    if (in >= kMaxPeerRails) Fail(field, absl::StrCat(in, ", more than ", kMaxPeerRails - 1));
    return RailIndex(in);
  }
  absl::StatusCode Code(int32_t in) {
    if (in < 1 || in > 16) Fail("code", absl::StrCat(in, ", no error code"));
    return static_cast<absl::StatusCode>(in);
  }
  std::string Text(const std::string& in, absl::string_view field, size_t max) {
    if (in.size() > max) Fail(field, absl::StrCat(in.size(), " bytes, more than ", max));
    return in.size() > max ? std::string() : in;
  }
  std::string Node(const std::string& in, absl::string_view field) {
    if (!IsName(in, 253)) Fail(field, absl::StrCat("'", absl::CEscape(in.substr(0, 64)), "' is no node name"));
    return in;
  }
  uint32_t world() const { return world_; }

 private:
  const pb::Message& message_;
  const uint32_t world_;
  absl::Status status_;
};

ControlMessage ReadOffer(const pb::Offer& in, FieldReader* r) {
  Offer out;
  out.job = r->Job(in.job());
  out.tag = in.tag();
  out.retired_below = JobSeq(in.retired_below());
  if (in.planned_bytes_size() > static_cast<int>(kMaxPeerRails)) {
    r->Fail("planned_bytes", absl::StrCat(in.planned_bytes_size(), " rails, more than ", kMaxPeerRails));
    return out;
  }
  out.planned_bytes.assign(in.planned_bytes().begin(), in.planned_bytes().end());
  const int count = in.source_ranks_size();
  if (in.destination_ranks_size() != count || in.lengths_bytes_size() != count) {
    r->Fail("lengths_bytes", absl::StrCat("columns of ", count, ", ", in.destination_ranks_size(), " and ",
                                          in.lengths_bytes_size(), " entries"));
    return out;
  }
  // Pointers, because in.source_ranks(i) is a call into protobuf's library.
  const uint32_t *const sources = in.source_ranks().data(), *const destinations = in.destination_ranks().data();
  const uint64_t* const lengths = in.lengths_bytes().data();
  out.flows.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    out.flows.push_back(
        {r->ReadRank(sources[i], "source_ranks"), r->ReadRank(destinations[i], "destination_ranks"), lengths[i]});
  }
  return out;
}

// The engine checks that the ranges fit the flows.
void ReadRanges(const pb::Ready& in, FieldReader* r, Ready* out) {
  const int count = in.range_zones_size();
  if (in.range_addresses_size() != count || in.range_lengths_bytes_size() != count) {
    return r->Fail("range_zones", absl::StrCat("columns of ", count, ", ", in.range_addresses_size(), " and ",
                                               in.range_lengths_bytes_size(), " entries"));
  }
  if (int64_t{in.keys_size()} != int64_t{count} * in.rails_size()) {
    return r->Fail("keys",
                   absl::StrCat(in.keys_size(), " entries for ", count, " ranges and ", in.rails_size(), " rails"));
  }
  const uint32_t* const zones = in.range_zones().data();  // as in ReadOffer()
  const uint64_t *const addresses = in.range_addresses().data(), *const lengths = in.range_lengths_bytes().data();
  out->ranges.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const Ready::ZoneRange range{zones[i], addresses[i], lengths[i]};
    if (range.length_bytes == 0 || range.address + range.length_bytes < range.address) {
      return r->Fail("range_lengths_bytes",
                     absl::StrCat("[", i, "]: ", range.length_bytes, " bytes at ", range.address));
    }
    if (i > 0 && range.zone < out->ranges.back().zone) {
      return r->Fail("range_zones", absl::StrCat("[", i, "]: ", range.zone, " after ", out->ranges.back().zone));
    }
    out->ranges.push_back(range);
  }
  out->keys.assign(in.keys().begin(), in.keys().end());
  out->fences.reserve(static_cast<size_t>(in.fences_size()));
  for (const uint32_t fence : in.fences()) {
    if (fence >> kFenceSlotBits >= FenceSlot::kGenerations) {
      return r->Fail("fences", absl::StrCat(fence, ", more than 20 bits"));
    }
    out->fences.push_back({static_cast<uint16_t>(fence), static_cast<uint8_t>(fence >> kFenceSlotBits)});
  }
}

ControlMessage ReadReady(const pb::Ready& in, FieldReader* r) {
  Ready out;
  out.job = r->Job(in.job());
  out.slot = in.slot();
  out.generation = in.generation();
  if (in.rails_size() > static_cast<int>(kMaxPeerRails)) {
    r->Fail("rails", absl::StrCat(in.rails_size(), " entries, more than ", kMaxPeerRails));
    return out;
  }
  for (const pb::ReadyRail& rail : in.rails()) {
    out.rails.push_back(
        {r->Rail(rail.rail(), "rails.rail"), rail.usable(), rail.speed_bytes_per_second(), rail.backlog_bytes()});
  }
  ReadRanges(in, r, &out);
  return out;
}

ControlMessage ReadSent(const pb::Sent& in, FieldReader* r) {
  Sent out;
  out.job = r->Job(in.job());
  if (in.bytes_size() > static_cast<int>(kMaxPeerRails)) {
    r->Fail("bytes", absl::StrCat(in.bytes_size(), " entries, more than ", kMaxPeerRails));
    return out;
  }
  uint64_t total = 0;
  for (const uint64_t bytes : in.bytes()) {
    if (total + bytes < total) r->Fail("bytes", "their sum passes 64 bits");
    total += bytes;
  }
  out.bytes.assign(in.bytes().begin(), in.bytes().end());
  return out;
}

ControlMessage ReadUnsubmitted(const pb::Unsubmitted& in, FieldReader* r) {
  Unsubmitted out{r->Job(in.job()), {}};
  if (in.ranks_size() > static_cast<int>(Unsubmitted::kMaxMembers) || in.pids_size() != in.ranks_size()) {
    r->Fail("ranks", absl::StrCat("columns of ", in.ranks_size(), " and ", in.pids_size(), " entries, at most ",
                                  Unsubmitted::kMaxMembers));
    return out;
  }
  for (int i = 0; i < in.ranks_size(); ++i) out.members.push_back({r->ReadRank(in.ranks(i), "ranks"), in.pids(i)});
  return out;
}

// Checks the columns of zones and rounds.
template <typename Message>
bool CheckRounds(const Message& in, FieldReader* r) {
  if (in.zones_size() == 0 || in.rounds_size() != in.zones_size()) {
    r->Fail("zones", absl::StrCat("columns of ", in.zones_size(), " and ", in.rounds_size(), " entries"));
    return false;
  }
  for (const uint32_t round : in.rounds()) {
    if (round > 15) r->Fail("rounds", absl::StrCat(round, ", more than 15"));
  }
  return r->status().ok();
}

ControlMessage ReadRehome(const pb::Rehome& in, FieldReader* r) {
  Rehome out{r->Job(in.job()), in.failed_rails(), {}};
  if (!CheckRounds(in, r)) return out;
  for (int i = 0; i < in.zones_size(); ++i) {
    out.flows.push_back({in.zones(i), static_cast<uint8_t>(in.rounds(i))});
  }
  return out;
}

ControlMessage ReadRehomed(const pb::Rehomed& in, FieldReader* r) {
  Rehomed out{r->Job(in.job()), {}};
  if (!CheckRounds(in, r)) return out;
  if (in.arrived_size() != in.zones_size()) {
    r->Fail("arrived", absl::StrCat(in.arrived_size(), " entries for ", in.zones_size(), " zones"));
    return out;
  }
  for (int i = 0; i < in.zones_size(); ++i) {
    out.flows.push_back({in.zones(i), static_cast<uint8_t>(in.rounds(i)), in.arrived(i)});
  }
  return out;
}

ControlMessage ReadSignal(const pb::RailSignal& in, FieldReader* r) {
  if (in.signal().empty()) r->Fail("signal", "empty");
  return RailSignal{r->Rail(in.rail(), "rail"), r->Text(in.signal(), "signal", RailSignal::kMaxBytes)};
}

ControlMessage ReadCommit(const pb::GroupCommit& in, FieldReader* r) {
  GroupCommit out;
  out.key = r->Key(in.key());
  out.epoch = r->ReadEpoch(in.epoch(), "epoch");
  const uint32_t count = static_cast<uint32_t>(in.members_size());
  if (count == 0 || count > r->world()) {
    r->Fail("members", absl::StrCat(count, " entries, outside 1 to ", r->world()));
    return out;
  }
  for (const std::string& node : in.members()) out.members.push_back(r->Node(node, "members"));
  out.recovery = r->ReadRecovery(in.recovery());
  out.next_seq = r->NextSeq(in.next_seq());
  return out;
}

ControlMessage ReadBody(const pb::Message& in, FieldReader* r) {
  switch (in.body_case()) {
    case pb::Message::kGroupJoin:
      return GroupJoin{r->Key(in.group_join().key()), r->WorldSize(in.group_join().world_size()),
                       r->ReadRank(in.group_join().rank(), "rank"), r->ReadRecovery(in.group_join().recovery()),
                       r->NextSeq(in.group_join().next_seq())};
    case pb::Message::kGroupLeave:
      return GroupLeave{r->Key(in.group_leave().key()), r->ReadRank(in.group_leave().rank(), "rank")};
    case pb::Message::kGroupCommit:
      return ReadCommit(in.group_commit(), r);
    case pb::Message::kGroupReject:
      return GroupReject{r->Key(in.group_reject().key()), r->ReadRank(in.group_reject().rank(), "rank"),
                         r->Code(in.group_reject().code()),
                         r->Text(in.group_reject().reason(), "reason", kMaxPeerText)};
    case pb::Message::kGroupBroken: {
      GroupBroken out;
      out.epoch = r->ReadEpoch(in.group_broken().epoch(), "epoch");
      out.code = r->Code(in.group_broken().code());
      out.reason = r->Text(in.group_broken().reason(), "reason", kMaxPeerText);
      out.last_seq = JobSeq(in.group_broken().last_seq());
      out.replayable = in.group_broken().replayable();
      out.left = in.group_broken().left();
      return out;
    }
    case pb::Message::kLeaving:
      return Leaving{r->ReadEpoch(in.leaving().epoch(), "epoch"), JobSeq(in.leaving().seq())};
    case pb::Message::kMayLeave:
      return MayLeave{r->ReadEpoch(in.may_leave().epoch(), "epoch"), JobSeq(in.may_leave().seq())};
    case pb::Message::kOffer:
      return ReadOffer(in.offer(), r);
    case pb::Message::kUnsubmitted:
      return ReadUnsubmitted(in.unsubmitted(), r);
    case pb::Message::kReady:
      return ReadReady(in.ready(), r);
    case pb::Message::kAbort:
      return Abort{r->Job(in.abort().job()), r->Code(in.abort().code()),
                   r->Text(in.abort().reason(), "reason", kMaxPeerText), in.abort().breaks_group()};
    case pb::Message::kQuiesced:
      return Quiesced{r->Job(in.quiesced().job()), in.quiesced().failed_rails()};
    case pb::Message::kRailState:
      if (in.rail_state().usable() && in.rail_state().drained()) r->Fail("drained", "of a usable rail");
      return RailState{r->Rail(in.rail_state().rail(), "rail"), in.rail_state().usable(), in.rail_state().drained()};
    case pb::Message::kSent:
      return ReadSent(in.sent(), r);
    case pb::Message::kRehome:
      return ReadRehome(in.rehome(), r);
    case pb::Message::kRehomed:
      return ReadRehomed(in.rehomed(), r);
    case pb::Message::kRailSignal:
      return ReadSignal(in.rail_signal(), r);
    case pb::Message::BODY_NOT_SET:
      break;
  }
  r->Fail("body", "missing or of an unknown kind");
  return Quiesced{};
}

// Can a rail be dialled at this address?
bool IsRailAddress(const std::string& text) {
  if (text.size() > 128) return false;
  if (IsVerbsAddress(text)) return true;
  const auto address = ParseHostPort(text, false);
  return address.ok() && IsNumericAddress(address->host) && address->port != 0;
}

}  // namespace

absl::StatusOr<ControlMessage> MessageFrom(const pb::Message& in, uint32_t max_world_size) {
  FieldReader reader(in, max_world_size);
  ControlMessage out = ReadBody(in, &reader);
  if (!reader.status().ok()) return reader.status();
  return out;
}

void HelloTo(const HelloFacts& facts, pb::Hello* out) {
  out->set_min_version(kPeerProtocolVersion);
  out->set_max_version(kPeerProtocolVersion);
  out->set_node(facts.hello.node);
  out->set_boot_id(facts.hello.boot.value());
  out->set_expected_boot_id(facts.expected_boot.value());
  out->set_link_generation(facts.link_generation);
  out->set_software(facts.software);
  out->set_expected_generation(facts.expected_generation);
  out->set_taken(facts.taken);
  out->set_count(facts.count);
  out->mutable_limits()->set_max_message_bytes(static_cast<uint32_t>(facts.max_message_bytes));
  out->mutable_limits()->set_max_world_size(facts.max_world_size);
  for (const PeerHello::Rail& rail : facts.hello.rails) {
    auto* r = out->add_rails();
    r->set_index(rail.index.value());
    r->set_address(rail.address);
    r->set_speed_bytes_per_second(rail.speed_bytes_per_s);
  }
}

absl::StatusOr<HelloFacts> HelloFrom(const pb::Hello& in, const std::string& own_node, uint32_t own_max_world_size) {
  if (!IsName(in.node(), 253)) {
    return Invalid(absl::StrCat("hello.node: '", absl::CEscape(in.node().substr(0, 64)), "' is no node name (told to ",
                                own_node, ")"));
  }
  const std::string both = absl::StrCat("node ", in.node(), " to node ", own_node, ": hello.");
  if (in.min_version() > kPeerProtocolVersion || in.max_version() < kPeerProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(both, "min_version, max_version: ", in.min_version(), " to ",
                                                      in.max_version(), " do not include ", kPeerProtocolVersion));
  }
  if (in.boot_id() == 0) return Invalid(absl::StrCat(both, "boot_id: 0"));
  if (in.link_generation() == 0) return Invalid(absl::StrCat(both, "link_generation: 0"));
  if (in.limits().max_message_bytes() < kMinMaxMessageBytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        both, "limits.max_message_bytes: ", in.limits().max_message_bytes(), ", less than ", kMinMaxMessageBytes));
  }
  if (in.limits().max_world_size() != own_max_world_size) {
    return absl::FailedPreconditionError(absl::StrCat(both, "limits.max_world_size: ", in.limits().max_world_size(),
                                                      ", but ", own_node, " has ", own_max_world_size,
                                                      "; set limits.max_world_size alike on all nodes"));
  }
  if (in.rails_size() == 0 || in.rails_size() > static_cast<int>(kMaxPeerRails)) {
    return Invalid(absl::StrCat(both, "rails: ", in.rails_size(), " entries, outside 1 to ", kMaxPeerRails));
  }
  if (in.software().size() > kMaxSoftware ||
      !std::all_of(in.software().begin(), in.software().end(), [](char c) { return absl::ascii_isprint(c); })) {
    return Invalid(absl::StrCat(both, "software: '", absl::CEscape(in.software().substr(0, kMaxSoftware)), "', not ",
                                kMaxSoftware, " printable characters at most"));
  }
  HelloFacts out;
  out.software = in.software();
  out.hello.node = in.node();
  out.hello.boot = BootId(in.boot_id());
  out.link_generation = in.link_generation();
  out.max_message_bytes = in.limits().max_message_bytes();
  out.max_world_size = in.limits().max_world_size();
  out.expected_boot = BootId(in.expected_boot_id());
  out.expected_generation = in.expected_generation();
  out.taken = in.taken();
  out.count = in.count();
  for (int i = 0; i < in.rails_size(); ++i) {
    const pb::Rail& rail = in.rails(i);
    if (rail.index() != static_cast<uint32_t>(i)) {
      return Invalid(absl::StrCat(both, "rails[", i, "].index: ", rail.index(), ", not ", i));
    }
    if (!IsRailAddress(rail.address())) {
      return Invalid(absl::StrCat(both, "rails[", i, "].address: '", absl::CEscape(rail.address().substr(0, 64)),
                                  "' is no address with a port"));
    }
    out.hello.rails.push_back({RailIndex(rail.index()), rail.address(), rail.speed_bytes_per_second()});
  }
  return out;
}

}  // namespace railsd
