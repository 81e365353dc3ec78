// Calls of trainers have the same answers through gRPC and through the ring.
#include "daemon/services/calls.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/ring/ring_server.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/ring/ring_client.h"
#include "tests/unit/daemon/services/services_fixture.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string message;
  std::string response;  // serialized
};

// A call under way.
class Started {
 public:
  virtual ~Started() = default;
  virtual void GiveUp() = 0;
  virtual Outcome Finish() = 0;
};

class StartedGrpc final : public Started {
 public:
  StartedGrpc(const std::shared_ptr<grpc::Channel>& channel, const std::string& token, absl::string_view method,
              const std::string& request)
      : stub_(channel) {
    context_.AddMetadata("rails-session-token", token);
    const grpc::Slice slice(request);
    request_ = grpc::ByteBuffer(&slice, 1);
    stub_.UnaryCall(&context_, absl::StrCat("/rails.v1.", method), {}, &request_, &response_, [this](grpc::Status s) {
      status_ = std::move(s);
      done_.Notify();
    });
  }
  ~StartedGrpc() override { done_.WaitForNotification(); }
  void GiveUp() override { context_.TryCancel(); }
  Outcome Finish() override {
    done_.WaitForNotification();
    Outcome outcome = {status_.error_code(), status_.error_message(), ""};
    std::vector<grpc::Slice> slices;
    if (response_.Valid()) static_cast<void>(response_.Dump(&slices));
    for (const grpc::Slice& slice : slices) {
      outcome.response.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    return outcome;
  }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, response_;
  grpc::Status status_;
  absl::Notification done_;
};

class StartedRing final : public Started {
 public:
  StartedRing(testing::RingClient* client, rails::ring::Kind kind, const std::string& request)
      : client_(client), id_(client->Send(kind, request)) {}
  void GiveUp() override { client_->Write(rails::ring::Kind::kGiveUp, id_, ""); }
  Outcome Finish() override {
    const rails::v1::RingAnswer answer = client_->AnswerTo(id_);
    return {answer.code(), answer.message(), answer.response()};
  }

 private:
  testing::RingClient* const client_;
  const uint64_t id_;
};

enum class Carrier { kGrpc, kRing };

class CallsTest : public ServicesTest, public ::testing::WithParamInterface<Carrier> {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    if (GetParam() != Carrier::kRing) return;
    RingServerOptions options;
    options.max_message_bytes = 1 << 20;
    auto rings = RingServer::Start(options, context_);
    ASSERT_TRUE(rings.ok()) << rings.status();
    rings_ = *std::move(rings);
    auto ring = rings_->Open(SessionId(4), [](const std::string& why) { ADD_FAILURE() << why; });
    ASSERT_TRUE(ring.ok()) << ring.status();
    client_ = std::make_unique<testing::RingClient>(*std::move(ring));
  }
  void TearDown() override {
    if (rings_ != nullptr) rings_->Close(SessionId(4));
  }

  template <typename Kind>
  std::unique_ptr<Started> Start(const Kind& kind, const typename Kind::Request& request) {
    const std::string bytes = request.SerializeAsString();
    if (GetParam() == Carrier::kGrpc) return std::make_unique<StartedGrpc>(channel_, token_, kind.method, bytes);
    const std::map<absl::string_view, rails::ring::Kind> kinds = {
        {kSubmitAllToAll.method, rails::ring::Kind::kSubmit},
        {kWaitJob.method, rails::ring::Kind::kWaitJob},
        {kCancelJob.method, rails::ring::Kind::kCancelJob},
        {kJoinGroup.method, rails::ring::Kind::kJoinGroup},
        {kLeaveGroup.method, rails::ring::Kind::kLeaveGroup},
        {kRemoveSegment.method, rails::ring::Kind::kRemoveSegment},
        {kPrepareAllToAll.method, rails::ring::Kind::kPrepare},
        {kSubmitPrepared.method, rails::ring::Kind::kSubmitPrepared},
        {kReleasePrepared.method, rails::ring::Kind::kReleasePrepared}};
    return std::make_unique<StartedRing>(client_.get(), kinds.at(kind.method), bytes);
  }
  template <typename Kind>
  Outcome Run(const Kind& kind, const typename Kind::Request& request) {
    return Start(kind, request)->Finish();
  }
  // Until the daemon knows that a call was given up.
  void Settle() {
    if (GetParam() == Carrier::kGrpc) server_->Shutdown(absl::Seconds(5));
  }
  std::vector<std::string> Counted() const {
    std::vector<std::string> counted;
    const CallCounters& counters = GetParam() == Carrier::kGrpc ? *context_->calls : *context_->ring_calls;
    counters.ForEach([&](const std::string& method, const std::string& code, uint64_t count) {
      counted.push_back(absl::StrCat(method, " ", code, " ", count));
    });
    return counted;
  }

