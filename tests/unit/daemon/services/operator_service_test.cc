// Tests the calls of operators to a daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/services/services_fixture.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

TEST_F(ServicesTest, OperatorsSeePeersThatWereNeverUp) {
  AgentSnapshot snapshot;
  PeerView known;
  known.node = "n1";
  known.up = true;
  snapshot.peers.push_back(known);
  snapshot.finished_jobs = {Report(2, JobState::kDone), Report(1, JobState::kFailed)};
  snapshot.rails.resize(1);
  snapshot.rails[0].name = "rail0";
  snapshot.sessions.push_back({SessionId(7), {.pid = 12, .tenant = "t", .client_name = "train.py"}, 0, 0, 0});
  agent_.SetSnapshot(snapshot);
  grpc::ClientContext a, b, c, d;
  rails::v1::ListPeersResponse peers;
  ASSERT_TRUE(operators_->ListPeers(&a, {}, &peers).ok());
  ASSERT_EQ(peers.peers_size(), 2);
  EXPECT_EQ(peers.peers(1).node(), "n9");
  EXPECT_EQ(peers.peers(1).why(), "not reached yet");
  rails::v1::ListJobsRequest request;
  request.set_finished_limit(1);
  rails::v1::ListJobsResponse jobs;
  ASSERT_TRUE(operators_->ListJobs(&b, request, &jobs).ok());
  ASSERT_EQ(jobs.finished_size(), 1);
  EXPECT_EQ(jobs.finished(0).job().seq(), 2u);
  rails::v1::GetStatusResponse status;
  ASSERT_TRUE(operators_->GetStatus(&c, {}, &status).ok());
  EXPECT_EQ(status.version(), "9.9");
  ASSERT_EQ(status.sessions_size(), 1);
  EXPECT_EQ(status.sessions(0).client_name(), "train.py");
  rails::v1::ListRailsResponse rails;
  ASSERT_TRUE(operators_->ListRails(&d, {}, &rails).ok());
  EXPECT_EQ(rails.rails(0).name(), "rail0");
}

TEST_F(ServicesTest, OperatorsDrainRails) {
  grpc::ClientContext a, b, c;
  rails::v1::DrainRailRequest drain;
  drain.set_rail("rail0");
  rails::v1::DrainRailResponse drained;
  ASSERT_TRUE(operators_->DrainRail(&a, drain, &drained).ok());
  EXPECT_EQ(drained.rail().name(), "rail0");
  EXPECT_TRUE(drained.rail().health().drained());
  EXPECT_EQ(drained.rail().health().state(), rails::v1::RAIL_STATE_UP);
  rails::v1::UndrainRailRequest undrain;
  undrain.set_rail("rail0");
  rails::v1::UndrainRailResponse undrained;
  ASSERT_TRUE(operators_->UndrainRail(&b, undrain, &undrained).ok());
  EXPECT_FALSE(undrained.rail().health().drained());
  drain.set_rail("eth9");
  const grpc::Status unknown = operators_->DrainRail(&c, drain, &drained);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(unknown.error_message(), ::testing::HasSubstr("eth9"));
}

TEST_F(ServicesTest, JobsAreExplained) {
  grpc::ClientContext a, b;
  rails::v1::ExplainJobResponse response;
  EXPECT_EQ(operators_->ExplainJob(&a, {}, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  const absl::Time begun = absl::UnixEpoch() + absl::Seconds(1000);
  JobExplanation job;
  job.report.job.seq = JobSeq(7);
  job.report.rail_tx_bytes = {4096};
  job.report.rail_planned_bytes = {5000};
  job.begun = begun;
  job.begun_at = absl::UnixEpoch() + absl::Seconds(1'700'000'000);
  job.ranks.push_back({Rank(3), begun + absl::Seconds(1)});
  job.exchanges.push_back({PeerIndex(4), "n4", 4096, 0, {}, false});
  job.exchanges[0].times.planned = begun + absl::Seconds(2);
  job.exchanges[0].times.ready_received = begun;
  job.exchanges.push_back({PeerIndex(5), "n5", 0, 0, {}, false});
  job.exchanges[1].times.ready_received = begun - absl::Seconds(4);
  JobRecorder recorder;
  recorder.Reset(1);
  recorder.rails()[0].OnPosted(begun + absl::Seconds(3));
  recorder.rails()[0].OnEnded({PeerIndex(4), false, 0, 4096, begun + absl::Seconds(3), begun + absl::Seconds(5)});
  job.timeline = recorder.Timeline(begun + absl::Seconds(9), [](PeerIndex, uint64_t) { return Rank(3); });
  agent_.explanation = job;
  ASSERT_TRUE(operators_->ExplainJob(&b, {}, &response).ok());
  EXPECT_EQ(response.report().job().seq(), 7u);
  EXPECT_EQ(response.begun_seconds(), 1'700'000'000);
  EXPECT_EQ(response.ranks(0).submitted_seconds(), 1);
  EXPECT_EQ(response.ranks(0).ended_seconds(), 0);
  EXPECT_EQ(response.exchanges(0).planned_seconds(), 2);
  EXPECT_EQ(response.exchanges(0).ready_sent_seconds(), 0) << "not yet";
  EXPECT_GT(response.exchanges(0).ready_received_seconds(), 0) << "in the first moment";
  EXPECT_EQ(response.exchanges(0).ready_early_seconds(), 0);
  EXPECT_GT(response.exchanges(1).ready_received_seconds(), 0) << "before it";
  EXPECT_EQ(response.exchanges(1).ready_early_seconds(), 4);
  EXPECT_EQ(response.rails(0).planned_bytes(), 5000u);
  EXPECT_EQ(response.rails(0).busy_seconds(), 2);
  ASSERT_EQ(response.chunks_size(), 1);
  EXPECT_EQ(response.chunks(0).exchange(), 0u);
  EXPECT_EQ(response.chunks(0).posted_seconds(), 3);
  EXPECT_EQ(response.chunks(0).ended_seconds(), 5);
}

TEST_F(ServicesTest, TheLogLevelIsToldAndSet) {
  const auto call = [this](const std::string& level) {
    grpc::ClientContext context;
    rails::v1::SetLogLevelRequest request;
    request.set_level(level);
    rails::v1::SetLogLevelResponse response;
    const grpc::Status status = operators_->SetLogLevel(&context, request, &response);
    return status.ok() ? response.level_before() : absl::StrCat(status.error_code(), " ", status.error_message());
  };
  EXPECT_EQ(call(""), "info");
  EXPECT_EQ(call("debug"), "info");
  EXPECT_EQ(call(""), "debug");
  EXPECT_EQ(call("Loud"), "3 unknown log level 'Loud'; give one of trace, debug, info, warning, error, off");
  EXPECT_EQ(call("warn"), "debug");
  EXPECT_EQ(call("off"), "warning");
  EXPECT_EQ(call(""), "off");
}

}  // namespace
}  // namespace railsd
