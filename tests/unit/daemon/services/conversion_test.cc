#include "daemon/services/conversion.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"

namespace railsd {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

rails::v1::SubmitAllToAllRequest Request() {
  rails::v1::SubmitAllToAllRequest request;
  request.mutable_job()->mutable_epoch()->set_boot_id(1);
  request.mutable_job()->mutable_epoch()->set_counter(2);
  request.mutable_job()->set_seq(3);
  request.mutable_job()->set_rank(0);
  auto* flow = request.add_sends();
  flow->set_peer_rank(1);
  flow->add_segment_ids(5);
  for (uint64_t i = 0; i < 3; ++i) {
    flow->add_offsets_bytes(i * 100);
    flow->add_lengths_bytes(10 + i);
  }
  return request;
}

std::string ErrorOf(const rails::v1::SubmitAllToAllRequest& request, AgentLimits limits = {}) {
  const auto submission = SubmissionFrom(request, SessionId(1), limits);
  return submission.ok() ? "accepted" : submission.status().ToString();
}

TEST(ConversionTest, ReadsASubmission) {
  auto request = Request();
  request.set_tag(9);
  request.set_timeout_milliseconds(1500);
  auto* flow = request.add_receives();
  flow->set_peer_rank(2);
  flow->add_segment_ids(6);
  flow->add_segment_ids(7);
  flow->add_offsets_bytes(0);
  flow->add_offsets_bytes(1);
  flow->add_lengths_bytes(2);
  flow->add_lengths_bytes(0);
  const auto submission = SubmissionFrom(request, SessionId(4), {});
  ASSERT_TRUE(submission.ok()) << submission.status();
  EXPECT_EQ(submission->session, SessionId(4));
  EXPECT_EQ(submission->job, (JobKey{{BootId(1), 2}, JobSeq(3)}));
  EXPECT_EQ(submission->tag, 9u);
  EXPECT_EQ(submission->timeout, absl::Milliseconds(1500));
  ASSERT_EQ(submission->sends.size(), 1u);
  EXPECT_EQ(submission->sends[0].ranges[2], (Range{SegmentId(5), 200, 12}));
  ASSERT_EQ(submission->receives.size(), 1u);
  EXPECT_EQ(submission->receives[0].ranges[1], (Range{SegmentId(7), 1, 0}));
}

TEST(ConversionTest, AFlowWithoutRangesIsZeroBytes) {
  auto request = Request();
  auto* flow = request.add_receives();
  flow->set_peer_rank(3);
  const auto submission = SubmissionFrom(request, SessionId(4), {});
  ASSERT_TRUE(submission.ok()) << submission.status();
  EXPECT_TRUE(submission->receives[0].ranges.empty());
}

TEST(ConversionTest, BadSubmissionsNameFieldAndValue) {
  auto bad = Request();
  bad.clear_job();
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: job: missing");
  bad = Request();
  bad.mutable_job()->clear_epoch();
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: job.epoch.boot_id: 0; give the epoch that JoinGroup answered");
  bad = Request();
  bad.mutable_job()->set_seq(0);
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: job.seq: 0; sequence numbers start from 1");
  bad = Request();
  bad.mutable_sends(0)->add_lengths_bytes(1);
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: sends[0].lengths_bytes: 4 entries beside 3 offsets_bytes");
  bad = Request();
  bad.mutable_sends(0)->add_segment_ids(1);
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: sends[0].segment_ids: 2 entries, neither 1 nor 3");
  bad = Request();
  bad.mutable_sends(0)->clear_segment_ids();
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: sends[0].segment_ids: 0 entries, neither 1 nor 3");
  bad = Request();
  bad.mutable_sends(0)->set_offsets_bytes(1, kMax);
  EXPECT_EQ(ErrorOf(bad),
            "INVALID_ARGUMENT: sends[0].offsets_bytes[1]: 18446744073709551615 + length 11 is past 64 bits");
  bad = Request();
  bad.mutable_sends(0)->set_lengths_bytes(0, kMax);
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: sends[0].lengths_bytes[1]: 11 takes the flow past 64 bits");
  bad = Request();
  bad.add_sends()->add_offsets_bytes(0);
  EXPECT_EQ(ErrorOf(bad), "INVALID_ARGUMENT: sends[1].lengths_bytes: 0 entries beside 1 offsets_bytes");
  AgentLimits limits;
  limits.max_ranges_per_submission = 2;
  EXPECT_EQ(ErrorOf(Request(), limits),
            "RESOURCE_EXHAUSTED: sends[0].offsets_bytes: more ranges in the submission than "
            "limits.max_ranges_per_submission 2");
  limits = {};
  limits.max_world_size = 1;
  bad = Request();
  bad.add_sends()->set_peer_rank(2);
  EXPECT_EQ(ErrorOf(bad, limits), "RESOURCE_EXHAUSTED: sends: 2 flows, more than limits.max_world_size 1");
}

TEST(ConversionTest, JoinsAreChecked) {
  rails::v1::JoinGroupRequest request;
  const auto error = [&] {
    const auto join = JoinFrom(request, SessionId(1), {});
    return join.ok() ? "accepted" : std::string(join.status().message());
  };
  EXPECT_EQ(error(), "name: empty");
  request.set_name(std::string(257, 'x'));
  EXPECT_EQ(error(), "name: 257 bytes, more than limits.max_name 256");
  request.set_name("moe");
  EXPECT_EQ(error(), "world_size: 0, outside 1 to limits.max_world_size 4096");
  request.set_world_size(5000);
  EXPECT_EQ(error(), "world_size: 5000, outside 1 to limits.max_world_size 4096");
  request.set_world_size(4);
  request.set_rank(4);
  EXPECT_EQ(error(), "rank: 4, outside the world size 4");
  request.set_rank(3);
  request.set_join_key(std::string(5000, 'k'));
  EXPECT_EQ(error(), "join_key: 5000 bytes, more than limits.max_join_key 4096");
  request.set_join_key("k");
  const auto join = JoinFrom(request, SessionId(1), {});
  ASSERT_TRUE(join.ok());
  EXPECT_EQ(join->timeout, absl::InfiniteDuration());
}

TEST(ConversionTest, TimesSaturate) {
  EXPECT_EQ(FromMilliseconds(kMax), absl::InfiniteDuration());
  EXPECT_EQ(FromMilliseconds(0), absl::ZeroDuration());
}

TEST(ConversionTest, ReportsKeepEveryField) {
  JobReport report;
  report.job = {{BootId(1), 2}, JobSeq(3)};
  report.rank = Rank(4);
  report.state = JobState::kFailed;
  report.status = absl::UnavailableError("node n1 is gone");
  report.elapsed = absl::Milliseconds(1500);
  report.rail_tx_bytes = {1, 2};
  rails::v1::JobReport out;
  ReportTo(report, &out);
  EXPECT_EQ(out.job().seq(), 3u);
  EXPECT_EQ(out.job().rank(), 4u);
  EXPECT_EQ(out.state(), rails::v1::JOB_STATE_FAILED);
  EXPECT_EQ(out.code(), 14);
  EXPECT_EQ(out.message(), "node n1 is gone");
  EXPECT_DOUBLE_EQ(out.elapsed_seconds(), 1.5);
  EXPECT_EQ(out.rail_tx_bytes_size(), 2);
}

}  // namespace
}  // namespace railsd
