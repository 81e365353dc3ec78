// Scenarios: YAML, sweeps, contradictions, matrices, fixed cost.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/scenario/document.h"
#include "sim/scenario/fixed_cost.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/points.h"
#include "sim/scenario/traffic.h"
#include "tests/support/temporary_folder.h"

namespace railsd::sim {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Points> PointsOf(const std::string& yaml) {
  const absl::StatusOr<Document> document = ParseDocument(yaml, "a.yaml");
  if (!document.ok()) return document.status();
  return MakePoints(*document);
}

void ExpectMistake(const std::string& yaml, const std::string& text) {
  const absl::StatusOr<Points> points = PointsOf(yaml);
  ASSERT_FALSE(points.ok()) << yaml;
  EXPECT_THAT(std::string(points.status().message()), HasSubstr(text)) << yaml;
}

TEST(KeysTest, DefaultsAreThoseOfTheScenario) {
  const Scenario standard;
  for (const Key& key : Keys()) {
    EXPECT_EQ(key.flag.substr(0, 2), "--") << key.name;
    Scenario changed;
    if (key.set == nullptr || key.standard.empty()) continue;
    key.set(std::string(key.standard), &changed);  // "16MiB; a file as it is" is none, and changes nothing
    EXPECT_EQ(changed.speeds, standard.speeds) << key.name;
    EXPECT_EQ(changed.inner, standard.inner) << key.name;
    EXPECT_EQ(changed.propagation, standard.propagation) << key.name;
    EXPECT_EQ(changed.fixed_cost, standard.fixed_cost) << key.name;
    EXPECT_EQ(changed.chunk_bytes, standard.chunk_bytes) << key.name;
    EXPECT_EQ(changed.packet.queue_bytes, standard.packet.queue_bytes) << key.name;
    EXPECT_EQ(changed.packet.mark_bytes, standard.packet.mark_bytes) << key.name;
    EXPECT_EQ(changed.packet.packet_bytes, standard.packet.packet_bytes) << key.name;
    EXPECT_EQ(changed.compute.device_flops, standard.compute.device_flops) << key.name;
    EXPECT_EQ(changed.skew, standard.skew) << key.name;
    EXPECT_EQ(changed.workload, standard.workload) << key.name;
  }
}

TEST(KeysTest, NearestNeedsFewChanges) {
  EXPECT_EQ(Nearest("plannr", {"ecmp", "planner"}), "planner");
  EXPECT_EQ(Nearest("quite_different", {"ecmp", "planner"}), std::nullopt);
}

TEST(PointsTest, ValuesReachTheScenario) {
  const absl::StatusOr<Points> points = PointsOf(
      "fabric: {nodes: 16, gpus: 4, rails: 2, speed: '400gbit,0', changes: '1@3:2ms:200gbit'}\n"
      "workload: deepseek-v3\n"
      "model: {tokens: 100, experts: 64}\n"
      "policy: [planner, ecmp]\n"
      "fixed_cost: {peer: 2us}\n");
  ASSERT_TRUE(points.ok()) << points.status();
  ASSERT_EQ(points->points.size(), 1u);
  EXPECT_THAT(points->policies, ::testing::ElementsAre("planner", "ecmp"));
  const Scenario& scenario = points->points[0].scenario;
  EXPECT_EQ(scenario.speeds, std::vector<double>({50e9, 0}));
  EXPECT_EQ(scenario.changes[0].node, 3u);
  EXPECT_EQ(scenario.changes[0].at, absl::Milliseconds(2));
  EXPECT_DOUBLE_EQ(scenario.fixed_cost.peer, 2e-6);
  EXPECT_EQ(ShapeOf(scenario).experts, 64u);
  EXPECT_EQ(ShapeOf(scenario).hidden, 7168u);
  Scenario same = scenario;
  same.model.hidden = 7168;  // as published
  EXPECT_EQ(ShapeOf(same).attention_parameters, ShapeOf(scenario).attention_parameters);
}

TEST(PointsTest, ListsMakeEveryCombination) {
  const absl::StatusOr<Points> points =
      PointsOf("fabric: {nodes: [4, 8]}\nworkload: {kind: [zipf, uniform, sparse]}\n");
  ASSERT_TRUE(points.ok()) << points.status();
  ASSERT_EQ(points->points.size(), 6u);
  EXPECT_THAT(points->swept, ::testing::ElementsAre("fabric.nodes", "workload.kind"));
  EXPECT_EQ(DescribePoint(*points, points->points[1]), "nodes 4, kind uniform");
  EXPECT_EQ(DescribePoint(*points, points->points[5]), "nodes 8, kind sparse");
  EXPECT_EQ(points->points[5].scenario.nodes, 8u);
}

TEST(PointsTest, MistakesOfYaml) {
  ExpectMistake("", "a.yaml:1: is empty");
  ExpectMistake("- a\n", "a.yaml:1: is no mapping");
  ExpectMistake("fabric: {nodes: 4\n", "is no YAML");
  ExpectMistake("seed: 1\nfabrik: {nodes: 4}\n", "a.yaml:2: fabrik: is no key; did you mean fabric?");
  ExpectMistake("fabric:\n  nodes: 4\n  node: 5\n", "a.yaml:3: fabric.node: is no key; did you mean fabric.nodes?");
  ExpectMistake("nodes: 4\n", "a.yaml:1: nodes: is no key; did you mean fabric.nodes?");
  ExpectMistake("seed: 1\nseed: 2\n", "a.yaml:2: seed: is given twice");
  ExpectMistake("fabric: 4\n", "a.yaml:1: fabric: is a section of keys");
  ExpectMistake("seed: {a: 1}\n", "a.yaml:1: seed: is a key, not a section");
  ExpectMistake("seed:\n", "a.yaml:1: seed: has no value");
  ExpectMistake("seed: 1\n---\nseed: 2\n", "a.yaml:3: is a second document");
  ExpectMistake("seed: []\n", "a.yaml:1: seed: is an empty list");
  ExpectMistake("seed: [[1]]\n", "has a value that is no text");
  EXPECT_THAT(std::string(ParseDocument(std::string(kMostScenarioBytes + 1, ' '), "a").status().message()),
              HasSubstr("is longer than"));
}

TEST(PointsTest, MistakesOfValues) {
  ExpectMistake("seed: 1\nfabric:\n  nodes: 0\n", "a.yaml:3: fabric.nodes: \"0\" is not between 1 and 2048");
  ExpectMistake("fabric: {nodes: -3}\n", "\"-3\" is below zero");
  ExpectMistake("fabric: {nodes: '4,8'}\n", "\"4,8\" is no whole number; for a sweep give a list in YAML");
  ExpectMistake("fabric: {speed: 0}\n", "fabric.speed: \"0\" is zero");
  ExpectMistake("fabric: {speed: -1gbit}\n", "\"-1gbit\" is below zero");
  ExpectMistake("fabric: {inner: 0}\n", "\"0\" is zero; a rate must be above it");
  ExpectMistake("fabric: {speed: fast}\n", "\"fast\" is no rate");
  ExpectMistake("fabric: {nodes: [4, 8, 4]}\n", "\"4\" is in the list twice");
  ExpectMistake("workload: zipff\n", "workload.kind: \"zipff\" is none of mixtral, uniform");
  ExpectMistake("policy: plannr\n", "policy: \"plannr\" is no policy; did you mean planner?");
  ExpectMistake("iteration: {overlap: 2}\n", "\"2\" is not between 0 and 1");
  ExpectMistake("policy: [all, planner]\n", "policy: \"all\" must stand alone");
  ExpectMistake("iteration: {device: 989}\n", "is no rate of a device; write for example 989tflops");
  ExpectMistake("network: {tolerance: 0.3}\n", "\"0.3\" is not between 0 and 0.1");
  ExpectMistake("fabric: {propagation: 2s}\n", "\"2s\" is above 1s");
  ExpectMistake("fabric: {speed: '1gbit,fast'}\n", "fabric.speed: \"fast\" is no rate");
  ExpectMistake("fabric: {changes: '1:x:0'}\n", "fabric.changes: \"x\" is no time; write for example 15us");
  ExpectMistake("fabric: {changes: '2:1ms:0,3:100:0'}\n", "\"100\" is no time without a unit; write for example 100us");
  ExpectMistake("fabric: {changes: '3:-1us:0'}\n", "\"-1us\" is below zero");
  ExpectMistake("fabric: {changes: '3:1ms:100'}\n", "\"100\" is no rate; write for example 200mbit");
  ExpectMistake("fabric: {changes: 'x:1ms:0'}\n", "\"x\" is no whole number; give the number of a rail");
  ExpectMistake("fabric: {changes: '1@y:1ms:0'}\n", "\"y\" is no whole number; give the number of a node");
  ExpectMistake("fabric: {changes: '2:1ms:0,1:2'}\n", "\"1:2\" is not RAIL:TIME:SPEED");
  ExpectMistake("fixed_cost: {count: maybe}\n", "\"maybe\" is neither true nor false");
}

TEST(PointsTest, Contradictions) {
  ExpectMistake("fabric: {rails: 4, speed: '1gbit,2gbit'}\n",
                "fabric.speed: \"1gbit,2gbit\" does not fit: 2 speeds for 4 rails");
  ExpectMistake("fabric: {rails: 4, changes: '4:1ms:0'}\n", "rail 4 of 4 rails");
  ExpectMistake("fabric: {nodes: 4, changes: '0@4:1ms:0'}\n", "node 4 of 4 nodes");
  ExpectMistake("fabric: {changes: '0@4:1ms:0'}\n", "node 4 of 4 nodes");  // the default
  ExpectMistake("fabric: {nodes: 2000, gpus: 8}\n", "2000 nodes of 8 GPUs are more than 8192 GPUs");
  ExpectMistake("workload: {kind: zipf, file: m.csv}\n", "a file is given, but the workload is zipf");
  ExpectMistake("workload: file\n", "needs workload.file");
  ExpectMistake("workload: model\n", "needs model.hidden, model.layers");
  ExpectMistake("workload: zipf\nmodel: {tokens: 5}\n",
                "a.yaml:2: model.tokens: \"5\" changes nothing: needs a model as workload.kind");
  ExpectMistake("workload: {kind: uniform, zipf_exponent: 1}\n", "changes nothing: needs workload.kind zipf");
  ExpectMistake("network: {queue: 1MiB}\n", "changes nothing: needs network.mode packet");
  ExpectMistake("workload: {kind: deepseek-v3, bytes_per_rank: 1MiB}\n", "the bytes of a model follow from its tokens");
  ExpectMistake("network: {mode: packet, queue: 1KiB}\n", "network.queue: \"1KiB\" does not fit: packets are marked");
  ExpectMistake("network: {mode: packet, full: drop, mark: 20KiB}\n", "needs network.mode packet and network.full ecn");
  ExpectMistake("network: {mode: packet, packet: 64KiB, queue: 64KiB, mark: 1KiB}\n",
                "network.packet: \"64KiB\" does not fit: two packets");
  EXPECT_TRUE(PointsOf("network: {mode: packet, full: drop, queue: 100KiB}\n").ok());
  ExpectMistake("fabric: {spines: 0, spine_speed: 1gbit}\n",
                "fabric.spine_speed: \"1gbit\" does not fit: there are no");
  ExpectMistake("fabric: {spines: 4}\npolicy: planner\n", "fabric.spines: \"4\" changes nothing: no policy of these");
  EXPECT_TRUE(PointsOf("fabric: {spines: 4}\npolicy: pinned\n").ok());
  ExpectMistake("chunk: 1KiB\n", "chunks of 8192 bytes at least and 1024 bytes at most");
  ExpectMistake("workload: deepseek-v3\nfabric: {nodes: 3}\n",
                "fabric.nodes: \"3\" does not fit: 256 experts cannot lie evenly");
  ExpectMistake("workload: deepseek-v3\nmodel: {experts_per_gpu: 4}\n",
                "model.experts_per_gpu: \"4\" does not fit: 256 experts do not fit into 32 GPUs of 4 experts each");
}

TEST(PointsTest, SweepsHaveALimit) {
  std::string seeds;
  for (int i = 0; i < 101; ++i) seeds += (i == 0 ? "" : ", ") + std::to_string(i);
  ExpectMistake("seed: [" + seeds + "]\nfabric: {spines: [" + seeds + "]}\n",
                "a.yaml:1: seed: the sweep has 10201 points (101 of seed x 101 of fabric.spines); 10000 are allowed");
}

TEST(TrafficTest, FilesOfNodesAndOfGpus) {
  const testing::TemporaryFolder folder;
  Scenario scenario;
  scenario.workload = kFileWorkload;
  scenario.gpus = 2;
  scenario.file = folder.Write("m.csv", "0,100\n60,0\n");
  const absl::StatusOr<Traffic> traffic = MakeTraffic(scenario);
  ASSERT_TRUE(traffic.ok()) << traffic.status();
  EXPECT_EQ(traffic->nodes, 2u);
  EXPECT_EQ(traffic->bytes_between_nodes, 160u);
  ASSERT_EQ(traffic->exchanges.size(), 1u);
  EXPECT_EQ(traffic->exchanges[0].ranks.size(), 4u);
  scenario.nodes = 1;  // the same file, of GPUs
  EXPECT_EQ(MakeTraffic(scenario)->exchanges[0].ranks.at(0, 1), 100u);
  scenario.nodes = 3;
  EXPECT_THAT(std::string(MakeTraffic(scenario).status().message()),
              HasSubstr("m.csv: has 2 ends; 3 nodes of 2 GPUs need 3 (nodes) or 6 (GPUs)"));
  scenario.steps = 2;
  EXPECT_THAT(std::string(MakeTraffic(scenario).status().message()),
              HasSubstr("m.csv: is a matrix; workload.steps needs a trace"));
}

TEST(TrafficTest, ModelsHaveBothExchangesAndStepsDiffer) {
  Scenario scenario;
  scenario.workload = "mixtral-8x7b";
  scenario.tokens = 64;
  scenario.steps = 2;
  const absl::StatusOr<Traffic> traffic = MakeTraffic(scenario);
  ASSERT_TRUE(traffic.ok()) << traffic.status();
  ASSERT_EQ(traffic->exchanges.size(), 4u);
  EXPECT_TRUE(traffic->exchanges[1].combine);
  EXPECT_EQ(traffic->exchanges[1].ranks, traffic->exchanges[0].ranks.Transposed());
  EXPECT_FALSE(traffic->exchanges[2].ranks == traffic->exchanges[0].ranks);
  scenario.exchanges = Exchanges::kCombine;
  EXPECT_EQ(MakeTraffic(scenario)->exchanges.size(), 2u);
  scenario.steps = 10'000;
  scenario.nodes = 64;
  EXPECT_THAT(std::string(MakeTraffic(scenario).status().message()), HasSubstr("need too much memory"));
}

TEST(FixedCostTest, OfTheNodeThatIsHeldUpLongest) {
  rails::workload::TrafficMatrix ranks(6);  // three nodes of two GPUs
  EXPECT_EQ(FixedSecondsOf({}, ranks, 2, {}).Sum(), 0);
  ranks.at(0, 1) = 5;  // inside a node
  EXPECT_EQ(FixedSecondsOf({}, ranks, 2, {}).Sum(), 0);
  ranks.at(0, 2) = 5;
  ranks.at(2, 0) = 5;
  ranks.at(1, 4) = 5;
  const FixedCost cost = {.job = 1, .peer = 10, .flow = 100, .share = 1e4, .ready = 1000};
  const FixedSeconds fixed = FixedSecondsOf(cost, ranks, 2, {});
  EXPECT_DOUBLE_EQ(fixed.job, 1);
  EXPECT_DOUBLE_EQ(fixed.peers, 15);     // both ways with node 1, one way to node 2
  EXPECT_DOUBLE_EQ(fixed.flows, 150);    // the same
  EXPECT_DOUBLE_EQ(fixed.shares, 15e3);  // one for each exchange
  EXPECT_DOUBLE_EQ(fixed.Sum(), 16166);
  const std::vector<uint32_t> shares = {5, 7, 1};
  const FixedSeconds more = FixedSecondsOf(cost, ranks, 2, shares);
  EXPECT_DOUBLE_EQ(more.shares, 35e3) << "node 1 has fewer peers and more shares";
  EXPECT_DOUBLE_EQ(more.peers, 10);
  FixedSeconds sum = fixed;
  sum.Add(more);
  EXPECT_DOUBLE_EQ(sum.shares, 50e3);
}

}  // namespace
}  // namespace railsd::sim
