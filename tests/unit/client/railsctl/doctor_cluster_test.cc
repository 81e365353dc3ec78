// Findings of doctor about a whole cluster.
#include "tests/unit/client/railsctl/doctor_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/doctor/cluster_checks.h"
#include "client/railsctl/doctor/cluster_render.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/table.h"
#include "common/json/json.h"

namespace rails::ctl::doctor {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::ResultOf;

TEST(DoctorClusterTest, AHealthyClusterHasNoTrouble) {
  const Cluster cluster = HealthyCluster(4, 2);
  const Findings findings = CheckCluster(cluster);
  EXPECT_THAT(findings, Each(Field("level", &Finding::level, Level::kOk)));
  EXPECT_THAT(findings, Contains(Tells("nodes", Level::kOk, "all answer: 4 nodes")));
  EXPECT_THAT(findings, Contains(Tells("rails", Level::kOk, "2 rails")));
  EXPECT_THAT(findings, Contains(Tells("order", Level::kOk, "")));
  const std::string text = RenderCluster(cluster, findings, false);
  EXPECT_THAT(text, HasSubstr("RAIL  NODES UP       SPEED  PATHS UP  DRAINED\n"
                              "0       4 of 4  400 Gbit/s  12 of 12        -\n"));
  EXPECT_THAT(text, HasSubstr("0 errors, 0 warnings, 0 notes; "));
}

TEST(DoctorClusterTest, NodesThatDoNotAnswerAreGroupedByTheReason) {
  Cluster cluster = HealthyCluster(4, 1);
  for (const size_t n : {1, 3}) {
    const std::string where = cluster.nodes[n].where;
    cluster.nodes[n] = ClusterNode();
    cluster.nodes[n].where = where;
    cluster.nodes[n].answered = absl::UnavailableError("refused");
  }
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("nodes", Level::kError, "10.0.0.1:9471, 10.0.0.3:9471 do not answer: refused"),
                          Tells("peers", Level::kNote, "n1, n3 are peers of others")));
  cluster.nodes.clear();
  EXPECT_THAT(Troubles(cluster), ElementsAre());
}

TEST(DoctorClusterTest, TwoDaemonsWithOneName) {
  Cluster cluster = HealthyCluster(3, 1);
  cluster.nodes.push_back(cluster.nodes[1]);
  cluster.nodes[3].where = "10.0.0.9:9471";
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("names", Level::kNote, "one daemon, n1, is at 10.0.0.1:9471, 10.0.0.9:9471")));
  cluster.nodes[3].boot_id = "another";
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("names", Level::kError,
                                                   "2 daemons call themselves n1: at 10.0.0.1:9471, 10.0.0.9:9471")));
}

TEST(DoctorClusterTest, TheOddOneOutIsNamed) {
  Cluster cluster = HealthyCluster(32, 4);
  cluster.nodes[7].rails[3].speed_bytes_per_s = 100 * kGbit;
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("rails", Level::kWarning,
                                                   "rail 3 of n7 has 100 Gbit/s, and 400 Gbit/s on 31 other nodes")));
  for (ClusterRail& rail : cluster.nodes[7].rails) rail.speed_bytes_per_s = 100 * kGbit;
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("rails", Level::kWarning,
                                "rails 0 to 3 of n7 have 100 Gbit/s, and 400 Gbit/s on 31 other nodes")));
}

TEST(DoctorClusterTest, WithoutAMajorityBothSidesAreNamed) {
  Cluster cluster = HealthyCluster(2, 1);
  cluster.nodes[1].rails[0].speed_bytes_per_s = 100 * kGbit;
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("rails", Level::kWarning, "rail 0 differs: 400 Gbit/s on n0; 100 Gbit/s on n1")));
}

