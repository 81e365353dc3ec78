// Messages that are longer than their receiver takes (limits.max_message there): the job that needs one fails, and
// nothing else does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

absl::Status TooLong() { return absl::ResourceExhaustedError("9000 bytes, takes 8000; raise its limits.max_message"); }

class MessageSizeTest : public ::testing::TestWithParam<bool> {
 protected:
  // The first job of `large` fails everywhere; the one of `other`, and the next one of `large`, do not.
  void ExpectItAloneFails(Exchange& large, Exchange& other, const std::string& which) {
    large.SetLengths(AllLengths(large.world(), 900), 1);
    other.SetLengths(AllLengths(other.world(), 700), 2);
    large.SubmitAll(1, 3);
    other.SubmitAll(1);
    cluster_.Run();
    large.ExpectFailed(1, absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(which), HasSubstr(TooLong().message())));
    other.ExpectDone(1);
    other.ExpectBytes();
    Lengths few = AllLengths(large.world(), 0);
    few[0][1] = 900;
    large.SetLengths(few, 3);
    large.RunJob(2);
    cluster_.ExpectNothingOpen();
  }
  Cluster cluster_{{.remote = GetParam(), .nodes = 3, .rails = 2}};
};

INSTANTIATE_TEST_SUITE_P(Rails, MessageSizeTest, ::testing::Bool(), ModeOf);

TEST_P(MessageSizeTest, AReady) {
  Exchange large(&cluster_, 9, "large"), other(&cluster_, 3, "other");
  cluster_.node(1).does_not_fit = [](const ControlMessage& message) {
    const auto* ready = std::get_if<Ready>(&message);
    return ready != nullptr && ready->sends.size() > 4 ? TooLong() : absl::OkStatus();
  };
  ExpectItAloneFails(large, other,
                     absl::StrCat("job 1: READY of 18 flows and ", GetParam() ? 9 : 0, " ranges from n1 to n"));
}

// Rails carry an exchange that would fit into a READY of another job, and it is not counted as eager.
TEST_P(MessageSizeTest, AReadyWithEagerBytes) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = 4096});
  Exchange exchange(&cluster, "g", AllLengths(4, 1000));
  cluster.node(0).does_not_fit = [](const ControlMessage& message) {
    const auto* ready = std::get_if<Ready>(&message);
    return ready != nullptr && ready->sends.size() + ready->eager.size() > 4000 ? TooLong() : absl::OkStatus();
  };
  exchange.SubmitAll(1);
  cluster.Run();
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
  cluster.ExpectNothingOpen();
  EXPECT_EQ(cluster.node(0).engine->Snapshot(0).counters.eager_sent, 0u);
  EXPECT_EQ(cluster.node(1).engine->Snapshot(0).counters.eager_sent, 1u);
  const JobReport report = **exchange.trainer(0).Wait(1);
  EXPECT_EQ(report.eager_sent_bytes, 0u);
  EXPECT_EQ(report.eager_received_bytes, 4000u);
}

TEST_P(MessageSizeTest, TheGrantOfAReady) {
  if (!GetParam()) GTEST_SKIP() << "it does not grow with the job";
  Exchange large(&cluster_, 9, "large"), other(&cluster_, 3, "other");
  cluster_.node(1).does_not_fit = [](const ControlMessage& message) {
    const auto* ready = std::get_if<Ready>(&message);
    return ready != nullptr && ready->grant.has_value() && ready->grant->ranges.size() > 4 ? TooLong()
                                                                                           : absl::OkStatus();
  };
  ExpectItAloneFails(large, other, "job 1: READY of 18 flows and 9 ranges from n1 to n");
}

