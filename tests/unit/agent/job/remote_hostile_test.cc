// What hostile peers may say of jobs over rails that write into remote memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/job/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return status.ToString(); }

struct Lie {
  std::string name;
  std::function<void(Ready*)> tell;
  std::string text;
};
void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

class LyingReadyTest : public ::testing::TestWithParam<Lie> {};

// Flows from ranks 0 and 2 on n0 to rank 1 on n1, and from rank 2 to rank 3; rank 0 sends it nothing.
TEST_P(LyingReadyTest, FailsTheJobAndNamesTheNode) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 4, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 1000, 0, 0}, {0, 0, 0, 0}, {0, 2000, 0, 3000}, {0, 0, 0, 0}}, 1);
  cluster.Hold(1, 0);
  exchange.SubmitAll(1, 2);
  cluster.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster, 1).size(), 1u);
  Ready* ready = Outgoing<Ready>(cluster, 1)[0];
  ASSERT_EQ(ready->ranges.front().zone, 0u);
  ASSERT_EQ(ready->ranges.back().zone, 2u);
  GetParam().tell(ready);
  cluster.Release(1, 0);
  cluster.Run();
  for (uint32_t r = 0; r < 4; ++r) {
    auto report = *exchange.trainer(r).Wait(1);
    ASSERT_TRUE(report.ok()) << r << " " << report.status();
    EXPECT_EQ(report->state, JobState::kFailed);
    EXPECT_THAT(Text(report->status), AllOf(HasSubstr("READY of n1"), HasSubstr(GetParam().text)));
  }
  cluster.ExpectNothingOpen();
}

INSTANTIATE_TEST_SUITE_P(
    Lies, LyingReadyTest,
    ::testing::Values(
        Lie{"NoRanges",
            [](Ready* r) {
              r->ranges.clear();
              r->keys.clear();
              r->fences.clear();
            },
            "need such rails at both ends"},
        Lie{"TooFewFences", [](Ready* r) { r->fences.pop_back(); }, "2 fences for 3 flows"},
        Lie{"TooManyFences",
            [](Ready* r) {
              r->fences.push_back({1, 1});
            },
            "4 fences for 3 flows"},
        Lie{"TooFewKeys", [](Ready* r) { r->keys.pop_back(); }, "keys for"},
        Lie{"RangeMissing",
            [](Ready* r) {
              r->ranges.pop_back();
              r->keys.resize(r->keys.size() - 2);
            },
            "from rank 2 to rank 3"},
        Lie{"RangeTooLong", [](Ready* r) { ++r->ranges[0].length_bytes; }, "the 1000 bytes from rank 0 to rank 1"},
        Lie{"RangeEndless", [](Ready* r) { r->ranges[0].length_bytes = ~uint64_t{0}; }, "from rank 0 to rank 1"},
        Lie{"RangeTooShort", [](Ready* r) { --r->ranges[0].length_bytes; }, "from rank 0 to rank 1"},
        Lie{"RangeEmpty", [](Ready* r) { r->ranges[0].length_bytes = 0; }, "from rank 0 to rank 1"},
        Lie{"ForAnotherFlow", [](Ready* r) { r->ranges[1].zone = 0; },
            "do not cover the 1000 bytes from rank 0 to rank 1"},
        Lie{"ForNoFlow",
            [](Ready* r) {
              r->ranges.push_back({9, 4096, 1});
              r->keys.resize(r->keys.size() + 2);
            },
            "a range for zone 9"},
        Lie{"OutOfOrder", [](Ready* r) { std::swap(r->ranges.front(), r->ranges.back()); }, "from rank 0 to rank 1"}),
    [](const auto& info) { return info.param.name; });

// Fences that contradict each other. (A sender that names too few lies about its own bytes only.)
class LyingFenceTest
    : public ::testing::TestWithParam<std::pair<const char*, std::function<bool(size_t, SendOrder&)>>> {};

TEST_P(LyingFenceTest, FailsTheJob) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 3});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 900'000}, {0, 0}}, 1);
  for (size_t r = 0; r < 3; ++r) {
    cluster.node(0).rails[r]->tamper = [r](SendOrder& order) {
      return order.fences == 0 || GetParam().second(r, order);
    };
  }
  exchange.SubmitAll(1);
  cluster.Run();
  // Its receiver, that is: the liar may have had all its acknowledgements before.
  auto report = *exchange.trainer(1).Wait(1);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Text(report->status), AllOf(HasSubstr("n0 sent a fence on rail"), HasSubstr("contradicts")));
  cluster.ExpectNothingOpen();
}

INSTANTIATE_TEST_SUITE_P(
    Lies, LyingFenceTest,
    ::testing::Values(std::pair{"MoreOnOneRail",
                                [](size_t r, SendOrder& o) { return o.fences = r == 1 ? 2 : 3, true; }},
                      std::pair{"MoreThanRails", [](size_t, SendOrder& o) { return o.fences = 4, true; }},
                      std::pair{"LaterRound", [](size_t r, SendOrder& o) { return o.round = r == 2 ? 1 : 0, true; }}),
    [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace railsd::testing
