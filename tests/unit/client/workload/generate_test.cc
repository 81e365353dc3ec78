// Generators: the same everywhere, and of the shape that they say.
#include <algorithm>
#include <cmath>
#include <limits>

#include "client/workload/workload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rails::workload {
namespace {

using ::testing::HasSubstr;

std::vector<Step> Make(const GeneratorOptions& options) {
  auto steps = Generate(options);
  EXPECT_TRUE(steps.ok()) << steps.status();
  return steps.ok() ? *std::move(steps) : std::vector<Step>();
}

double Skew(const TrafficMatrix& matrix) {
  uint64_t most = 0;
  for (size_t d = 0; d < matrix.size(); ++d) most = std::max(most, matrix.ColumnSum(d));
  return static_cast<double>(most) * static_cast<double>(matrix.size()) / static_cast<double>(matrix.Total());
}

// Mean over destinations of the deviation between sources over their mean.
double SourceVariation(const TrafficMatrix& matrix) {
  const double size = static_cast<double>(matrix.size());
  double sum = 0;
  for (size_t d = 0; d < matrix.size(); ++d) {
    const double mean = static_cast<double>(matrix.ColumnSum(d)) / size;
    double squares = 0;
    for (size_t s = 0; s < matrix.size(); ++s) squares += std::pow(static_cast<double>(matrix.at(s, d)) - mean, 2);
    if (mean > 0) sum += std::sqrt(squares / size) / mean;
  }
  return sum / size;
}

TEST(GenerateTest, MixtralHasTheStatisticsOfTheTrace) {
  const struct {
    const char* model;
    double mean_skew;
    double max_skew;
  } kCases[] = {{"mixtral-8x7b-e8k2", 1.50, 2.20}, {"mixtral-8x7b-e16k4", 1.62, 2.80}};
  for (const auto& expected : kCases) {
    const std::vector<Step> steps = Make({.steps = 1000, .mixtral_model = expected.model});
    double skew = 0;
    double most = 0;
    double variation = 0;
    for (const Step& step : steps) {
      for (size_t s = 0; s < 4; ++s) ASSERT_EQ(step.dispatch.RowSum(s), 2ull << 30);
      skew += Skew(step.dispatch) / 1000;
      most = std::max(most, Skew(step.dispatch));
      variation += SourceVariation(step.dispatch) / 1000;
    }
    EXPECT_NEAR(skew, expected.mean_skew, 0.05) << expected.model;
    EXPECT_NEAR(most, expected.max_skew, 0.2) << expected.model;
    EXPECT_NEAR(variation, 0.115, 0.01) << expected.model;
  }
}

// Fixed values: another platform, compiler or version must draw the same.
TEST(GenerateTest, DrawsAreFixed) {
  const auto cell = [](Generator generator) {
    return Make({.generator = generator, .size = 5, .steps = 3, .seed = 42})[2].dispatch.at(1, 3);
  };
  EXPECT_EQ(cell(Generator::kMixtral), 470071321u);
  EXPECT_EQ(cell(Generator::kUniform), 429496730u);
  EXPECT_EQ(cell(Generator::kZipf), 199713739u);
  EXPECT_EQ(Make({.generator = Generator::kSparse, .size = 3, .seed = 42, .sparse_fraction = 1})[0].dispatch.at(1, 2),
            1396542844u);
}

TEST(GenerateTest, SeedsMatterAndRepeat) {
  for (const Generator generator :
       {Generator::kMixtral, Generator::kZipf, Generator::kSparse, Generator::kPermutation}) {
    const GeneratorOptions options{.generator = generator, .size = 16, .steps = 3, .seed = 5};
    GeneratorOptions other = options;
    other.seed = 6;
    const std::vector<Step> steps = Make(options);
    EXPECT_EQ(steps[2].dispatch, Make(options)[2].dispatch);
    EXPECT_NE(steps[2].dispatch, Make(other)[2].dispatch) << GeneratorName(generator);
    EXPECT_NE(steps[2].dispatch, steps[1].dispatch) << GeneratorName(generator);
  }
}

TEST(GenerateTest, Shapes) {
  const uint64_t bytes = 1'000'003;
  const auto first = [&](Generator generator, size_t size) {
    return Make({.generator = generator, .size = size, .seed = 3, .bytes_per_source = bytes})[0].dispatch;
  };
  const TrafficMatrix uniform = first(Generator::kUniform, 7);
  for (size_t s = 0; s < 7; ++s) {
    EXPECT_EQ(uniform.RowSum(s), bytes);
    for (size_t d = 0; d < 7; ++d) EXPECT_NEAR(static_cast<double>(uniform.at(s, d)), bytes / 7.0, 1);
  }
  const TrafficMatrix permutation = first(Generator::kPermutation, 9);
  for (size_t s = 0; s < 9; ++s) {
    EXPECT_EQ(permutation.RowSum(s), bytes);
    EXPECT_EQ(permutation.ColumnSum(s), bytes);
    EXPECT_EQ(permutation.at(s, s), 0u);
  }
  const TrafficMatrix incast = first(Generator::kIncast, 6);
  EXPECT_EQ(incast.Total(), 5 * bytes);
  EXPECT_DOUBLE_EQ(Skew(incast), 6);
  const TrafficMatrix sparse = first(Generator::kSparse, 64);
  int pairs = 0;
  for (size_t s = 0; s < 64; ++s) {
    EXPECT_EQ(sparse.at(s, s), 0u);
    for (size_t d = 0; d < 64; ++d) pairs += sparse.at(s, d) > 0;
  }
  EXPECT_NEAR(pairs, 64 * 63 / 4, 120);
  EXPECT_NEAR(static_cast<double>(sparse.Total()), 64.0 * bytes, 64.0 * bytes * 0.15);
  for (const Generator generator : kAllGenerators) EXPECT_EQ(first(generator, 1).Total(), bytes);
}

TEST(GenerateTest, ZipfFollowsItsExponent) {
  for (const double exponent : {0.0, 0.5, 1.0, 1.2, 3.7}) {
    const TrafficMatrix zipf =
        Make({.generator = Generator::kZipf, .size = 50, .bytes_per_source = 1ull << 40, .zipf_exponent = exponent})[0]
            .dispatch;
    std::vector<double> shares;
    double sum = 0;
    for (size_t d = 0; d < 50; ++d) shares.push_back(static_cast<double>(zipf.at(4, d)) / std::pow(2, 40));
    for (int place = 1; place <= 50; ++place) sum += std::pow(place, -exponent);
    std::sort(shares.rbegin(), shares.rend());
    for (int place = 1; place <= 50; ++place) {
      EXPECT_NEAR(shares[place - 1], std::pow(place, -exponent) / sum, 1e-7) << exponent << " at " << place;
    }
  }
}

TEST(GenerateTest, BadOptionsAreNamed) {
  const auto expect = [](const GeneratorOptions& options, const std::string& text) {
    const absl::Status status = Generate(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect({.size = 0}, "size 0 is not between");
  expect({.size = 2049}, "size 2049");
  expect({.size = 2048, .steps = 9}, "steps 9 of 2048 x 2048 cells");
  expect({.bytes_per_source = 0}, "bytes_per_source 0");
  expect({.bytes_per_source = ~0ull}, "bytes_per_source 18446744073709551615");
  expect({.mixtral_model = "gpt"}, "mixtral_model \"gpt\" is none of");
  expect({.zipf_exponent = -1}, "zipf_exponent -1");
  expect({.zipf_exponent = std::numeric_limits<double>::quiet_NaN()}, "zipf_exponent nan");
  expect({.sparse_fraction = 0}, "sparse_fraction 0");
  for (const Generator generator : kAllGenerators) EXPECT_EQ(*ParseGenerator(GeneratorName(generator)), generator);
  EXPECT_THAT(std::string(ParseGenerator("x").status().message()), HasSubstr("\"x\" is none of mixtral, uniform"));
}

}  // namespace
}  // namespace rails::workload
