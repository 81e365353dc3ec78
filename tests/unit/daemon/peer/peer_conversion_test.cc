#include "daemon/peer/peer_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "rails/peer/v1/peer.pb.h"
#include "tests/support/seeds.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;
using ::testing::HasSubstr;

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
  EXPECT_EQ(ErrorOf(pb::Message()), "message.body: missing or of an unknown kind");
  EXPECT_EQ(ErrorOf(Wire(GroupJoin{Key(), 17, Rank(3), {}})), "group_join.world_size: 17, outside 1 to 16");
  EXPECT_EQ(ErrorOf(Wire(GroupJoin{Key(), 8, Rank(16), {}})), "group_join.rank: 16, outside the largest world size 16");
  EXPECT_EQ(ErrorOf(Wire(GroupJoin{Key(), 8, Rank(3), {}, JobSeq(~uint64_t{0})})),
            "group_join.next_seq: 18446744073709551615, more than 4611686018427387904");
  pb::Message bad = Wire(GroupJoin{Key(), 8, Rank(1), {}});
  bad.mutable_group_join()->mutable_key()->set_key_digest("short");
  EXPECT_EQ(ErrorOf(bad), "group_join.key.key_digest: 5 bytes, not 32");
  bad = Wire(GroupJoin{Key(), 8, Rank(1), {}});
  bad.mutable_group_join()->mutable_recovery()->set_policy(4);
  EXPECT_EQ(ErrorOf(bad), "group_join.recovery.policy: 4 is none");
  bad = Wire(GroupCommit{Key(), {BootId(1), 2}, {"n0"}, {}});
  bad.mutable_group_commit()->add_members("a b");
  EXPECT_EQ(ErrorOf(bad), "group_commit.members: 'a b' is no node name");
  for (int i = 0; i < 20; ++i) bad.mutable_group_commit()->add_members("n");
  EXPECT_THAT(ErrorOf(bad), HasSubstr("group_commit.members: 22 entries, outside 1 to 16"));
  bad = Wire(Quiesced{kJob, 5});
  bad.mutable_quiesced()->mutable_job()->set_seq(0);
  EXPECT_EQ(ErrorOf(bad), "quiesced.job.seq: 0");
  bad = Wire(Abort{kJob, absl::StatusCode::kCancelled, "", false});
  bad.mutable_abort()->set_code(0);
  EXPECT_EQ(ErrorOf(bad), "abort.code: 0, no error code");
  bad.mutable_abort()->set_code(-5);
  EXPECT_EQ(ErrorOf(bad), "abort.code: -5, no error code");
  bad.mutable_abort()->set_code(5);
  bad.mutable_abort()->set_reason(std::string(5000, 'x'));
  EXPECT_EQ(ErrorOf(bad), "abort.reason: 5000 bytes, more than 4096");
  Offer offer;
  offer.job = kJob;
  offer.flows = {{Rank(1), Rank(2), 3}};
  bad = Wire(offer);
  bad.mutable_offer()->add_lengths_bytes(1);
  EXPECT_EQ(ErrorOf(bad), "offer.lengths_bytes: columns of 1, 1 and 2 entries");
  offer.planned_bytes.assign(65, 1);
  EXPECT_EQ(ErrorOf(Wire(offer)), "offer.planned_bytes: 65 rails, more than 64");
  EXPECT_EQ(ErrorOf(Wire(RailState{RailIndex(64), true})), "rail_state.rail: 64, more than 63");
  EXPECT_EQ(ErrorOf(Wire(RailState{RailIndex(1), true, true})), "rail_state.drained: of a usable rail");
}

TEST(PeerConversionTest, RangesAndKeysFitEachOther) {
  const auto back = MessageFrom(Wire(RemoteReady()), 16);
  ASSERT_TRUE(back.ok()) << back.status();
  const Ready& ready = std::get<Ready>(*back);
  ASSERT_EQ(ready.ranges.size(), 3u);
  EXPECT_EQ(ready.ranges[1].zone, 2u);
  EXPECT_EQ(ready.ranges[1].address, uint64_t{1} << 47);
  EXPECT_EQ(ready.keys, RemoteReady().keys);
  EXPECT_EQ(ready.fences, RemoteReady().fences);

  pb::Message bad = Wire(RemoteReady());
  bad.mutable_ready()->add_range_zones(4);
  EXPECT_EQ(ErrorOf(bad), "ready.range_zones: columns of 4, 3 and 3 entries");
  bad = Wire(RemoteReady());
  bad.mutable_ready()->add_keys(4);
  EXPECT_EQ(ErrorOf(bad), "ready.keys: 7 entries for 3 ranges and 2 rails");
  bad = Wire(RemoteReady());
  bad.mutable_ready()->mutable_rails()->RemoveLast();
  EXPECT_EQ(ErrorOf(bad), "ready.keys: 6 entries for 3 ranges and 1 rails");
  bad = Wire(RemoteReady());
  bad.mutable_ready()->set_range_lengths_bytes(2, 0);
  EXPECT_EQ(ErrorOf(bad), "ready.range_lengths_bytes: [2]: 0 bytes at 4096");
  bad.mutable_ready()->set_range_lengths_bytes(2, ~uint64_t{0});
  EXPECT_THAT(ErrorOf(bad), HasSubstr("ready.range_lengths_bytes: [2]: 18446744073709551615 bytes"));
  bad = Wire(RemoteReady());
  bad.mutable_ready()->set_range_zones(2, 1);
  EXPECT_EQ(ErrorOf(bad), "ready.range_zones: [2]: 1 after 2");
  bad = Wire(RemoteReady());
  bad.mutable_ready()->add_fences(1 << 20);
  EXPECT_EQ(ErrorOf(bad), "ready.fences: 1048576, more than 20 bits");
}