// The job runs by then: its group ends, and nothing else does.
TEST_P(MessageSizeTest, ALateGrant) {
  if (!GetParam()) GTEST_SKIP() << "it does not grow with the job";
  Exchange large(&cluster_, 9, "large"), other(&cluster_, 3, "other");
  for (size_t r : {0u, 1u}) cluster_.fabric().Fail(cluster_.AddressOf(1, r));  // n1 cannot grant anything yet
  cluster_.Run();
  size_t readys = 0, late = 0;
  cluster_.node(1).does_not_fit = [&](const ControlMessage& message) {
    readys += std::holds_alternative<Ready>(message);
    const auto* grant = std::get_if<LateGrant>(&message);
    late += grant != nullptr;
    return grant != nullptr && grant->grant.ranges.size() > 4 ? TooLong() : absl::OkStatus();
  };
  large.SetLengths(AllLengths(large.world(), 900), 1);
  other.SetLengths(AllLengths(other.world(), 700), 2);
  large.SubmitAll(1, 3);
  other.SubmitAll(1);
  cluster_.Run();
  EXPECT_EQ(readys, 4u);
  EXPECT_EQ(late, 0u);
  for (size_t r : {0u, 1u}) cluster_.fabric().Heal(cluster_.AddressOf(1, r));
  cluster_.Run();
  EXPECT_GT(late, 0u);
  large.ExpectFailed(1, absl::StatusCode::kResourceExhausted,
                     AllOf(HasSubstr("job 1: grant of 9 ranges from n1 to n"), HasSubstr(TooLong().message())));
  other.ExpectDone(1);
  other.ExpectBytes();
  other.SubmitAll(2);
  cluster_.Run();
  other.ExpectDone(2);
  cluster_.ExpectNothingOpen();
}

// A commit names the node of every rank.
TEST_P(MessageSizeTest, ACommit) {
  Exchange other(&cluster_, 3, "other"), large(&cluster_, 9, "large", {.join = false});
  // n1 hears of it, n2 does not.
  int commits = 0;
  cluster_.node(0).does_not_fit = [&](const ControlMessage& message) {
    return std::holds_alternative<GroupCommit>(message) && ++commits > 1 ? TooLong() : absl::OkStatus();
  };
  for (uint32_t r = 0; r < large.world(); ++r) large.trainer(r).Join("large", large.world());
  cluster_.Run();
  for (uint32_t r = 0; r < large.world(); ++r) {
    const absl::StatusOr<GroupView>& group = large.trainer(r).group;
    if (group.ok()) {
      EXPECT_EQ(r % 3, 1u) << "only n1 has heard of it";
      continue;
    }
    EXPECT_EQ(group.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(group.status().message()),
                AllOf(HasSubstr("group large of 9 ranks cannot form: its commit from n0 to n2: "),
                      HasSubstr(TooLong().message())));
  }
  for (size_t n = 0; n < cluster_.size(); ++n) {
    for (const GroupView& group : cluster_.node(n).engine->Snapshot(0).groups) {
      EXPECT_EQ(group.name == "large", group.broken) << group.name << " on n" << n;
    }
  }
  other.SetLengths(AllLengths(other.world(), 700), 2);
  other.SubmitAll(1);
  cluster_.Run();
  other.ExpectDone(1);
  // As soon as it fits.
  cluster_.node(0).does_not_fit = nullptr;
  for (uint32_t r = 0; r < large.world(); ++r) large.trainer(r).Join("large", large.world());
  cluster_.Run();
  for (uint32_t r = 0; r < large.world(); ++r) EXPECT_TRUE(large.trainer(r).group.ok()) << r;
}

// A node without a rank in a group need not take its whole commit.
TEST_P(MessageSizeTest, ACommitForWhoIsNotInTheGroup) {
  Exchange pair(&cluster_, 2, "pair", {.join = false});
  cluster_.node(0).does_not_fit = [](const ControlMessage& message) {
    const auto* commit = std::get_if<GroupCommit>(&message);
    EXPECT_TRUE(commit == nullptr || commit->members.size() == 2);
    return absl::OkStatus();
  };
  for (uint32_t r = 0; r < 2; ++r) pair.trainer(r).Join("pair", 2);
  std::vector<std::pair<std::string, size_t>> heard;
  cluster_.Run([&] {
    for (const auto& [node, message] : cluster_.node(0).outbox) {
      const auto* commit = std::get_if<GroupCommit>(&message);
      if (commit != nullptr && heard.size() < 2) heard.emplace_back(node, commit->members.size());
    }
    return !heard.empty();
  });
  cluster_.Run();
  EXPECT_THAT(heard, UnorderedElementsAre(Pair("n1", 2), Pair("n2", 1)));
  EXPECT_TRUE(pair.trainer(0).group.ok() && pair.trainer(1).group.ok());
}

}  // namespace
}  // namespace railsd::testing
