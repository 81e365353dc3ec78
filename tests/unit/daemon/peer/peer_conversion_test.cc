#include "daemon/peer/peer_conversion.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
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

Ready RemoteReady() {
  Ready ready;
  ready.job = kJob;
  ready.slot = 3;
  ready.generation = 4;
  ready.rails = {{RailIndex(0), true, 100, 200}, {RailIndex(1), true, 100, 200}};
  ready.ranges = {{0, 1, 1}, {2, uint64_t{1} << 47, 1 << 20}, {2, 4096, 17}};
  ready.keys = {0, ~uint32_t{0}, 3, 4, 5, 6};
  ready.fences = {{0, 0}, {7, 3}, {65535, 15}};
  return ready;
}

TEST(PeerConversionTest, EveryMessageSurvivesTheWire) {
  GroupBroken broken{{BootId(1), 2}, JobSeq(9), absl::StatusCode::kUnavailable, "why", true, true};
  Offer offer;
  offer.job = kJob;
  offer.tag = 11;
  offer.flows = {{Rank(1), Rank(2), 0}, {Rank(3), Rank(4), uint64_t{1} << 50}};
  offer.retired_below = JobSeq(5);
  offer.planned_bytes = {7, uint64_t{1} << 60};
  Ready ready;
  ready.job = kJob;
  ready.slot = 3;
  ready.generation = 4;
  ready.rails = {{RailIndex(1), false, 100, 200}};
  const Ready remote = RemoteReady();
  const ControlMessage messages[] = {
      GroupJoin{Key(), 8, Rank(3), {RecoveryPolicy::kWait, absl::Seconds(30)}, JobSeq(5)},
      GroupLeave{Key(), Rank(15)},
      GroupCommit{Key(), {BootId(1), 2}, {"n0", "n1"}, {RecoveryPolicy::kDegrade, {}}, JobSeq(6)},
      GroupReject{Key(), Rank(1), absl::StatusCode::kAlreadyExists, "taken"},
      broken,
      offer,
      ready,
      remote,
      Sent{kJob, {0, uint64_t{1} << 60}},
      Rehome{kJob, uint64_t{1} << 63 | 4, {{0, 15}, {7, 0}}},
      Rehomed{kJob, {{0, 1, true}, {7, 15, false}}},
      RailSignal{RailIndex(3), std::string("\0\xff", 2)},
      Abort{kJob, absl::StatusCode::kCancelled, "asked", true},
      Quiesced{kJob, 5},
      RailState{RailIndex(2), false},
      RailState{RailIndex(2), false, true},
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

TEST(PeerConversionTest, BadFieldsAreNamed) {
  struct Bad {
    ControlMessage message;
    std::string fields, error;
  };
  const GroupJoin join{Key(), 8, Rank(1), {}};
  const GroupCommit commit{Key(), {BootId(1), 2}, {"n0"}, {}};
  const Abort abort{kJob, absl::StatusCode::kCancelled, "", false};
  const Rehome rehome{kJob, uint64_t{1} << 63 | 4, {{0, 15}, {7, 0}}};
  Offer offer;
  offer.job = kJob;
  offer.flows = {{Rank(1), Rank(2), 3}};
  Offer stranger = offer, wide = offer;
  stranger.flows.push_back({Rank(16), Rank(0), 1});
  wide.planned_bytes.assign(65, 1);
  Ready one_rail = RemoteReady(), empty = RemoteReady(), endless = RemoteReady(), disordered = RemoteReady();
  one_rail.rails.pop_back();
  empty.ranges[2].length_bytes = 0;
  endless.ranges[2].length_bytes = ~uint64_t{0};
  disordered.ranges[2].zone = 1;
  const std::vector<Bad> kBad = {
      {GroupJoin{Key(), 17, Rank(3), {}}, "", "group_join.world_size: 17, outside 1 to 16"},
      {GroupJoin{Key(), 8, Rank(16), {}}, "", "group_join.rank: 16, outside the largest world size 16"},
      {GroupJoin{Key(), 8, Rank(3), {}, JobSeq(~uint64_t{0})}, "",
       "group_join.next_seq: 18446744073709551615, more than 4611686018427387904"},
      {join, "group_join { key { key_digest: 'short' } }", "group_join.key.key_digest: 5 bytes, not 32"},
      {join, "group_join { recovery { policy: 4 } }", "group_join.recovery.policy: 4 is none"},
      {commit, "group_commit { members: 'a b' }", "group_commit.members: 'a b' is no node name"},
      {GroupCommit{Key(), {BootId(1), 2}, std::vector<std::string>(22, "n"), {}}, "",
       "group_commit.members: 22 entries, outside 1 to 16"},
      {Quiesced{kJob, 5}, "quiesced { job { seq: 0 } }", "quiesced.job.seq: 0"},
      {abort, "abort { code: 0 }", "abort.code: 0, no error code"},
      {abort, "abort { code: -5 }", "abort.code: -5, no error code"},
      {abort, "abort { reason: '" + std::string(5000, 'x') + "' }", "abort.reason: 5000 bytes, more than 4096"},
      {Abort{kJob, absl::StatusCode::kInternal, std::string(100'000, 'x'), false}, "",
       "accepted"},  // cut before it is sent
      {offer, "offer { lengths_bytes: 1 }", "offer.lengths_bytes: columns of 1, 1 and 2 entries"},
      {stranger, "", "offer.source_ranks: 16, outside the largest world size 16"},
      {wide, "", "offer.planned_bytes: 65 rails, more than 64"},
      {RailState{RailIndex(64), true}, "", "rail_state.rail: 64, more than 63"},
      {RailState{RailIndex(1), true, true}, "", "rail_state.drained: of a usable rail"},
      {RemoteReady(), "ready { range_zones: 4 }", "ready.range_zones: columns of 4, 3 and 3 entries"},
      {RemoteReady(), "ready { keys: 4 }", "ready.keys: 7 entries for 3 ranges and 2 rails"},
      {one_rail, "", "ready.keys: 6 entries for 3 ranges and 1 rails"},
      {empty, "", "ready.range_lengths_bytes: [2]: 0 bytes at 4096"},
      {endless, "", "ready.range_lengths_bytes: [2]: 18446744073709551615 bytes at 4096"},
      {disordered, "", "ready.range_zones: [2]: 1 after 2"},
      {RemoteReady(), "ready { fences: 1048576 }", "ready.fences: 1048576, more than 20 bits"},
      {rehome, "rehome { zones: 1 }", "rehome.zones: columns of 3 and 2 entries"},
      {rehome, "rehome { zones: 8 rounds: 16 }", "rehome.rounds: 16, more than 15"},
      {Rehome{kJob, uint64_t{1} << 63 | 4, {}}, "", "rehome.zones: columns of 0 and 0 entries"},
      {Rehomed{kJob, {{0, 1, true}, {7, 15, false}}}, "rehomed { arrived: true }",
       "rehomed.arrived: 3 entries for 2 zones"},
      {Sent{kJob, std::vector<uint64_t>(65, 1)}, "", "sent.bytes: 65 entries, more than 64"},
      {Sent{kJob, {~uint64_t{0}, 1}}, "", "sent.bytes: their sum passes 64 bits"},
      {RailSignal{RailIndex(64), "x"}, "", "rail_signal.rail: 64, more than 63"},
      {RailSignal{RailIndex(1), ""}, "", "rail_signal.signal: empty"},
      {RailSignal{RailIndex(1), std::string(4097, 'x')}, "", "rail_signal.signal: 4097 bytes, more than 4096"},
      {RailSignal{RailIndex(1), std::string(4096, 'x')}, "", "accepted"}};
  for (const Bad& bad : kBad) EXPECT_EQ(ErrorOf(With(Wire(bad.message), bad.fields)), bad.error);
  EXPECT_EQ(ErrorOf(pb::Message()), "message.body: missing or of an unknown kind");
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
  struct Bad {
    pb::Hello hello;
    std::string fields, error;
  };
  std::vector<Bad> all = {
      {good, "min_version: 3 max_version: 4", "min_version, max_version: 3 to 4 do not include 2"},
      {good, "min_version: 1 max_version: 1", "min_version, max_version: 1 to 1 do not include 2"},
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
  EXPECT_EQ(HelloError(named), "hello.node: 'n1\\n' is no node name (told to n0)");
  EXPECT_EQ(HelloError(With(no_rails, first + "verbs:mlx5_0/1'}")), "accepted");
  good.clear_software();  // older daemons say nothing
  EXPECT_EQ(HelloError(good), "accepted");
}

}  // namespace
}  // namespace railsd