  rails::v1::JoinGroupRequest JoinOfRank1() const {
    rails::v1::JoinGroupRequest request;
    request.set_name("moe");
    request.set_world_size(2);
    request.set_rank(1);
    return request;
  }
  rails::v1::WaitJobRequest Wait(uint64_t seq) {
    rails::v1::WaitJobRequest request;
    *request.mutable_job() = Job(seq);
    request.set_timeout_milliseconds(60'000);
    return request;
  }

  std::unique_ptr<RingServer> rings_;
  std::unique_ptr<testing::RingClient> client_;
};

TEST_P(CallsTest, SubmitPassesOnWhatTheAgentSays) {
  rails::v1::SubmitAllToAllRequest request;
  *request.mutable_job() = Job(1);
  ASSERT_EQ(Run(kSubmitAllToAll, request).code, 0);
  EXPECT_EQ(agent_.submissions()[0].session, SessionId(4));
  const auto expect = [&](const absl::Status& expected) {
    const Outcome outcome = Run(kSubmitAllToAll, request);
    EXPECT_EQ(outcome.code, static_cast<int>(expected.code()));
    EXPECT_EQ(outcome.message, expected.message());
  };
  agent_.submit_status = absl::AlreadyExistsError("job.seq: 1 was taken by other content");
  expect(agent_.submit_status);
  agent_.full_status = absl::ResourceExhaustedError("limits.max_waiting_calls");
  expect(agent_.full_status);
  request.clear_job();
  expect(absl::InvalidArgumentError("job: missing"));
  EXPECT_THAT(Counted(),
              ::testing::ElementsAre("JobService/SubmitAllToAll ok 1", "JobService/SubmitAllToAll invalid_argument 1",
                                     "JobService/SubmitAllToAll already_exists 1",
                                     "JobService/SubmitAllToAll resource_exhausted 1"));
}

TEST_P(CallsTest, SubmissionsArriveWithEveryRange) {
  rails::v1::SubmitAllToAllRequest request;
  *request.mutable_job() = Job(1);
  auto* flow = request.add_sends();
  flow->add_segment_ids(7);
  for (uint64_t i = 0; i < 70'000; ++i) {
    flow->add_offsets_bytes((uint64_t{1} << 40) + 512 * i);
    flow->add_lengths_bytes(i);
  }
  request.set_capacities(true);
  request.set_vote(12);
  request.set_urgent(true);
  ASSERT_GT(request.ByteSizeLong(), rails::ring::kMaxPayloadBytes);
  ASSERT_EQ(Run(kSubmitAllToAll, request).code, 0);
  const std::vector<Submission> submissions = agent_.submissions();
  EXPECT_TRUE(submissions[0].capacities);
  EXPECT_EQ(submissions[0].vote, 12u);
  EXPECT_TRUE(submissions[0].urgent);
  ASSERT_EQ(submissions[0].sends[0].ranges.size(), 70'000u);
  for (uint64_t i = 0; i < 70'000; ++i) {
    ASSERT_EQ(submissions[0].sends[0].ranges[i].offset_bytes, (uint64_t{1} << 40) + 512 * i);
    ASSERT_EQ(submissions[0].sends[0].ranges[i].length_bytes, i);
  }
}

TEST_P(CallsTest, PreparedExchangesReachTheAgentWhole) {
  rails::v1::PrepareAllToAllRequest layout;
  *layout.mutable_epoch() = Job(1).epoch();
  layout.set_rank(3);
  layout.set_prepared_id(9);
  const auto add = [](rails::v1::FlowRanges* flow, uint32_t peer, uint64_t offset) {
    flow->set_peer_rank(peer);
    flow->add_segment_ids(7);
    flow->add_offsets_bytes(offset);
    flow->add_lengths_bytes(10);
  };
  add(layout.add_sends(), 1, 100);
  add(layout.add_receives(), 2, 200);
  add(layout.add_sends(), 3, 300);
  add(layout.add_receives(), 3, 400);
  ASSERT_EQ(Run(kPrepareAllToAll, layout).code, 0);
  const Submission kept = agent_.layouts().at(0);
  EXPECT_EQ(kept.session, SessionId(4));
  EXPECT_EQ(kept.rank, Rank(3));
  EXPECT_EQ(kept.prepared, PreparedId(9));
  EXPECT_EQ(kept.job.epoch.counter, layout.epoch().counter());
  EXPECT_EQ(kept.sends.at(0).ranges.at(0), (Range{SegmentId(7), 100, 10}));
  EXPECT_EQ(kept.receives.at(0).peer, Rank(2));
  EXPECT_EQ(kept.sends.at(1).peer, Rank(3)) << "the rank itself";
  EXPECT_EQ(kept.receives.at(1).ranges.at(0).offset_bytes, 400u);

  rails::v1::SubmitPreparedRequest submission;
  *submission.mutable_job() = Job(2);
  submission.set_tag(5);
  submission.set_prepared_id(9);
  submission.add_lengths_bytes(4);
  submission.add_lengths_bytes(0);
  submission.set_timeout_milliseconds(1500);
  submission.set_capacities(true);
  submission.set_vote(12);
  submission.set_urgent(true);
  ASSERT_EQ(Run(kSubmitPrepared, submission).code, 0);
  const Submission submitted = agent_.submissions().at(0);
  EXPECT_EQ(submitted.session, SessionId(4));
  EXPECT_EQ(submitted.job.seq, JobSeq(2));
  EXPECT_EQ(submitted.tag, 5u);
  EXPECT_EQ(submitted.prepared, PreparedId(9));
  EXPECT_EQ(submitted.timeout, absl::Milliseconds(1500));
  EXPECT_TRUE(submitted.capacities);
  EXPECT_EQ(submitted.vote, 12u);
  EXPECT_TRUE(submitted.urgent);
  EXPECT_THAT(agent_.lengths().at(0), ::testing::ElementsAre(4, 0));

  rails::v1::ReleasePreparedRequest release;
  release.set_prepared_id(9);
  ASSERT_EQ(Run(kReleasePrepared, release).code, 0);
  EXPECT_THAT(agent_.released(), ::testing::ElementsAre(std::pair(SessionId(4), PreparedId(9))));
  EXPECT_THAT(Counted(), ::testing::ElementsAre("JobService/PrepareAllToAll ok 1", "JobService/ReleasePrepared ok 1",
                                                "JobService/SubmitPrepared ok 1"));
}

TEST_P(CallsTest, RefusalsOfPreparedExchangesAreTheAgents) {
  rails::v1::PrepareAllToAllRequest layout;
  EXPECT_THAT(Run(kPrepareAllToAll, layout).message, HasSubstr("epoch.boot_id"));
  *layout.mutable_epoch() = Job(1).epoch();
  EXPECT_THAT(Run(kPrepareAllToAll, layout).message, HasSubstr("prepared_id: 0"));
  layout.set_prepared_id(1);
  for (uint32_t i = 0; i <= context_->limits.max_world_size; ++i) layout.add_sends()->set_peer_rank(i + 1);
  EXPECT_EQ(Run(kPrepareAllToAll, layout).code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(context_->refused->Read(Limit::kWorldSize), 1u);
  layout.clear_sends();
  EXPECT_TRUE(agent_.layouts().empty());

  rails::v1::SubmitPreparedRequest submission;
  EXPECT_EQ(Run(kSubmitPrepared, submission).message, "job: missing");
  *submission.mutable_job() = Job(1);
  EXPECT_THAT(Run(kSubmitPrepared, submission).message, HasSubstr("prepared_id: 0"));
  submission.set_prepared_id(2);
  agent_.submit_status = absl::NotFoundError("prepared_id: 2");
  for (const Outcome& outcome : {Run(kSubmitPrepared, submission), Run(kPrepareAllToAll, layout),
                                 Run(kReleasePrepared, rails::v1::ReleasePreparedRequest())}) {
    EXPECT_EQ(outcome.code, grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(outcome.message, "prepared_id: 2");
  }
  agent_.full_status = absl::ResourceExhaustedError("limits.max_waiting_calls");
  EXPECT_EQ(Run(kSubmitPrepared, submission).code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Run(kPrepareAllToAll, layout).code, grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_P(CallsTest, MessagesOverTheLimitAreRefused) {
  rails::v1::SubmitAllToAllRequest request;
  *request.mutable_job() = Job(1);
  auto* flow = request.add_sends();
  for (int i = 0; i < 200'000; ++i) {
    flow->add_offsets_bytes(uint64_t{1} << 60);
    flow->add_lengths_bytes(1);
  }
  EXPECT_EQ(Run(kSubmitAllToAll, request).code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(agent_.submissions().empty());
  if (GetParam() == Carrier::kRing) {
    EXPECT_EQ(Run(kWaitJob, {}).message, "job: missing") << "the next call works";
  }
}

TEST_P(CallsTest, WaitAnswersWhenTheJobIsTerminal) {
  const auto wait = Start(kWaitJob, Wait(5));
  ASSERT_TRUE(testing::Until([&] { return agent_.waits.size() == 1; }));
  // One wait slice has passed: the service asks the agent again.
  FakeAgent::PendingWait first = agent_.waits.Take();
  EXPECT_LE(first.timeout, absl::Seconds(20));
  std::move(first.done)(Report(5, JobState::kRunning));
  ASSERT_TRUE(testing::Until([&] { return agent_.waits.size() == 1; }));
  std::move(agent_.waits.Take().done)(Report(5, JobState::kDone));
  const Outcome outcome = wait->Finish();
  ASSERT_EQ(outcome.code, 0);
  rails::v1::WaitJobResponse response;
  ASSERT_TRUE(response.ParseFromString(outcome.response));
  EXPECT_EQ(response.report().state(), rails::v1::JOB_STATE_DONE);
  EXPECT_EQ(response.report().job().seq(), 5u);
  EXPECT_EQ(agent_.waits.size(), 0u);
}

TEST_P(CallsTest, AWaitWithoutTimeAnswersWithTheStateOfThatMoment) {
  rails::v1::WaitJobRequest request = Wait(5);
  request.clear_timeout_milliseconds();
  const auto wait = Start(kWaitJob, request);
  ASSERT_TRUE(testing::Until([&] { return agent_.waits.size() == 1; }));
  std::move(agent_.waits.Take().done)(Report(5, JobState::kRunning));
  rails::v1::WaitJobResponse response;
  ASSERT_TRUE(response.ParseFromString(wait->Finish().response));
  EXPECT_EQ(response.report().state(), rails::v1::JOB_STATE_RUNNING);
}

TEST_P(CallsTest, AWaitThatItsClientGaveUpIsForgotten) {
  const auto wait = Start(kWaitJob, Wait(5));
  ASSERT_TRUE(testing::Until([&] { return agent_.waits.size() == 1; }));
  wait->GiveUp();
  EXPECT_EQ(wait->Finish().code, grpc::StatusCode::CANCELLED);
  // After the server has seen the cancellation, a late answer of the agent makes no further wait.
  auto late = std::make_shared<FakeAgent::PendingWait>(agent_.waits.Take());
  Settle();
  std::move(late->done)(Report(5, JobState::kRunning));
  EXPECT_EQ(agent_.waits.size(), 0u);
  EXPECT_THAT(Counted(), ::testing::ElementsAre("JobService/WaitJob cancelled 1"));
}

TEST_P(CallsTest, WhatIsOverALimitOfJoinsIsCounted) {
  const auto join = [&](const std::string& name, const std::string& key, uint32_t world_size) {
    rails::v1::JoinGroupRequest request;
    request.set_name(name);
    request.set_join_key(key);
    request.set_world_size(world_size);
    EXPECT_EQ(Run(kJoinGroup, request).code, grpc::StatusCode::INVALID_ARGUMENT);
  };
  join(std::string(257, 'n'), "", 2);
  join("n", std::string(4097, 'k'), 2);
  join("n", "", 5000);
  for (Limit limit : {Limit::kName, Limit::kJoinKey, Limit::kWorldSize}) EXPECT_EQ(context_->refused->Read(limit), 1u);
}

TEST_P(CallsTest, JoinAnswersWithTheGroup) {
  const auto join = Start(kJoinGroup, JoinOfRank1());
  ASSERT_TRUE(testing::Until([&] { return agent_.joins.size() == 1; }));
  std::move(agent_.joins.Take().done)(View());
  rails::v1::JoinGroupResponse response;
  const Outcome outcome = join->Finish();
  ASSERT_EQ(outcome.code, 0);
  ASSERT_TRUE(response.ParseFromString(outcome.response));
  EXPECT_EQ(response.epoch().counter(), 2u);
  EXPECT_EQ(response.members_size(), 2);
  EXPECT_TRUE(agent_.leaves().empty());
}

TEST_P(CallsTest, AJoinThatItsClientGaveUpIsLeft) {
  const auto join = Start(kJoinGroup, JoinOfRank1());
  ASSERT_TRUE(testing::Until([&] { return agent_.joins.size() == 1; }));
  join->GiveUp();
  EXPECT_EQ(join->Finish().code, grpc::StatusCode::CANCELLED);
  auto late = std::make_shared<FakeAgent::PendingJoin>(agent_.joins.Take());
  Settle();
  std::move(late->done)(View());
  ASSERT_EQ(agent_.leaves().size(), 1u);
  EXPECT_EQ(agent_.leaves()[0].second, Rank(1));
}

TEST_P(CallsTest, LeaveCancelAndRemoveAnswerWithTheAgentsWord) {
  rails::v1::LeaveGroupRequest leave;
  EXPECT_THAT(Run(kLeaveGroup, leave).message, HasSubstr("epoch.boot_id"));
  *leave.mutable_epoch() = Job(1).epoch();
  leave.set_rank(3);
  EXPECT_EQ(Run(kLeaveGroup, leave).code, 0);
  EXPECT_EQ(agent_.leaves().at(0).second, Rank(3));
  rails::v1::CancelJobRequest cancel;
  EXPECT_EQ(Run(kCancelJob, cancel).message, "job: missing");
  *cancel.mutable_job() = Job(1);
  EXPECT_EQ(Run(kCancelJob, cancel).code, 0);
  rails::v1::RemoveSegmentRequest remove;
  remove.set_segment_id(9);
  const Outcome outcome = Run(kRemoveSegment, remove);
  EXPECT_EQ(outcome.code, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(outcome.message, "segment_id: unknown");
}

TEST_P(CallsTest, AClientSeesTheReportsOfItsOwnJobsOnly) {
  grpc::ClientContext context;
  Authenticate(&context);
  const bool ring = GetParam() == Carrier::kRing;
  auto watch = ring ? nullptr : jobs_->WatchJobs(&context, {});
  if (!ring) watch->WaitForInitialMetadata();
  feed_.OnJobFinished(SessionId(5), Report(77, JobState::kDone));
  for (uint64_t seq = 1; seq <= 10; ++seq) {
    JobReport report = Report(seq, JobState::kDone);
    report.received_by_rank = {0, seq};
    report.highest_vote = 100 + seq;
    feed_.OnJobFinished(SessionId(4), report);
  }
  for (uint64_t seq = 1; seq <= 10; ++seq) {
    rails::v1::WatchJobsResponse response;
    if (ring) {
      *response.mutable_report() = client_->Report().value();
    } else {
      ASSERT_TRUE(watch->Read(&response));
    }
    EXPECT_EQ(response.report().job().seq(), seq);
    EXPECT_EQ(response.report().job().rank(), 3u);
    EXPECT_THAT(response.report().received_by_rank(), ::testing::ElementsAre(0, seq));
    EXPECT_EQ(response.report().highest_vote(), 100 + seq);
    EXPECT_EQ(response.missed(), 0u);
  }
  if (ring) {
    EXPECT_EQ(client_->answer_control().missed.load(), 0u);
    return;
  }
  context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

INSTANTIATE_TEST_SUITE_P(Both, CallsTest, ::testing::Values(Carrier::kGrpc, Carrier::kRing),
                         [](const auto& info) { return info.param == Carrier::kGrpc ? "grpc" : "ring"; });

}  // namespace
}  // namespace railsd