TEST(DoctorClusterTest, KindsOfRails) {
  Cluster cluster = HealthyCluster(3, 1);
  for (size_t n = 0; n < 3; ++n) {
    ClusterRail& rail = cluster.nodes[n].rails[0];
    rail.verbs = true;
    rail.link_layer = n == 1 ? "InfiniBand" : "Ethernet";
    rail.device = n == 2 ? "mlx5_4/1" : "mlx5_0/1";
    rail.mtu_bytes = n == 0 ? 1024 : 4096;
  }
  EXPECT_THAT(
      Troubles(cluster),
      ElementsAre(Tells("rails", Level::kError, "rail 0 of n1 has an InfiniBand port, and an Ethernet port on 2 other"),
                  Tells("rails", Level::kWarning, "rail 0 of n0 has a path MTU of 1024 bytes, and a path MTU of 4096"),
                  Tells("rails", Level::kNote, "rail 0 of n2 has device mlx5_4/1, and device mlx5_0/1 on 2 other")));
  cluster.nodes[2].rails[0] = ClusterRail();
  EXPECT_THAT(Troubles(cluster), Contains(Tells("rails", Level::kError,
                                                "rail 0 of n2 has transport tcp, and transport "
                                                "verbs on 2 other nodes")));
}

TEST(DoctorClusterTest, NumbersOfRails) {
  Cluster cluster = HealthyCluster(4, 3);
  cluster.nodes[2].rails.pop_back();
  for (size_t n = 0; n < 4; ++n) {
    if (n != 2) EntryOf(cluster, n, 2).rails[2] = PathView::kUnknown;
  }
  for (ClusterPeer& peer : cluster.nodes[2].peers) peer.rails.pop_back();
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("rails", Level::kError, "n2 has 2 rails, 3 other nodes have 3 rails")));
}

TEST(DoctorClusterTest, ARailThatIsDownAtOneNode) {
  Cluster cluster = HealthyCluster(5, 3);
  BreakRail(cluster, 1, 3);
  cluster.nodes[3].rails[1].state = v1::RAIL_STATE_DOWN;
  cluster.nodes[3].rails[1].why = "its interface has no carrier";
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("paths", Level::kError,
                                "rail 1 of n3 is down to all 4 other nodes: its interface has no carrier")));
}

TEST(DoctorClusterTest, TwoRailsThatAreDownAtOneNodeAreProbablySwapped) {
  Cluster cluster = HealthyCluster(5, 3);
  BreakRail(cluster, 0, 2);
  BreakRail(cluster, 2, 2);
  const Findings troubles = Troubles(cluster);
  ASSERT_THAT(troubles,
              ElementsAre(Tells("paths", Level::kError, "rails 0 and 2 of n2 are down to all 4 other nodes")));
  EXPECT_THAT(troubles[0].means, HasSubstr("swapped"));
  BreakRail(cluster, 1, 2);
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("paths", Level::kError, "no rail of n2 reaches any of 4 other")));
}

TEST(DoctorClusterTest, ARailThatIsDownEverywhere) {
  Cluster cluster = HealthyCluster(4, 3);
  for (size_t node = 0; node < 4; ++node) BreakRail(cluster, 2, node);
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("paths", Level::kError, "rail 2 is down between all 4 nodes")));
}

TEST(DoctorClusterTest, ManyNodesWithOneTroubleAreOneFinding) {
  Cluster cluster = HealthyCluster(12, 3);
  for (size_t node = 0; node < 6; ++node) BreakRail(cluster, 2, node);
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("paths", Level::kError,
                                                   "rail 2 of n0, n1, n2, n3 and 2 more is down to all other nodes")));
}

TEST(DoctorClusterTest, ARailThatIsSplit) {
  Cluster cluster = HealthyCluster(5, 2);
  for (const size_t a : {0, 1, 2}) {
    for (const size_t b : {3, 4}) BreakPath(cluster, 1, a, b);
  }
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("paths", Level::kError, "rail 1 does not join n3, n4 with n0, n1, n2")));
}

TEST(DoctorClusterTest, OnePairAndOneNodeWithSeveral) {
  Cluster cluster = HealthyCluster(8, 2);
  BreakPath(cluster, 0, 1, 2);
  BreakPath(cluster, 1, 1, 2);
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("paths", Level::kError, "rails 0 and 1 between n1 and n2 are down")));
  cluster = HealthyCluster(8, 2);
  for (const size_t other : {0, 1, 2}) BreakPath(cluster, 1, 5, other);
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("paths", Level::kError, "rail 1 of n5 is down to 3 of 7 other nodes: n0, n1, n2")));
}

