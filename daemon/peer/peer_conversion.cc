#include "daemon/peer/peer_conversion.h"

#include <google/protobuf/repeated_field.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/base/failed_ranks.h"
#include "agent/base/rail_mask.h"
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
  JobKey Job(const pb::JobKey& in, absl::string_view field = "job") {
    if (in.seq() == 0) Fail(field, "seq: 0");
    return {ReadEpoch(in.epoch(), field), JobSeq(in.seq())};
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
    if (in.policy() > 3) Fail("recovery.policy", absl::StrCat(in.policy(), " is invalid"));
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
  // Reads a rail that may be named only once, and adds it to `named`.
  RailIndex RailOnce(uint32_t rail, absl::string_view field, RailMask* named) {
    const RailIndex index = Rail(rail, field);
    if (rail >= kMaxPeerRails) return index;
    if ((*named & RailBit(rail)) != 0) Fail(field, absl::StrCat("rail ", rail, " twice"));
    *named |= RailBit(rail);
    return index;
  }
  bool AtMost(int count, size_t max, absl::string_view field) {
    if (static_cast<size_t>(count) <= max) return true;
    Fail(field, absl::StrCat(count, " entries, more than ", max));
    return false;
  }
  bool SameLength(std::initializer_list<int> columns, absl::string_view field) {
    if (std::min(columns) == std::max(columns)) return true;
    Fail(field, absl::StrCat("columns of ", absl::StrJoin(columns, ", "), " entries"));
    return false;
  }
  bool Add(uint64_t bytes, absl::string_view field, uint64_t* sum) {
    *sum += bytes;
    if (*sum >= bytes) return true;
    Fail(field, "their sum passes 64 bits");
    return false;
  }
  template <typename List>
  List BytesByRail(const google::protobuf::RepeatedField<uint64_t>& in, absl::string_view field) {
    if (!AtMost(in.size(), kMaxPeerRails, field)) return {};
    uint64_t sum = 0;
    for (const uint64_t bytes : in) Add(bytes, field, &sum);
    return {in.begin(), in.end()};
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

Ready::Flows ReadFlows(const pb::Flows& in, absl::string_view field, FieldReader* r) {
  const int count = in.source_ranks_size();
  if (!r->SameLength({count, in.destination_ranks_size(), in.lengths_bytes_size()}, field)) return {};
  // Pointers, because in.source_ranks(i) is a call into protobuf's library.
  const uint32_t *const sources = in.source_ranks().data(), *const destinations = in.destination_ranks().data();
  const uint64_t* const lengths = in.lengths_bytes().data();
  const auto place = [&](int i) { return std::pair(destinations[i], sources[i]); };
  uint64_t sum = 0;
  const auto out = std::make_shared<Ready::Flow[]>(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    out[i] = {r->ReadRank(sources[i], field), r->ReadRank(destinations[i], field), lengths[i]};
    if (!r->Add(lengths[i], field, &sum)) return {};
    if (i > 0 && place(i - 1) >= place(i)) {
      r->Fail(field, absl::StrCat("[", i, "]: rank ", sources[i], " to rank ", destinations[i], " is out of order"));
      return {};
    }
  }
  return {out, 0, static_cast<size_t>(count)};
}

std::vector<RailConnection> ReadFailed(const pb::RailConnections& in, FieldReader* r) {
  std::vector<RailConnection> out;
  if (!r->AtMost(in.rails_size(), RailConnection::kMaxFailed, "failed")) return out;
  if (!r->SameLength({in.rails_size(), in.connections_size()}, "failed")) return out;
  for (int i = 0; i < in.rails_size(); ++i) out.push_back({r->Rail(in.rails(i), "failed"), in.connections(i)});
  return out;
}

// Every rail must have the same number of keys, at least one.
std::vector<RailKeys> ReadKeys(const pb::RailKeys& in, absl::string_view field, FieldReader* r) {
  std::vector<RailKeys> out;
  const int rails = in.rails_size(), each = rails == 0 ? 0 : in.keys_size() / rails;
  if (!r->AtMost(rails, kMaxPeerRails, field) || !r->SameLength({rails, in.connections_size()}, field)) return out;
  if (each * rails != in.keys_size() || (rails > 0 && each == 0)) {
    r->Fail(field, absl::StrCat(in.keys_size(), " for ", rails, " rails"));
    return out;
  }
  RailMask named = 0;
  for (int i = 0; i < rails; ++i) {
    const uint32_t* const keys = in.keys().data() + i * each;
    out.push_back({{r->RailOnce(in.rails(i), field, &named), in.connections(i)}, {keys, keys + each}});
  }
  return out;
}

// The engine checks that the ranges fit the flows.
Grant ReadGrant(const pb::Grant& in, FieldReader* r) {
  constexpr uint32_t kMaxSlot = std::numeric_limits<decltype(ZoneRef::slot)>::max();
  Grant out;
  if (in.slot() == 0 || in.slot() > kMaxSlot) {
    r->Fail("grant.slot", absl::StrCat(in.slot(), ", outside 1 to ", kMaxSlot));
  }
  if (in.generation() == 0) r->Fail("grant.generation", "0");
  out.zone = {static_cast<uint16_t>(in.slot()), in.generation()};
  const int count = in.range_addresses_size();
  if (!r->SameLength({count, in.range_lengths_bytes_size()}, "grant.ranges")) return out;
  const uint64_t *const addresses = in.range_addresses().data(), *const lengths = in.range_lengths_bytes().data();
  uint64_t sum = 0;
  out.ranges.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (lengths[i] == 0 || addresses[i] + lengths[i] < addresses[i]) {
      r->Fail("grant.ranges", absl::StrCat("[", i, "]: ", lengths[i], " bytes at ", addresses[i]));
      return out;
    }
    if (!r->Add(lengths[i], "grant.ranges", &sum)) return out;
    out.ranges.push_back({addresses[i], lengths[i]});
  }
  out.keys = ReadKeys(in.keys(), "grant.keys", r);
  if (!out.keys.empty() && out.keys[0].keys.size() != out.ranges.size()) {
    r->Fail("grant.keys", absl::StrCat(out.keys[0].keys.size(), " of each rail for ", count, " ranges"));
  }
  return out;
}

Tally ReadTally(const pb::Tally& in, absl::string_view job, absl::string_view bytes, FieldReader* r) {
  return {r->Job(in.job(), job), r->BytesByRail<std::vector<uint64_t>>(in.bytes(), bytes)};
}

ControlMessage ReadReady(const pb::Ready& in, FieldReader* r) {
  Ready out;
  out.job = r->Job(in.job());
  out.tag = in.tag();
  out.capacities = in.capacities();
  out.vote = in.vote();
  out.sends = ReadFlows(in.sends(), "sends", r);
  out.receives = ReadFlows(in.receives(), "receives", r);
  if (!r->AtMost(in.rail_bytes_per_second_size(), kMaxPeerRails, "rail_bytes_per_second")) return out;
  out.rails.bytes_per_s.assign(in.rail_bytes_per_second().begin(), in.rail_bytes_per_second().end());
  out.rails.backlog_bytes = in.rail_backlog_bytes();
  out.planned_bytes = r->BytesByRail<decltype(out.planned_bytes)>(in.planned_bytes(), "planned_bytes");
  if (in.has_grant()) out.grant = ReadGrant(in.grant(), r);
  out.eager = r->Text(in.eager(), "eager", Ready::kMaxEagerBytes);
  out.rails_only = in.rails_only();
  if (in.inflow_ppm() > 1'000'000) r->Fail("inflow_ppm", absl::StrCat(in.inflow_ppm(), ", more than 1000000"));
  out.inflow_ppm = in.inflow_ppm();
  if (!r->AtMost(in.tallies_size(), Ready::kMaxTallies, "tallies")) return out;
  for (const pb::Tally& tally : in.tallies()) {
    out.tallies.push_back(ReadTally(tally, "tallies.job", "tallies.bytes", r));
  }
  return out;
}

std::vector<Rank> ReadFailedRanks(const google::protobuf::RepeatedField<uint32_t>& in, FieldReader* r) {
  std::vector<Rank> out;
  if (!r->AtMost(in.size(), kMaxFailedRanks, "failed_ranks")) return out;
  for (uint32_t rank : in) out.push_back(r->ReadRank(rank, "failed_ranks"));
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

template <typename Message>
bool CheckCount(const Message& in, FieldReader* r) {
  if (in.exchanges_size() == 0) r->Fail("exchanges", "none");
  return in.exchanges_size() > 0 && r->AtMost(in.exchanges_size(), Rehome::kMaxExchanges, "exchanges");
}

ControlMessage ReadRehome(const pb::Rehome& in, FieldReader* r) {
  Rehome out;
  if (!CheckCount(in, r)) return out;
  out.failed = ReadFailed(in.failed(), r);
  for (const pb::Rehome::Exchange& exchange : in.exchanges()) {
    out.exchanges.push_back({r->Job(exchange.job(), "exchanges.job"), exchange.round()});
    if (~exchange.round() == 0) r->Fail("exchanges.round", absl::StrCat(exchange.round(), " has no next one"));
  }
  return out;
}

ControlMessage ReadRehomed(const pb::Rehomed& in, FieldReader* r) {
  Rehomed out;
  if (!CheckCount(in, r)) return out;
  for (const pb::Rehomed::Exchange& exchange : in.exchanges()) {
    if (exchange.state() > static_cast<uint32_t>(Rehomed::State::kAborted)) {
      r->Fail("exchanges.state", absl::StrCat(exchange.state(), " is invalid"));
    }
    const auto state = static_cast<Rehomed::State>(exchange.state());
    if ((state == Rehomed::State::kOpen) != (exchange.round() > 0)) {
      r->Fail("exchanges.round", absl::StrCat(exchange.round(), " of state ", exchange.state()));
    }
    if (state != Rehomed::State::kOpen && exchange.has_keys())
      r->Fail("exchanges.keys", "set, but the exchange is not open");
    out.exchanges.push_back({r->Job(exchange.job(), "exchanges.job"), state, exchange.round(),
                             ReadKeys(exchange.keys(), "exchanges.keys", r)});
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

RailState ReadRailState(const pb::RailState& in, FieldReader* r) {
  if (in.usable() && in.drained()) r->Fail("drained", "set, but the rail is usable");
  if (in.usable() && in.down()) r->Fail("down", "set, but the rail is usable");
  return {r->Rail(in.rail(), "rail"), in.usable(), in.drained(), in.down()};
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
                         r->Code(in.group_reject().code()), r->Text(in.group_reject().reason(), "reason", kMaxPeerText),
                         ReadFailedRanks(in.group_reject().failed_ranks(), r)};
    case pb::Message::kGroupBroken: {
      GroupBroken out;
      out.epoch = r->ReadEpoch(in.group_broken().epoch(), "epoch");
      out.code = r->Code(in.group_broken().code());
      out.reason = r->Text(in.group_broken().reason(), "reason", kMaxPeerText);
      out.last_seq = JobSeq(in.group_broken().last_seq());
      out.replayable = in.group_broken().replayable();
      out.left = in.group_broken().left();
      out.failed_ranks = ReadFailedRanks(in.group_broken().failed_ranks(), r);
      return out;
    }
    case pb::Message::kLeaving:
      return Leaving{r->ReadEpoch(in.leaving().epoch(), "epoch"), JobSeq(in.leaving().seq())};
    case pb::Message::kMayLeave:
      return MayLeave{r->ReadEpoch(in.may_leave().epoch(), "epoch"), JobSeq(in.may_leave().seq())};
    case pb::Message::kUnsubmitted:
      return ReadUnsubmitted(in.unsubmitted(), r);
    case pb::Message::kReady:
      return ReadReady(in.ready(), r);
    case pb::Message::kLateGrant:
      return LateGrant{r->Job(in.late_grant().job()), ReadGrant(in.late_grant().grant(), r)};
    case pb::Message::kTally:
      return ReadTally(in.tally(), "job", "bytes", r);
    case pb::Message::kAbort:
      return Abort{r->Job(in.abort().job()), r->Code(in.abort().code()),
                   r->Text(in.abort().reason(), "reason", kMaxPeerText), ReadFailedRanks(in.abort().failed_ranks(), r)};
    case pb::Message::kQuiesced:
      return Quiesced{r->Job(in.quiesced().job()), ReadFailed(in.quiesced().failed(), r)};
    case pb::Message::kRailState:
      return ReadRailState(in.rail_state(), r);
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

// True if a rail can be dialled at this address.
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
    return Invalid(absl::StrCat("hello.node: '", absl::CEscape(in.node().substr(0, 64)),
                                "' is no node name (in a HELLO to ", own_node, ")"));
  }
  const std::string both = absl::StrCat("node ", in.node(), " to node ", own_node, ": hello.");
  if (in.min_version() > kPeerProtocolVersion || in.max_version() < kPeerProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(both, "min_version, max_version: ", in.min_version(), " to ", in.max_version(), " do not include ",
                     kPeerProtocolVersion, ", which ", own_node, " speaks; ", in.node(), " runs railsd '",
                     absl::CEscape(in.software().substr(0, kMaxSoftware)), "': run the same version on all nodes"));
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
