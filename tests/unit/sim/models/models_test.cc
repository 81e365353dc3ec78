// Shapes of models, routing and iterations.
#include <algorithm>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/models/iteration.h"
#include "sim/models/model_shape.h"
#include "sim/models/routing.h"
#include "tests/support/seeds.h"

namespace railsd::sim {
namespace {

using ::testing::HasSubstr;

ModelShape Small() {
  return {.name = "small", .hidden = 1024, .layers = 3, .experts = 16, .top_k = 2, .expert_hidden = 2048};
}

TEST(ModelShapeTest, PublishedSizes) {
  EXPECT_EQ(ModelNames().size(), 4u);
  const absl::StatusOr<ModelShape> deepseek = FindModel("deepseek-v3");
  ASSERT_TRUE(deepseek.ok());
  EXPECT_EQ(deepseek->experts, 256u);
  EXPECT_EQ(deepseek->node_limit, 4u);
  EXPECT_THAT(FindModel("gpt").status().message(), HasSubstr("\"gpt\" is none of mixtral-8x7b, mixtral-8x22b"));
}

// The active parameters of a token, without embeddings, follow from its operations without a sequence.
TEST(ModelShapeTest, ActiveParameters) {
  const auto active = [](std::string_view name) {
    const ModelShape shape = *FindModel(name);
    return shape.layers * LayerFlopsPerToken(shape, 0) / 2;
  };
  EXPECT_NEAR(active("mixtral-8x7b"), 12.6e9, 0.2e9);   // 12.9e9 with embeddings
  EXPECT_NEAR(active("mixtral-8x22b"), 38.8e9, 0.5e9);  // 39e9
  EXPECT_NEAR(active("deepseek-v3"), 34e9, 1.5e9);      // 37e9 with three dense layers and embeddings
  EXPECT_NEAR(active("qwen3-235b-a22b"), 20.9e9, 1e9);  // 22e9 with embeddings
}

TEST(RoutingTest, EveryTokenIsSentToItsExperts) {
  const RoutingOptions options = {.nodes = 4, .gpus_per_node = 4, .tokens_per_rank = 100};
  const absl::StatusOr<LayerExchange> exchange = DrawLayer(Small(), options);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  for (size_t rank = 0; rank < 16; ++rank) EXPECT_EQ(exchange->dispatch.RowSum(rank), 100u * 2 * 1024 * 2);
  EXPECT_EQ(exchange->combine, exchange->dispatch.Transposed());
}

TEST(RoutingTest, TheSameSeedDrawsTheSame) {
  RoutingOptions options = {.nodes = 4, .gpus_per_node = 4};
  const absl::StatusOr<LayerExchange> first = DrawLayer(Small(), options);
  EXPECT_EQ(first->dispatch, DrawLayer(Small(), options)->dispatch);
  options.seed = 2;
  EXPECT_FALSE(first->dispatch == DrawLayer(Small(), options)->dispatch);
}

double MaxOverMeanOfColumns(const rails::workload::TrafficMatrix& matrix) {
  uint64_t most = 0;
  for (size_t d = 0; d < matrix.size(); ++d) most = std::max(most, matrix.ColumnSum(d));
  return static_cast<double>(most) * static_cast<double>(matrix.size()) / static_cast<double>(matrix.Total());
}

TEST(RoutingTest, SkewMakesDestinationsHot) {
  RoutingOptions options = {.nodes = 4, .gpus_per_node = 4, .skew = 0};
  EXPECT_LT(MaxOverMeanOfColumns(DrawLayer(Small(), options)->dispatch), 1.25);
  options.skew = 1.2;
  EXPECT_GT(MaxOverMeanOfColumns(DrawLayer(Small(), options)->dispatch), 2);
  options.skew = 8;  // one expert has nearly all popularity, and still every token has two
  EXPECT_TRUE(DrawLayer(Small(), options).ok());
}

TEST(RoutingTest, NodeLimitBoundsTheNodesOfAToken) {
  ModelShape shape = *FindModel("deepseek-v3");
  const RoutingOptions options = {.nodes = 16, .gpus_per_node = 8, .tokens_per_rank = 1};
  const absl::StatusOr<LayerExchange> exchange = DrawLayer(shape, options);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  for (size_t rank = 0; rank < 128; ++rank) {
    std::set<size_t> nodes;
    for (size_t d = 0; d < 128; ++d) {
      if (exchange->dispatch.at(rank, d) > 0) nodes.insert(d / 8);
    }
    EXPECT_LE(nodes.size(), 4u);
  }
  // FP8 with scales one way, bf16 the other.
  EXPECT_EQ(exchange->dispatch.RowSum(0), 8u * (7168 + 7168 / 32));
  EXPECT_EQ(exchange->combine.ColumnSum(0), 8u * 7168 * 2);
}

TEST(RoutingTest, CopiesForRanksAndNodesAreFewer) {
  ModelShape shape = Small();
  shape.top_k = 8;
  RoutingOptions options = {.nodes = 2, .gpus_per_node = 4, .tokens_per_rank = 256};
  const uint64_t by_expert = DrawLayer(shape, options)->dispatch.Total();
  options.copies = Copies::kRank;
  const uint64_t by_rank = DrawLayer(shape, options)->dispatch.Total();
  options.copies = Copies::kNode;
  const LayerExchange by_node = *DrawLayer(shape, options);
  EXPECT_LT(by_rank, by_expert);
  EXPECT_LT(by_node.dispatch.Total(), by_rank);
  EXPECT_EQ(by_node.dispatch.at(1, 6), 0u) << "forwarded by the GPU of the same index";
}

// With fewer experts than nodes, groups of nodes hold all experts and tokens stay in their group.
TEST(RoutingTest, FewExpertsMakeGroupsOfNodes) {
  ModelShape shape = Small();
  shape.experts = 2;
  const LayerExchange exchange = *DrawLayer(shape, {.nodes = 4, .gpus_per_node = 2});
  EXPECT_GT(exchange.dispatch.at(0, 2), 0u);
  for (size_t d = 4; d < 8; ++d) EXPECT_EQ(exchange.dispatch.at(0, d), 0u);
  EXPECT_EQ(exchange.dispatch.at(0, 3), 0u) << "GPU 0 uses the holders of index 0";
}

TEST(RoutingTest, ALimitOfNodesBoundsTheGroup) {
  const ModelShape shape = *FindModel("deepseek-v3");
  const LayerExchange exchange = *DrawLayer(shape, {.nodes = 256, .gpus_per_node = 2, .tokens_per_rank = 64});
  for (size_t d = 256; d < 512; ++d) EXPECT_EQ(exchange.dispatch.at(0, d), 0u);
}

TEST(RoutingTest, Refusals) {
  const auto expect = [](const ModelShape& shape, const RoutingOptions& options, const std::string& text) {
    EXPECT_THAT(DrawLayer(shape, options).status().message(), HasSubstr(text));
  };
  const RoutingOptions options = {.nodes = 4, .gpus_per_node = 4};
  ModelShape shape = Small();
  shape.top_k = 17;
  expect(shape, options, "top_k 17 is not between 1 and the 16 experts");
  shape.top_k = 9;
  shape.node_limit = 2;
  RoutingOptions spread = options;
  spread.group_nodes = 4;
  expect(shape, spread, "top_k 9 is more than the 8 experts of 2 nodes, the node limit");
  RoutingOptions full = options;
  full.experts_per_gpu = 1;
  EXPECT_TRUE(DrawLayer(Small(), full).ok());
  full.nodes = 2;
  expect(Small(), full, "16 experts do not fit into 8 GPUs of 1 experts each");
  expect(Small(), {.nodes = 3}, "16 experts cannot lie evenly on 3 nodes; group_nodes must divide both, as 1 does");
  expect(Small(), {.nodes = 4, .group_nodes = 8}, "4 nodes are no multiple of the 8 that hold all experts once");
  expect(Small(), {.nodes = 4, .gpus_per_node = 3}, "4 experts of a node cannot lie evenly on its 3 GPUs");
  expect(Small(), {.nodes = 0}, "0 nodes of 8 GPUs are not between 1 and 8192 GPUs");
  expect(Small(), {.tokens_per_rank = 0}, "0 tokens a rank");
  expect(Small(), {.skew = -1}, "a skew of -1");
}

// Many ranks draw fewer tokens, each of which stands for several; the bytes of a rank stay exact.
TEST(RoutingTest, LargeClustersKeepTheirBytes) {
  const ModelShape shape = *FindModel("deepseek-v3");
  const uint32_t nodes = railsd::testing::kSanitized ? 8 : 64, tokens = railsd::testing::kSanitized ? 1001 : 100001;
  const LayerExchange exchange = *DrawLayer(shape, {.nodes = nodes, .gpus_per_node = 8, .tokens_per_rank = tokens});
  EXPECT_NEAR(static_cast<double>(exchange.dispatch.RowSum(3)), tokens * 8.0 * 7392, 512);
}

TEST(IterationTest, LayersTimesComputeAndExchanges) {
  const ModelShape shape = Small();
  ComputeOptions options = {.device_flops = 1e12, .efficiency = 0.5, .overlap = 0, .backward = false};
  const double compute = LayerComputeSeconds(shape, 1000, options);
  EXPECT_DOUBLE_EQ(compute, 1000 * LayerFlopsPerToken(shape, 4096) / 0.5e12);
  EXPECT_DOUBLE_EQ(Iteration(shape, 1000, 0.01, 0.02, options).seconds, 3 * (compute + 0.03));
  options.overlap = 1;
  EXPECT_DOUBLE_EQ(Iteration(shape, 1000, 0.01, 0.02, options).seconds, 3 * std::max(compute, 0.03));
  options.overlap = 0;
  options.backward = true;
  EXPECT_DOUBLE_EQ(Iteration(shape, 1000, 0.01, 0.02, options).seconds, 3 * (3 * compute + 2 * 0.03));
}

}  // namespace
}  // namespace railsd::sim