TEST(DoctorClusterTest, ViewsThatDiffer) {
  Cluster cluster = HealthyCluster(4, 1);
  EntryOf(cluster, 2, 1).rails[0] = PathView::kDown;
  const Findings troubles = Troubles(cluster);
  ASSERT_THAT(troubles, ElementsAre(Tells("paths", Level::kError,
                                          "rail 0 between n1 and n2 is down (n2 says so; n1 says that it is up)")));
  EXPECT_THAT(troubles[0].fix, HasSubstr("Look again"));
}

TEST(DoctorClusterTest, TwoNodesWithTwoRailsDown) {
  Cluster cluster = HealthyCluster(2, 3);
  BreakPath(cluster, 0, 0, 1);
  BreakPath(cluster, 1, 0, 1);
  const Findings troubles = Troubles(cluster);
  ASSERT_THAT(troubles, ElementsAre(Tells("paths", Level::kError, "rails 0 and 1 between n0 and n1 are down")));
  EXPECT_THAT(troubles[0].means, HasSubstr("swapped"));
}

TEST(DoctorClusterTest, DrainedAndDoubtfulPathsAreNoErrors) {
  Cluster cluster = HealthyCluster(3, 2);
  cluster.nodes[1].rails[0].drained = true;
  for (const size_t other : {0, 2}) {
    EntryOf(cluster, 1, other).rails[0] = PathView::kDrained;
    EntryOf(cluster, other, 1).rails[0] = PathView::kDrained;
  }
  EntryOf(cluster, 0, 2).rails[1] = PathView::kDoubtful;
  cluster.nodes[2].draining = true;
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("nodes", Level::kNote, "n2 takes no new work"),
                          Tells("paths", Level::kWarning, "rail 1: 1 path is suspect or probed, as n0 to n2"),
                          Tells("paths", Level::kNote, "rail 0 is drained on n1")));
}

TEST(DoctorClusterTest, PeersThatAreNotListed) {
  Cluster cluster = HealthyCluster(4, 1);
  cluster.nodes[2].peers.erase(cluster.nodes[2].peers.begin());  // n0
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("peers", Level::kError, "n2 does not list n0")));
  cluster = HealthyCluster(4, 1);
  for (size_t n = 0; n < 3; ++n) cluster.nodes[n].peers.pop_back();  // n3
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("peers", Level::kError, "n3 is in the list of peers of no other node")));
  cluster = HealthyCluster(4, 1);
  cluster.nodes[2].peers.clear();
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("peers", Level::kError, "n2 knows of no peer")));
}

TEST(DoctorClusterTest, LinksThatAreDownAreToldOnce) {
  Cluster cluster = HealthyCluster(4, 2);
  const auto cut = [&cluster](size_t a, size_t b) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      EntryOf(cluster, from, to) = {absl::StrCat("n", to), "connection refused", false,
                                    std::vector<PathView>(2, PathView::kUnknown)};
    }
  };
  cut(0, 1);
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("links", Level::kError, "no link between n0 and n1: connection refused")));
  cut(2, 1);
  cut(3, 1);
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("links", Level::kError, "n1 has no link to any other node: connection refused")));
  cut(0, 2);
  cut(0, 3);
  cut(2, 3);
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("links", Level::kError, "no link joins any of the 4 nodes")));
}

TEST(DoctorClusterTest, VersionsAndSettings) {
  Cluster cluster = HealthyCluster(4, 1);
  cluster.nodes[3].version = "0.2.0";
  cluster.nodes[1].settings_hash = "other";
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("versions", Level::kWarning, "0.1.0 on n0, n1, n2; 0.2.0 on n3"),
                          Tells("config", Level::kNote, "settings of n1 are not those of 3 other nodes")));
}

