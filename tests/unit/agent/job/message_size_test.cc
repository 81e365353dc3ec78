// Messages that are longer than their receiver takes (limits.max_message there): the job that needs one fails, and
// nothing else does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/job/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
    for (uint32_t r = 0; r < large.world(); ++r) {
      const auto report = *large.trainer(r).Wait(1);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(report->status.message()), AllOf(HasSubstr(which), HasSubstr(TooLong().message())));
    }
    other.ExpectDone(1);
    other.ExpectBytes();
    std::vector<std::vector<uint64_t>> few = AllLengths(large.world(), 0);
    few[0][1] = 900;
    large.SetLengths(few, 3);
    large.SubmitAll(2);
    cluster_.Run();
    large.ExpectDone(2);
    large.ExpectBytes();
    cluster_.ExpectNothingOpen();
  }
  Cluster cluster_{{.remote = GetParam(), .nodes = 3, .rails = 2}};
};

INSTANTIATE_TEST_SUITE_P(Rails, MessageSizeTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) { return info.param ? "Remote" : "Framed"; });

TEST_P(MessageSizeTest, AnOffer) {
  Exchange large(&cluster_, 9, "large"), other(&cluster_, 3, "other");
  large.JoinAll();
  other.JoinAll();
  cluster_.node(1).does_not_fit = [](const ControlMessage& message) {
    const auto* offer = std::get_if<Offer>(&message);
    return offer != nullptr && offer->flows.size() > 4 ? TooLong() : absl::OkStatus();
  };
  ExpectItAloneFails(large, other, "job 1: OFFER of 9 flows from n1 to n");
}

TEST_P(MessageSizeTest, AReady) {
  if (!GetParam()) GTEST_SKIP() << "it does not grow with the job";
  Exchange large(&cluster_, 9, "large"), other(&cluster_, 3, "other");
  large.JoinAll();
  other.JoinAll();
  cluster_.node(1).does_not_fit = [](const ControlMessage& message) {
    const auto* ready = std::get_if<Ready>(&message);
    return ready != nullptr && ready->fences.size() > 4 ? TooLong() : absl::OkStatus();
  };
  ExpectItAloneFails(large, other, "job 1: READY of ");
}

}  // namespace
}  // namespace railsd::testing
