#include "daemon/peer/peer_conversion.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;

const JobKey kJob{{BootId(5), 6}, JobSeq(7)};

GroupKey Key() {
  GroupKey key;
  key.tenant = "t";
  key.name = "moe";
  key.key_digest.fill(0xab);
  return key;
}

pb::Message Wire(const ControlMessage& message) {
  pb::Message out;
  MessageTo(message, &out);
  pb::Message again;
  EXPECT_TRUE(again.ParseFromString(out.SerializeAsString()));
  return again;
}

// `in` with fields changed, in protobuf's text: single ones are replaced, repeated ones are longer by these.
template <typename Proto>
Proto With(Proto in, const std::string& fields) {
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(fields, &in)) << fields;
  return in;
}

std::string ErrorOf(const pb::Message& in) {
  const auto message = MessageFrom(in, 16);
  return message.ok() ? "accepted" : std::string(message.status().message());
}

Grant RemoteGrant() {
  Grant grant;
  grant.zone = {65535, ~uint32_t{0}};
  grant.ranges = {{1, 1}, {uint64_t{1} << 47, 1 << 20}, {4096, 17}};
  grant.keys = {{{RailIndex(2), 9}, {0, ~uint32_t{0}, 3}}, {{RailIndex(0), uint64_t{1} << 63}, {4, 5, 6}}};
  return grant;
}

Ready FullReady() {
  Ready ready;
  ready.job = kJob;
  ready.tag = 11;
  ready.capacities = true;
  ready.vote = ~uint64_t{0};
  ready.sends = {{Rank(1), Rank(2), 0}, {Rank(3), Rank(2), uint64_t{1} << 50}, {Rank(1), Rank(4), 5}};
  ready.receives = {{Rank(4), Rank(0), 6}};
  ready.rails = {.bytes_per_s = {100, 0}, .backlog_bytes = 200};
  ready.planned_bytes = {7, uint64_t{1} << 60};
  ready.tallies = {{kJob, {1, 0}}, {{{BootId(1), 0}, JobSeq(1)}, {}}};
  ready.grant = RemoteGrant();
  ready.eager = std::string("a\0b", 3);
  ready.rails_only = true;
  ready.inflow_ppm = 1'000'000;
  return ready;
}

TEST(PeerConversionTest, EveryMessageSurvivesTheWire) {
  Ready empty;
  empty.job = kJob;
  const JobKey other = {{BootId(8), 1}, JobSeq(1)};
  const std::vector<RailConnection> failed = {{RailIndex(63), 4}, {RailIndex(63), 5}, {RailIndex(0), ~uint64_t{0}}};
  const ControlMessage messages[] = {
      GroupJoin{Key(), 8, Rank(3), {RecoveryPolicy::kWait, absl::Seconds(30)}, JobSeq(5)},
      GroupLeave{Key(), Rank(15)},
      GroupCommit{Key(), {BootId(1), 2}, {"n0", "n1"}, {RecoveryPolicy::kDegrade, {}}, JobSeq(6)},
      GroupReject{Key(), Rank(1), absl::StatusCode::kAlreadyExists, "taken", {Rank(3)}},
      GroupBroken{{BootId(1), 2}, JobSeq(9), absl::StatusCode::kUnavailable, "why", true, true, {Rank(0), Rank(7)}},
      empty,
      FullReady(),
      LateGrant{kJob, RemoteGrant()},
      LateGrant{kJob, {{1, 1}, {}, {}}},
      LateGrant{kJob, {{1, 1}, {{4096, 17}}, {}}},  // every rail has failed: REHOME asks for keys
      Tally{kJob, {0, uint64_t{1} << 60}},
      Rehome{failed, {{kJob, 15}, {other, 0}}},
      Rehome{{}, {{kJob, ~uint32_t{0} - 1}}},
      Rehomed{{{kJob, Rehomed::State::kOpen, 16, {{{RailIndex(1), 2}, {3, 4}}}},
               {other, Rehomed::State::kComplete, 0, {}},
               {kJob, Rehomed::State::kAborted, 0, {}},
               {other, Rehomed::State::kOpen, ~uint32_t{0}, {}}}},
      RailSignal{RailIndex(3), std::string("\0\xff", 2)},
      Abort{kJob, absl::StatusCode::kCancelled, "asked", {Rank(5)}},
      Quiesced{kJob, {}},
      Quiesced{kJob, failed},
      RailState{RailIndex(2), false},
      RailState{RailIndex(2), false, true},
      RailState{RailIndex(2), false, false, true},
      Leaving{{BootId(1), 2}, JobSeq(3)},
      MayLeave{{BootId(1), 2}, JobSeq(4)},
      Unsubmitted{kJob, {{Rank(3), 4711}, {Rank(15), 0}}}};
  for (const ControlMessage& message : messages) {
    const pb::Message wire = Wire(message);
    const auto back = MessageFrom(wire, 16);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(Wire(*back).SerializeAsString(), wire.SerializeAsString());
  }
}