// One node reaches both halves, so nothing parts them, and every pair is a cause of its own.
TEST(DoctorClusterTest, CausesThatDoNotPartCleanlyAreToldInPart) {
  constexpr size_t kNodes = 41;
  Cluster paths = HealthyCluster(kNodes, 1), links = HealthyCluster(kNodes, 1);
  for (size_t a = 0; a < kNodes / 2; ++a) {
    for (size_t b = kNodes / 2; b < kNodes - 1; ++b) {
      BreakPath(paths, 0, a, b);
      for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) EntryOf(links, from, to).up = false;
    }
  }
  const Findings of_paths = CheckClusterPaths(ClusterView(paths)), of_links = CheckClusterLinks(ClusterView(links));
  EXPECT_THAT(of_paths, ::testing::SizeIs(::testing::AllOf(::testing::Gt(1u), Le(34u))));
  EXPECT_THAT(of_links, ::testing::SizeIs(17));
  EXPECT_THAT(of_links, Contains(Tells("links", Level::kError, "the same between 384 more pairs")));
  Cluster lists = HealthyCluster(kNodes, 1);
  for (size_t n = 0; n < kNodes; ++n) EntryOf(lists, n, (n + 1) % kNodes).node = "";
  for (ClusterNode& node : lists.nodes) std::erase_if(node.peers, [](const ClusterPeer& p) { return p.node.empty(); });
  EXPECT_THAT(CheckMembership(ClusterView(lists)),
              Contains(Tells("peers", Level::kError, "25 more nodes do not list all others")));
}

TEST(DoctorClusterTest, PartsThatDoNotKnowEachOtherAreNotBlamed) {
  Cluster cluster = HealthyCluster(6, 1);
  const auto part = [](size_t node) { return node / 2; };
  for (size_t a = 0; a < 6; ++a) {
    for (size_t b = a + 1; b < 6; ++b) {
      if (part(a) == part(b)) continue;
      if (part(b) == 1) BreakPath(cluster, 0, a, b);
      if (part(b) == 2) EntryOf(cluster, a, b).rails[0] = EntryOf(cluster, b, a).rails[0] = PathView::kUnknown;
    }
  }
  EXPECT_THAT(CheckClusterPaths(ClusterView(cluster)),
              ElementsAre(Tells("paths", Level::kError, "rail 0 does not join n2, n3 with n0, n1")));
}

// An answer as daemons give it.
v1::GetOverviewResponse Overview(const std::string& name, size_t peers, uint32_t rails) {
  v1::GetOverviewResponse overview;
  overview.mutable_status()->set_node(name);
  overview.mutable_status()->set_version("0.1.0");
  overview.mutable_status()->set_uptime_seconds(60);
  overview.mutable_status()->set_boot_id(std::hash<std::string>()(name));
  overview.mutable_status()->set_shared_config_hash("5e77");
  for (uint32_t r = 0; r < rails; ++r) {
    auto* rail = overview.add_rails();
    rail->set_index(r);
    rail->set_name(absl::StrCat("rail", r));
    rail->set_address(absl::StrCat("10.1.", r, ".1:7000"));
    rail->set_speed_bytes_per_second(400 * kGbit);
    rail->mutable_health()->set_state(v1::RAIL_STATE_UP);
  }
  for (size_t p = 0; p < peers; ++p) {
    const std::string peer_name = absl::StrCat("n", p);
    if (peer_name == name) continue;
    auto* peer = overview.add_peers();
    peer->set_node(peer_name);
    peer->set_up(true);
    peer->set_rail_count(rails);
    for (uint32_t r = 0; r < rails; ++r) {
      peer->add_rails_up(true);
      peer->add_rail_states(v1::RAIL_STATE_UP);
      peer->add_rail_addresses(absl::StrCat("10.1.", r, ".", p + 1, ":7000"));
    }
  }
  return overview;
}

ClusterNode Parsed(const v1::GetOverviewResponse& overview) {
  ClusterNode node;
  node.answered = ParseOverview(MessageJson(overview).dump(), &node);
  return node;
}