TEST(PeerConversionTest, RoundsFitTheirZones) {
  const pb::Message asked = Wire(Rehome{kJob, uint64_t{1} << 63 | 4, {{0, 15}, {7, 0}}});
  pb::Message bad = asked;
  bad.mutable_rehome()->add_zones(1);
  EXPECT_EQ(ErrorOf(bad), "rehome.zones: columns of 3 and 2 entries");
  bad = asked;
  bad.mutable_rehome()->set_rounds(1, 16);
  EXPECT_EQ(ErrorOf(bad), "rehome.rounds: 16, more than 15");
  EXPECT_EQ(ErrorOf(Wire(Rehome{kJob, uint64_t{1} << 63 | 4, {}})), "rehome.zones: columns of 0 and 0 entries");
  bad = Wire(Rehomed{kJob, {{0, 1, true}, {7, 15, false}}});
  bad.mutable_rehomed()->add_arrived(true);
  EXPECT_EQ(ErrorOf(bad), "rehomed.arrived: 3 entries for 2 zones");
}

TEST(PeerConversionTest, TalliesAndSignalsAreBounded) {
  EXPECT_EQ(ErrorOf(Wire(Sent{kJob, std::vector<uint64_t>(65, 1)})), "sent.bytes: 65 entries, more than 64");
  EXPECT_EQ(ErrorOf(Wire(Sent{kJob, {~uint64_t{0}, 1}})), "sent.bytes: their sum passes 64 bits");
  EXPECT_EQ(ErrorOf(Wire(RailSignal{RailIndex(64), "x"})), "rail_signal.rail: 64, more than 63");
  EXPECT_EQ(ErrorOf(Wire(RailSignal{RailIndex(1), ""})), "rail_signal.signal: empty");
  EXPECT_EQ(ErrorOf(Wire(RailSignal{RailIndex(1), std::string(4097, 'x')})),
            "rail_signal.signal: 4097 bytes, more than 4096");
  EXPECT_EQ(ErrorOf(Wire(RailSignal{RailIndex(1), std::string(4096, 'x')})), "accepted");
}

TEST(PeerConversionTest, ALongReasonIsCutBeforeItIsSent) {
  EXPECT_EQ(ErrorOf(Wire(Abort{kJob, absl::StatusCode::kInternal, std::string(100'000, 'x'), false})), "accepted");
}

TEST(PeerConversionTest, RandomBytesAreRefusedOrRead) {
  std::mt19937_64 random = testing::SeededRandom();
  Offer offer;
  offer.job = kJob;
  for (uint32_t i = 0; i < 8; ++i) offer.flows.push_back({Rank(i), Rank(i), i});
  const std::string good = Wire(offer).SerializeAsString();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (uint32_t n = 1 + random() % 4; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % (bytes.size() + 1));
    pb::Message message;
    if (!message.ParseFromString(bytes)) continue;
    const auto read = MessageFrom(message, 16);
    if (!read.ok() || !std::holds_alternative<Offer>(*read)) continue;
    for (const Offer::Flow& flow : std::get<Offer>(*read).flows) ASSERT_LT(flow.source.value(), 16u);
  }
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
  pb::Hello good, bad;
  HelloTo(Facts(), &good);
  bad = good;
  bad.set_min_version(3);
  bad.set_max_version(4);
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.min_version, max_version: 3 to 4 do not include 2");
  bad.set_min_version(1);
  bad.set_max_version(1);  // of links over gRPC
  EXPECT_NE(HelloError(bad), "accepted");
  bad = good;
  bad.mutable_limits()->set_max_world_size(8);
  EXPECT_EQ(HelloError(bad),
            "node n1 to node n0: hello.limits.max_world_size: 8, but n0 has 16; set limits.max_world_size alike on all "
            "nodes");
  bad = good;
  bad.mutable_limits()->set_max_message_bytes(10);
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.limits.max_message_bytes: 10, less than 65536");
  bad = good;
  bad.mutable_rails(1)->set_index(5);
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.rails[1].index: 5, not 1");
  bad = good;
  bad.mutable_rails(0)->set_address("host:1");
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.rails[0].address: 'host:1' is no address with a port");
  for (const char* address : {"verbs:mlx5_0", "verbs:mlx5_*/1", "verbs:/1", "verbs:a b/1", "verbs:mlx5_0/256"}) {
    bad.mutable_rails(0)->set_address(address);
    EXPECT_EQ(HelloError(bad),
              absl::StrCat("node n1 to node n0: hello.rails[0].address: '", address, "' is no address with a port"));
  }
  bad.mutable_rails(0)->set_address("verbs:mlx5_0/1");
  EXPECT_EQ(HelloError(bad), "accepted");
  bad = good;
  bad.clear_rails();
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.rails: 0 entries, outside 1 to 64");
  bad = good;
  bad.set_boot_id(0);
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.boot_id: 0");
  bad = good;
  bad.set_link_generation(0);
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.link_generation: 0");
  bad = good;
  bad.set_software("1.0\33[2J");
  EXPECT_EQ(HelloError(bad), "node n1 to node n0: hello.software: '1.0\\033[2J', not 64 printable characters at most");
  bad.set_software(std::string(65, '1'));
  EXPECT_NE(HelloError(bad), "accepted");
  bad.set_software("");  // older daemons send none
  EXPECT_EQ(HelloError(bad), "accepted");
  bad = good;
  bad.set_node("n1\n");
  EXPECT_EQ(HelloError(bad), "hello.node: 'n1\\n' is no node name (told to n0)");
}

}  // namespace
}  // namespace railsd