// Fields, and not only bytes, come back as they were.
TEST(PeerConversionTest, GrantsAndAnswersKeepTheirMeaning) {
  const auto ready = MessageFrom(Wire(FullReady()), 16);
  ASSERT_TRUE(ready.ok()) << ready.status();
  const Ready& back = std::get<Ready>(*ready);
  ASSERT_TRUE(back.grant.has_value());
  EXPECT_EQ(back.grant->zone, (ZoneRef{65535, ~uint32_t{0}}));
  EXPECT_EQ(back.grant->ranges[1].address, uint64_t{1} << 47);
  ASSERT_EQ(back.grant->keys.size(), 2u);
  EXPECT_EQ(back.grant->keys[1].rail, (RailConnection{RailIndex(0), uint64_t{1} << 63}));
  EXPECT_EQ(back.grant->keys[1].keys, (std::vector<uint32_t>{4, 5, 6}));
  EXPECT_TRUE(back.capacities);
  EXPECT_EQ(back.vote, ~uint64_t{0});
  EXPECT_EQ(back.sends[1].bytes, uint64_t{1} << 50);
  EXPECT_EQ(back.receives[0].source, Rank(4));
  EXPECT_EQ(back.eager, std::string("a\0b", 3));
  EXPECT_TRUE(back.rails_only);
  EXPECT_EQ(back.inflow_ppm, 1'000'000u);
  EXPECT_EQ(back.tallies[0].bytes, (std::vector<uint64_t>{1, 0}));
  // Leftovers of a closed exchange are not told.
  const auto rehomed =
      MessageFrom(Wire(Rehomed{{{kJob, Rehomed::State::kComplete, 3, {{{RailIndex(1), 2}, {3, 4}}}}}}), 16);
  ASSERT_TRUE(rehomed.ok()) << rehomed.status();
  const Rehomed::Exchange& exchange = std::get<Rehomed>(*rehomed).exchanges[0];
  EXPECT_EQ(exchange.state, Rehomed::State::kComplete);
  EXPECT_EQ(exchange.round, 0u);
  EXPECT_TRUE(exchange.keys.empty());
}

struct Bad {
  ControlMessage message;
  std::string fields, error;
};
void ExpectErrors(const std::vector<Bad>& all) {
  for (const Bad& bad : all) EXPECT_EQ(ErrorOf(With(Wire(bad.message), bad.fields)), bad.error);
}