TEST(DoctorClusterTest, ReadsWhatADaemonAnswers) {
  v1::GetOverviewResponse overview = Overview("n0", 3, 2);
  overview.mutable_rails(1)->mutable_device()->set_name("mlx5_1");
  overview.mutable_rails(1)->mutable_device()->set_port(1);
  overview.mutable_rails(1)->mutable_device()->set_link_layer("Ethernet");
  overview.mutable_peers(0)->set_rail_states(0, v1::RAIL_STATE_PROBING);
  overview.mutable_peers(0)->set_rails_up(1, false);
  overview.mutable_peers(1)->set_rail_count(1);
  const ClusterNode node = Parsed(overview);
  ASSERT_TRUE(node.answered.ok()) << node.answered;
  EXPECT_EQ(node.name, "n0");
  EXPECT_EQ(node.settings_hash, "5e77");
  EXPECT_EQ(node.rails[0].address, "10.1.0.1:7000");
  EXPECT_FALSE(node.rails[0].verbs);
  EXPECT_EQ(node.rails[1].device, "mlx5_1/1");
  EXPECT_THAT(node.peers[0].rails, ElementsAre(PathView::kDoubtful, PathView::kDown));
  EXPECT_THAT(node.peers[1].rails, ElementsAre(PathView::kUp, PathView::kUnknown));
}

TEST(DoctorClusterTest, AnswersAreHostile) {
  v1::GetOverviewResponse overview = Overview("n\x1b[2J", 2, 1);
  overview.mutable_rails(0)->mutable_health()->set_why(std::string(100'000, 'x') + "\n");
  const ClusterNode node = Parsed(overview);
  EXPECT_EQ(node.name, "n?[2J");
  EXPECT_THAT(node.rails[0].why, ResultOf(DisplayWidth, Le(256u)));
  for (const std::string text :
       {"", "[", "null", "[]", "{}", R"({"status":1})", R"({"status":{"node":"a"},"rails":{},"peers":[]})",
        R"({"status":{"node":""},"rails":[],"peers":[]})"}) {
    ClusterNode other;
    EXPECT_EQ(ParseOverview(text, &other).code(), absl::StatusCode::kInvalidArgument) << text;
  }
  ClusterNode odd;
  EXPECT_TRUE(ParseOverview(R"({"status":{"node":"a","uptime_seconds":"x"},"rails":[1,{"health":[],"device":{}}],)"
                            R"("peers":[{"node":"b","up":true,"rails_up":3,"rail_states":[null]},7]})",
                            &odd)
                  .ok());
  EXPECT_EQ(odd.rails.size(), 2u);
  EXPECT_EQ(Parsed(Overview("n0", 2, 65)).answered.code(), absl::StatusCode::kInvalidArgument);
  Cluster cluster;
  cluster.nodes = {odd, node};
  CheckCluster(cluster);  // does not crash
  EXPECT_EQ(ParseOverview(std::string(1 << 20, '['), &odd).code(), absl::StatusCode::kInvalidArgument);
}

TEST(DoctorClusterTest, ALargeClusterFitsATerminal) {
  Cluster cluster;
  for (size_t n = 0; n < 128; ++n) {
    cluster.nodes.push_back(Parsed(Overview(absl::StrCat("n", n), 128, 8)));
    cluster.nodes.back().where = absl::StrCat("node", n, ":9471");
  }
  cluster.nodes[77].rails[3].speed_bytes_per_s = 100 * kGbit;
  const Findings findings = CheckCluster(cluster);
  EXPECT_THAT(Troubles(cluster), ElementsAre(Tells("rails", Level::kWarning, "rail 3 of n77 has 100 Gbit/s")));
  const std::string text = RenderCluster(cluster, findings, false);
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, text.find("\n\n")), '\n');
  EXPECT_EQ(lines.size(), 9u);
  EXPECT_THAT(lines, Each(ResultOf(DisplayWidth, Le(80u))));
  EXPECT_THAT(lines, Contains(HasSubstr("16256 of 16256")));
  const nlohmann::ordered_json json = ClusterJson(cluster, findings);
  EXPECT_EQ(json["rails"][3]["paths_up"], 16256);
  EXPECT_EQ(json["rails"][3]["slowest_bytes_per_second"], 100 * kGbit);
  EXPECT_EQ(json["warnings"], 1);
  EXPECT_THAT(json["findings"][0]["level"].get<std::string>(), Not(HasSubstr("error")));
}

}  // namespace
}  // namespace rails::ctl::doctor