TEST(PeerConversionTest, BadFieldsAreNamed) {
  const GroupJoin join{Key(), 8, Rank(1), {}};
  const GroupCommit commit{Key(), {BootId(1), 2}, {"n0"}, {}};
  const Abort abort{kJob, absl::StatusCode::kCancelled, ""};
  ExpectErrors(
      {{GroupJoin{Key(), 17, Rank(3), {}}, "", "group_join.world_size: 17, outside 1 to 16"},
       {GroupJoin{Key(), 8, Rank(16), {}}, "", "group_join.rank: 16, outside the largest world size 16"},
       {GroupJoin{Key(), 8, Rank(3), {}, JobSeq(~uint64_t{0})}, "",
        "group_join.next_seq: 18446744073709551615, more than 4611686018427387904"},
       {join, "group_join { key { key_digest: 'short' } }", "group_join.key.key_digest: 5 bytes, not 32"},
       {join, "group_join { recovery { policy: 4 } }", "group_join.recovery.policy: 4 is invalid"},
       {commit, "group_commit { members: 'a b' }", "group_commit.members: 'a b' is no node name"},
       {GroupCommit{Key(), {BootId(1), 2}, std::vector<std::string>(22, "n"), {}}, "",
        "group_commit.members: 22 entries, outside 1 to 16"},
       {Quiesced{kJob, {}}, "quiesced { job { seq: 0 } }", "quiesced.job: seq: 0"},
       {Quiesced{kJob, {}}, "quiesced { job { epoch { boot_id: 0 } } }", "quiesced.job: boot_id: 0"},
       {abort, "abort { code: 0 }", "abort.code: 0, no error code"},
       {abort, "abort { code: -5 }", "abort.code: -5, no error code"},
       {abort, "abort { reason: '" + std::string(5000, 'x') + "' }", "abort.reason: 5000 bytes, more than 4096"},
       {abort, "abort { failed_ranks: 16 }", "abort.failed_ranks: 16, outside the largest world size 16"},
       {Abort{kJob, absl::StatusCode::kCancelled, "", std::vector<Rank>(65, Rank(1))}, "",
        "abort.failed_ranks: 65 entries, more than 64"},
       {Abort{kJob, absl::StatusCode::kInternal, std::string(100'000, 'x')}, "", "accepted"},  // cut before it is sent
       {RailState{RailIndex(64), true}, "", "rail_state.rail: 64, more than 63"},
       {RailState{RailIndex(1), true, true}, "", "rail_state.drained: set, but the rail is usable"},
       {RailState{RailIndex(1), true, false, true}, "", "rail_state.down: set, but the rail is usable"},
       {RailSignal{RailIndex(64), "x"}, "", "rail_signal.rail: 64, more than 63"},
       {RailSignal{RailIndex(1), ""}, "", "rail_signal.signal: empty"},
       {RailSignal{RailIndex(1), std::string(4097, 'x')}, "", "rail_signal.signal: 4097 bytes, more than 4096"},
       {RailSignal{RailIndex(1), std::string(4096, 'x')}, "", "accepted"}});
  EXPECT_EQ(ErrorOf(pb::Message()), "message.body: missing or of an unknown kind");
  pb::Message sent;  // of version 2, number 12
  EXPECT_TRUE(sent.ParseFromString(std::string("\x62\x00", 2)));
  EXPECT_EQ(ErrorOf(sent), "message.body: missing or of an unknown kind");
}

// FullReady() with another value of one field.
template <typename T>
Ready ReadyWith(T Ready::*field, T value) {
  Ready ready = FullReady();
  ready.*field = std::move(value);
  return ready;
}

TEST(PeerConversionTest, BadFieldsOfReadyAreNamed) {
  using Flows = Ready::Flows;
  using Bytes = decltype(Ready::planned_bytes);
  const uint64_t huge = ~uint64_t{0};
  const auto sends = [](Flows flows) { return ReadyWith(&Ready::sends, std::move(flows)); };
  const auto tallies = [](std::vector<Tally> all) { return ReadyWith(&Ready::tallies, std::move(all)); };
  const auto planned = [](Bytes bytes) { return ReadyWith(&Ready::planned_bytes, std::move(bytes)); };
  const auto rails = [](Bytes speeds) { return ReadyWith(&Ready::rails, Ready::Rails{std::move(speeds)}); };
  ExpectErrors(
      {{FullReady(), "ready { sends { lengths_bytes: 1 } }", "ready.sends: columns of 3, 3, 4 entries"},
       {FullReady(), "ready { receives { source_ranks: 1 } }", "ready.receives: columns of 2, 1, 1 entries"},
       {sends({{Rank(16), Rank(0), 1}}), "", "ready.sends: 16, outside the largest world size 16"},
       {sends({{Rank(0), Rank(16), 1}}), "", "ready.sends: 16, outside the largest world size 16"},
       {sends({{Rank(1), Rank(2), 1}, {Rank(1), Rank(2), 1}}), "",
        "ready.sends: [1]: rank 1 to rank 2 is out of order"},
       {sends({{Rank(0), Rank(2), 1}, {Rank(3), Rank(1), 1}}), "",
        "ready.sends: [1]: rank 3 to rank 1 is out of order"},
       {sends({{Rank(0), Rank(2), huge}, {Rank(1), Rank(2), 1}}), "", "ready.sends: their sum passes 64 bits"},
       {sends({{Rank(0), Rank(2), huge}}), "", "accepted"},
       {ReadyWith(&Ready::receives, Flows{{Rank(0), Rank(2), huge}, {Rank(1), Rank(2), huge}}), "",
        "ready.receives: their sum passes 64 bits"},
       {rails(Bytes(64, huge)), "", "accepted"},
       {rails(Bytes(65)), "", "ready.rail_bytes_per_second: 65 entries, more than 64"},
       {FullReady(), "ready { inflow_ppm: 1000001 }", "ready.inflow_ppm: 1000001, more than 1000000"},
       {planned(Bytes(65, 1)), "", "ready.planned_bytes: 65 entries, more than 64"},
       {planned({huge, 1}), "", "ready.planned_bytes: their sum passes 64 bits"},
       {tallies(std::vector<Tally>(1024, {kJob, {1}})), "", "accepted"},
       {tallies(std::vector<Tally>(1025, {kJob, {1}})), "", "ready.tallies: 1025 entries, more than 1024"},
       {tallies({{kJob, std::vector<uint64_t>(65, 1)}}), "", "ready.tallies.bytes: 65 entries, more than 64"},
       {tallies({{{}, {1}}}), "", "ready.tallies.job: seq: 0"},
       {Tally{kJob, std::vector<uint64_t>(65, 1)}, "", "tally.bytes: 65 entries, more than 64"},
       {Tally{kJob, {huge, 1}}, "", "tally.bytes: their sum passes 64 bits"},
       {ReadyWith(&Ready::eager, std::string(32 << 10, 'x')), "", "accepted"},
       {ReadyWith(&Ready::eager, std::string((32 << 10) + 1, 'x')), "", "ready.eager: 32769 bytes, more than 32768"},
       {FullReady(), "ready { grant { slot: 0 } }", "ready.grant.slot: 0, outside 1 to 65535"}});
}

TEST(PeerConversionTest, BadFieldsOfGrantsAreNamed) {
  const auto with = [](auto change) {
    LateGrant message{kJob, RemoteGrant()};
    change(&message.grant);
    return message;
  };
  const LateGrant good{kJob, RemoteGrant()};
  const auto in_grant = [](const std::string& fields) { return absl::StrCat("late_grant { grant { ", fields, " } }"); };
  pb::Message none = Wire(good);
  none.mutable_late_grant()->clear_grant();
  EXPECT_EQ(ErrorOf(none), "late_grant.grant.slot: 0, outside 1 to 65535");
  ExpectErrors(
      {{good, in_grant("slot: 0"), "late_grant.grant.slot: 0, outside 1 to 65535"},
       {good, in_grant("slot: 65536"), "late_grant.grant.slot: 65536, outside 1 to 65535"},
       {good, in_grant("generation: 0"), "late_grant.grant.generation: 0"},
       {good, in_grant("range_addresses: 4"), "late_grant.grant.ranges: columns of 4, 3 entries"},
       {with([](Grant* g) { g->ranges[2].length_bytes = 0; }), "", "late_grant.grant.ranges: [2]: 0 bytes at 4096"},
       {with([](Grant* g) { g->ranges[2].length_bytes = ~uint64_t{0}; }), "",
        "late_grant.grant.ranges: [2]: 18446744073709551615 bytes at 4096"},
       {with([](Grant* g) {
          g->ranges[0] = g->ranges[1] = {0, ~uint64_t{0}};
        }),
        "", "late_grant.grant.ranges: their sum passes 64 bits"},
       {good, in_grant("keys { rails: 4 }"), "late_grant.grant.keys: columns of 3, 2 entries"},
       {good, in_grant("keys { keys: 4 }"), "late_grant.grant.keys: 7 for 2 rails"},
       {good, in_grant("range_addresses: 4 range_lengths_bytes: 1"),
        "late_grant.grant.keys: 3 of each rail for 4 ranges"},
       {with([](Grant* g) { g->ranges.clear(); }), "", "late_grant.grant.keys: 3 of each rail for 0 ranges"},
       {with([](Grant* g) { g->keys[1].rail.rail = RailIndex(2); }), "", "late_grant.grant.keys: rail 2 twice"},
       {with([](Grant* g) { g->keys[1].rail.rail = RailIndex(64); }), "", "late_grant.grant.keys: 64, more than 63"},
       {with([](Grant* g) { g->keys[0].keys.pop_back(); }), "", "late_grant.grant.keys: 5 for 2 rails"},
       {with([](Grant* g) { g->keys.assign(65, g->keys[0]); }), "", "late_grant.grant.keys: 65 entries, more than 64"},
       {LateGrant{kJob, {{1, 1}, {}, {}}}, in_grant("keys { keys: 4 }"), "late_grant.grant.keys: 1 for 0 rails"},
       {LateGrant{kJob, {{1, 1}, {}, {}}}, in_grant("keys { rails: 4 connections: 1 }"),
        "late_grant.grant.keys: 0 for 1 rails"}});
}

TEST(PeerConversionTest, BadFieldsOfRehomingAreNamed) {
  const Rehome rehome{{{RailIndex(1), 2}}, {{kJob, 15}}};
  const Rehomed open{{{kJob, Rehomed::State::kOpen, 16, {{{RailIndex(1), 2}, {3, 4}}}}}};
  const auto exchange = [](const std::string& fields) {
    return absl::StrCat("rehomed { exchanges { job { epoch { boot_id: 1 } seq: 1 } ", fields, " } }");
  };
  const auto many = [](size_t count) { return Rehome{{}, std::vector<Rehome::Exchange>(count, {kJob, 0})}; };
  const auto failed = [](size_t count) { return std::vector<RailConnection>(count, {RailIndex(1), 2}); };
  ExpectErrors({{many(0), "", "rehome.exchanges: none"},
                {many(65'535), "", "accepted"},
                {many(65'536), "", "rehome.exchanges: 65536 entries, more than 65535"},
                {rehome, "rehome { failed { rails: 1 } }", "rehome.failed: columns of 2, 1 entries"},
                {rehome, "rehome { failed { rails: 64 connections: 1 } }", "rehome.failed: 64, more than 63"},
                {rehome, "rehome { exchanges { round: 1 } }", "rehome.exchanges.job: seq: 0"},
                {Rehome{{}, {{kJob, ~uint32_t{0}}}}, "", "rehome.exchanges.round: 4294967295 has no next one"},
                {Rehome{failed(1024), {{kJob, 0}}}, "", "accepted"},
                {Rehome{failed(1025), {{kJob, 0}}}, "", "rehome.failed: 1025 entries, more than 1024"},
                {Quiesced{kJob, failed(1025)}, "", "quiesced.failed: 1025 entries, more than 1024"},
                {Quiesced{kJob, failed(1)}, "quiesced { failed { connections: 1 } }",
                 "quiesced.failed: columns of 1, 2 entries"},
                {Rehomed{}, "", "rehomed.exchanges: none"},
                {Rehomed{std::vector<Rehomed::Exchange>(65'536, {kJob, Rehomed::State::kComplete, 0, {}})}, "",
                 "rehomed.exchanges: 65536 entries, more than 65535"},
                {open, exchange("state: 3"), "rehomed.exchanges.state: 3 is invalid"},
                {open, exchange("state: 0"), "rehomed.exchanges.round: 0 of state 0"},
                {open, exchange("state: 1 round: 1"), "rehomed.exchanges.round: 1 of state 1"},
                {open, exchange("state: 2 keys { }"), "rehomed.exchanges.keys: set, but the exchange is not open"},
                {open, exchange("round: 1 keys { rails: 1 rails: 1 connections: 1 connections: 2 keys: 1 keys: 2 }"),
                 "rehomed.exchanges.keys: rail 1 twice"},
                {open, exchange("round: 1 keys { rails: 1 rails: 2 connections: 1 connections: 2 keys: 1 }"),
                 "rehomed.exchanges.keys: 1 for 2 rails"}});
}

HelloFacts Facts() {
  HelloFacts facts;
  facts.hello.node = "n1";
  facts.hello.boot = BootId(9);
  facts.hello.rails = {{RailIndex(0), "10.0.0.1:4000", 1000}, {RailIndex(1), "[fd00::1]:4001", 2000}};
  facts.link_generation = 3;
  facts.max_message_bytes = 1 << 20;
  facts.max_world_size = 16;
  facts.expected_boot = BootId(4);
  facts.expected_generation = 5;
  facts.taken = uint64_t{1} << 40;
  facts.count = 77;
  facts.software = "1.2.0~rc1";
  return facts;
}

std::string HelloError(const pb::Hello& hello) {
  const auto facts = HelloFrom(hello, "n0", 16);
  return facts.ok() ? "accepted" : std::string(facts.status().message());
}

TEST(PeerHelloTest, SurvivesTheWire) {
  pb::Hello wire;
  HelloTo(Facts(), &wire);
  const auto back = HelloFrom(wire, "n0", 16);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->hello.node, "n1");
  EXPECT_EQ(back->hello.rails[1].address, "[fd00::1]:4001");
  EXPECT_EQ(back->link_generation, 3u);
  EXPECT_EQ(back->expected_boot, BootId(4));
  EXPECT_EQ(back->expected_generation, 5u);
  EXPECT_EQ(back->taken, uint64_t{1} << 40);
  EXPECT_EQ(back->count, 77u);
  EXPECT_EQ(back->max_message_bytes, 1u << 20);
  EXPECT_EQ(back->software, "1.2.0~rc1");
}

TEST(PeerHelloTest, RefusalsNameBothNodesAndTheField) {
  pb::Hello good, no_rails, named;
  HelloTo(Facts(), &good);
  no_rails = named = good;
  no_rails.clear_rails();
  named.set_node("n1\n");
  const std::string first = "rails { index: 0 address: '";
  const std::string other_version =
      " do not include 5, which n0 speaks; n1 runs railsd '1.2.0~rc1': run the same version on all nodes";
  struct Bad {
    pb::Hello hello;
    std::string fields, error;
  };
  std::vector<Bad> all = {
      {good, "min_version: 6 max_version: 7", "min_version, max_version: 6 to 7" + other_version},
      {good, "min_version: 4 max_version: 4", "min_version, max_version: 4 to 4" + other_version},
      {good, "limits { max_world_size: 8 }",
       "limits.max_world_size: 8, but n0 has 16; set limits.max_world_size alike on all nodes"},
      {good, "limits { max_message_bytes: 10 }", "limits.max_message_bytes: 10, less than 65536"},
      {good, "rails { index: 5 }", "rails[2].index: 5, not 2"},
      {no_rails, "", "rails: 0 entries, outside 1 to 64"},
      {good, "boot_id: 0", "boot_id: 0"},
      {good, "link_generation: 0", "link_generation: 0"},
      {good, "software: '1.0\\033[2J'", "software: '1.0\\033[2J', not 64 printable characters at most"},
      {good, absl::StrCat("software: '", std::string(65, '1'), "'"),
       absl::StrCat("software: '", std::string(64, '1'), "', not 64 printable characters at most")}};
  for (const char* address :
       {"host:1", "verbs:mlx5_0", "verbs:mlx5_*/1", "verbs:/1", "verbs:a b/1", "verbs:mlx5_0/256"}) {
    all.push_back({no_rails, first + address + "'}",
                   absl::StrCat("rails[0].address: '", address, "' is no address with a port")});
  }
  for (const Bad& bad : all) {
    EXPECT_EQ(HelloError(With(bad.hello, bad.fields)), "node n1 to node n0: hello." + bad.error);
  }
  EXPECT_EQ(HelloError(named), "hello.node: 'n1\\n' is no node name (in a HELLO to n0)");
  EXPECT_EQ(HelloError(With(no_rails, first + "verbs:mlx5_0/1'}")), "accepted");
  good.clear_software();  // older daemons say nothing
  EXPECT_EQ(HelloError(good), "accepted");
}

}  // namespace
}  // namespace railsd
