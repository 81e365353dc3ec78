#include "daemon/service/services.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/lifecycle/reloader.h"
#include "daemon/service/rpc_server.h"
#include "rails/v1/group.grpc.pb.h"
#include "rails/v1/job.grpc.pb.h"
#include "rails/v1/operator.grpc.pb.h"
#include "rails/v1/session.grpc.pb.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/fake_agent.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

class ServicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string address = "unix:" + directory_ + "/client.sock";
    context_->agent = &agent_;
    context_->sessions = &registry_;
    context_->feed = &feed_;
    context_->node = "n0";
    context_->boot = BootId(77);
    context_->version = "9.9";
    context_->log = NullLogger();
    context_->readiness = &readiness_;
    context_->reloader = &reloader_;
    readiness_.SetStarted();
    context_->peers = [] {
      PeerView view;
      view.node = "n9";
      view.why = "not reached yet";
      return std::vector<PeerView>{view};
    };
    RpcServerOptions options{address, 1 << 20};
    options.gate.counters = counters_;
    auto server = RpcServer::Start(std::move(options), {MakeSessionService(context_), MakeGroupService(context_),
                                                        MakeJobService(context_), MakeOperatorService(context_)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    sessions_ = rails::v1::SessionService::NewStub(channel_);
    groups_ = rails::v1::GroupService::NewStub(channel_);
    jobs_ = rails::v1::JobService::NewStub(channel_);
    operators_ = rails::v1::OperatorService::NewStub(channel_);
    token_ = registry_.Add({SessionId(4), {12, 34, 56, "t"}, "test"});
  }

  void Authenticate(grpc::ClientContext* context) { context->AddMetadata("rails-session-token", token_); }

  rails::v1::JobId Job(uint64_t seq) {
    rails::v1::JobId job;
    job.mutable_epoch()->set_boot_id(1);
    job.mutable_epoch()->set_counter(2);
    job.set_seq(seq);
    job.set_rank(3);
    return job;
  }
  JobReport Report(uint64_t seq, JobState state) {
    JobReport report;
    report.job = {{BootId(1), 2}, JobSeq(seq)};
    report.rank = Rank(3);
    report.state = state;
    return report;
  }
  GroupView View() {
    GroupView view;
    view.epoch = {BootId(1), 2};
    view.members = {"n0", "n1"};
    return view;
  }

  const testing::TemporaryFolder folder_;
  const std::string directory_ = folder_.path();
  std::string token_;
  FakeAgent agent_;
  SessionRegistry registry_;
  JobFeed feed_{nullptr};
  Readiness readiness_;
  absl::StatusOr<Config> file_ = absl::NotFoundError("no file");
  Reloader reloader_{Config(), [this] { return file_; }, [](const Config&, const Config&) {}, NullLogger()};
  std::shared_ptr<ServiceContext> context_ = std::make_shared<ServiceContext>();
  const std::shared_ptr<ConnectionCounters> counters_ = std::make_shared<ConnectionCounters>();
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<rails::v1::SessionService::Stub> sessions_;
  std::unique_ptr<rails::v1::GroupService::Stub> groups_;
  std::unique_ptr<rails::v1::JobService::Stub> jobs_;
  std::unique_ptr<rails::v1::OperatorService::Stub> operators_;
};

// gRPC is asked once a second how many have begun; what is taken is known at once.
TEST_F(ServicesTest, NoMoreCallsAreTakenThanHaveBegun) {
  for (int call = 0; call < 5; ++call) {
    grpc::ClientContext context;
    Authenticate(&context);
    rails::v1::GetSessionResponse session;
    EXPECT_TRUE(sessions_->GetSession(&context, {}, &session).ok());
    const uint64_t taken = counters_->calls_taken.load(std::memory_order_acquire);
    EXPECT_LE(taken, counters_->calls_begun.load());
  }
  EXPECT_TRUE(testing::Until([&] { return counters_->calls_taken == 5 && counters_->calls_begun == 5; }));
}

TEST_F(ServicesTest, CallsWithoutATokenAreUnauthenticated) {
  grpc::ClientContext a, b, c, d, e;
  rails::v1::GetSessionResponse session;
  EXPECT_EQ(sessions_->GetSession(&a, {}, &session).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  rails::v1::JoinGroupResponse join;
  b.AddMetadata("rails-session-token", std::string(64, '0'));
  EXPECT_EQ(groups_->JoinGroup(&b, {}, &join).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  rails::v1::SubmitAllToAllResponse submit;
  EXPECT_EQ(jobs_->SubmitAllToAll(&c, {}, &submit).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  rails::v1::WaitJobResponse wait;
  EXPECT_EQ(jobs_->WaitJob(&d, {}, &wait).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  auto watch = jobs_->WatchJobs(&e, {});
  rails::v1::WatchJobsResponse report;
  EXPECT_FALSE(watch->Read(&report));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(agent_.pending_joins() + agent_.pending_waits() + agent_.submissions().size(), 0u);
}

TEST_F(ServicesTest, ASessionHasFewWatches) {
  std::deque<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<rails::v1::WatchJobsResponse>>> watches;
  for (size_t i = 0; i < feed_.max_watches() + 1; ++i) {
    Authenticate(&contexts.emplace_back());
    watches.push_back(jobs_->WatchJobs(&contexts.back(), {}));
    watches.back()->WaitForInitialMetadata();
  }
  ASSERT_EQ(feed_.Depths().watches, feed_.max_watches());
  const grpc::Status refused = watches.back()->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("limits.max_watches_per_session"));
  EXPECT_EQ(context_->refused->Read(Limit::kWatchesPerSession), 1u);
  for (grpc::ClientContext& context : contexts) context.TryCancel();
}

// On a tenant's own socket a token of another tenant's session is worth what a made-up one is.
TEST_F(ServicesTest, ATokenIsWorthNothingOnAnotherTenantsSocket) {
  const auto tell = [this](const std::string& tenant) {
    auto own = std::make_shared<ServiceContext>(*context_);
    own->tenant = tenant;
    const std::string address = absl::StrCat("unix:", directory_, "/", tenant, ".sock");
    auto server = RpcServer::Start({address, 1 << 20}, {MakeSessionService(own), MakeJobService(own)});
    EXPECT_TRUE(server.ok()) << server.status();
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    grpc::ClientContext a, b, c;
    Authenticate(&a);
    Authenticate(&b);
    c.AddMetadata("rails-session-token", std::string(64, '0'));
    rails::v1::GetSessionResponse session;
    rails::v1::WatchJobsResponse report;
    const grpc::Status status = rails::v1::SessionService::NewStub(channel)->GetSession(&a, {}, &session);
    const grpc::Status unknown = rails::v1::SessionService::NewStub(channel)->GetSession(&c, {}, &session);
    if (!status.ok()) {
      EXPECT_EQ(status.error_message(), unknown.error_message());
      const auto watch = rails::v1::JobService::NewStub(channel)->WatchJobs(&b, {});
      EXPECT_FALSE(watch->Read(&report));
      EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
    }
    (*server)->Shutdown(absl::ZeroDuration());
    return status.error_code();
  };
  EXPECT_EQ(tell("t"), grpc::StatusCode::OK);
  EXPECT_EQ(tell("u"), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ServicesTest, TellsASessionWhoItIs) {
  AgentSnapshot snapshot;
  snapshot.sessions.push_back({SessionId(4), {}, 2, 8192, 1});
  snapshot.sessions.push_back({SessionId(5), {}, 9, 9, 9});
  agent_.SetSnapshot(snapshot);
  grpc::ClientContext context;
  Authenticate(&context);
  rails::v1::GetSessionResponse response;
  ASSERT_TRUE(sessions_->GetSession(&context, {}, &response).ok());
  EXPECT_EQ(response.session_id(), 4u);
  EXPECT_EQ(response.pid(), 12);
  EXPECT_EQ(response.uid(), 34u);
  EXPECT_EQ(response.segments(), 2u);
  EXPECT_EQ(response.segment_bytes(), 8192u);
  EXPECT_EQ(response.boot_id(), 77u);
}

TEST_F(ServicesTest, DrainingTheNodeTellsTheAgentAndTheProbes) {
  bool ready = false;
  readiness_.AddListener([&ready](bool now, bool, const std::string&) { ready = now; });
  const auto drain = [this](double seconds) {
    grpc::ClientContext context;
    rails::v1::DrainNodeRequest request;
    request.set_timeout_seconds(seconds);
    rails::v1::DrainNodeResponse response;
    return operators_->DrainNode(&context, request, &response);
  };
  for (const double bad : {-1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(drain(bad).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad;
  }
  EXPECT_TRUE(ready);
  EXPECT_TRUE(drain(2.5).ok());
  EXPECT_FALSE(ready);
  EXPECT_TRUE(drain(0).ok());
  EXPECT_THAT(agent_.drain_limits, ::testing::ElementsAre(absl::Seconds(2.5), TimeoutsConfig().drain));
  agent_.drain_status = absl::DeadlineExceededError("3 jobs");
  EXPECT_EQ(drain(1).error_message(), "3 jobs");

  grpc::ClientContext context;
  rails::v1::UndrainNodeResponse response;
  EXPECT_TRUE(operators_->UndrainNode(&context, {}, &response).ok());
  EXPECT_TRUE(ready);
  EXPECT_EQ(agent_.undrains, 1);
  readiness_.SetStopping();
  EXPECT_EQ(drain(1).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(agent_.drain_limits.size(), 3u);
}

TEST_F(ServicesTest, ReloadTellsWhatItDidOrWhyItDidNothing) {
  const auto reload = [this](rails::v1::ReloadResponse* response) {
    grpc::ClientContext context;
    return operators_->Reload(&context, {}, response);
  };
  rails::v1::ReloadResponse response;
  EXPECT_EQ(reload(&response).error_message(), "no file");
  file_ = Config();
  file_->limits.max_groups = 3;
  file_->node = "other";
  ASSERT_TRUE(reload(&response).ok());
  ASSERT_EQ(response.applied_size(), 1);
  EXPECT_EQ(response.applied(0).key(), "limits.max_groups");
  EXPECT_EQ(response.applied(0).before(), "64");
  EXPECT_EQ(response.applied(0).after(), "3");
  ASSERT_EQ(response.needs_restart_size(), 1);
  EXPECT_EQ(response.needs_restart(0).key(), "node");
  EXPECT_EQ(response.config_hash(), reloader_.config_hash());
}

TEST_F(ServicesTest, SubmitPassesOnWhatTheAgentSays) {
  rails::v1::SubmitAllToAllRequest request;
  *request.mutable_job() = Job(1);
  rails::v1::SubmitAllToAllResponse response;
  {
    grpc::ClientContext context;
    Authenticate(&context);
    ASSERT_TRUE(jobs_->SubmitAllToAll(&context, request, &response).ok());
  }
  EXPECT_EQ(agent_.submissions()[0].session, SessionId(4));
  agent_.submit_status = absl::AlreadyExistsError("job.seq: 1 was taken by other content");
  grpc::ClientContext context;
  Authenticate(&context);
  const grpc::Status status = jobs_->SubmitAllToAll(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(status.error_message(), "job.seq: 1 was taken by other content");
}

TEST_F(ServicesTest, MessagesOverTheLimitAreRefused) {
  rails::v1::SubmitAllToAllRequest request;
  *request.mutable_job() = Job(1);
  auto* flow = request.add_sends();
  for (int i = 0; i < 200'000; ++i) {
    flow->add_offsets_bytes(uint64_t{1} << 60);
    flow->add_lengths_bytes(1);
  }
  grpc::ClientContext context;
  Authenticate(&context);
  rails::v1::SubmitAllToAllResponse response;
  EXPECT_EQ(jobs_->SubmitAllToAll(&context, request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(agent_.submissions().empty());
}

TEST_F(ServicesTest, WaitAnswersWhenTheJobIsTerminal) {
  grpc::ClientContext context;
  Authenticate(&context);
  rails::v1::WaitJobRequest request;
  *request.mutable_job() = Job(5);
  request.set_timeout_milliseconds(60'000);
  rails::v1::WaitJobResponse response;
  grpc::Status status;
  std::thread caller([&] { status = jobs_->WaitJob(&context, request, &response); });
  ASSERT_TRUE(testing::Until([&] { return agent_.pending_waits() == 1; }));
  // The agent's own slice has passed: it is asked again.
  FakeAgent::PendingWait first = agent_.TakeWait();
  EXPECT_LE(first.timeout, absl::Seconds(20));
  std::move(first.done)(Report(5, JobState::kRunning));
  ASSERT_TRUE(testing::Until([&] { return agent_.pending_waits() == 1; }));
  std::move(agent_.TakeWait().done)(Report(5, JobState::kDone));
  caller.join();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(response.report().state(), rails::v1::JOB_STATE_DONE);
  EXPECT_EQ(agent_.pending_waits(), 0u);
}

TEST_F(ServicesTest, ACancelledWaitIsForgotten) {
  grpc::ClientContext context;
  Authenticate(&context);
  rails::v1::WaitJobRequest request;
  *request.mutable_job() = Job(5);
  request.set_timeout_milliseconds(60'000);
  rails::v1::WaitJobResponse response;
  grpc::Status status;
  std::thread caller([&] { status = jobs_->WaitJob(&context, request, &response); });
  ASSERT_TRUE(testing::Until([&] { return agent_.pending_waits() == 1; }));
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  // The server hears of it in its own time; then the late answer of the agent asks for nothing more.
  auto late = std::make_shared<FakeAgent::PendingWait>(agent_.TakeWait());
  server_->Shutdown(absl::Seconds(5));
  std::move(late->done)(Report(5, JobState::kRunning));
  EXPECT_EQ(agent_.pending_waits(), 0u);
}

TEST_F(ServicesTest, WhatIsOverALimitOfJoinsIsCounted) {
  const auto join = [&](const std::string& name, const std::string& key, uint32_t world_size) {
    rails::v1::JoinGroupRequest request;
    request.set_name(name);
    request.set_join_key(key);
    request.set_world_size(world_size);
    grpc::ClientContext context;
    Authenticate(&context);
    rails::v1::JoinGroupResponse response;
    EXPECT_EQ(groups_->JoinGroup(&context, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  };
  join(std::string(257, 'n'), "", 2);
  join("n", std::string(4097, 'k'), 2);
  join("n", "", 5000);
  for (Limit limit : {Limit::kName, Limit::kJoinKey, Limit::kWorldSize}) EXPECT_EQ(context_->refused->Read(limit), 1u);
}

TEST_F(ServicesTest, JoinAnswersWithTheGroup) {
  rails::v1::JoinGroupRequest request;
  request.set_name("moe");
  request.set_world_size(2);
  request.set_rank(1);
  grpc::ClientContext context;
  Authenticate(&context);
  rails::v1::JoinGroupResponse response;
  grpc::Status status;
  std::thread caller([&] { status = groups_->JoinGroup(&context, request, &response); });
  ASSERT_TRUE(testing::Until([&] { return agent_.pending_joins() == 1; }));
  std::move(agent_.TakeJoin().done)(View());
  caller.join();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(response.epoch().counter(), 2u);
  EXPECT_EQ(response.members_size(), 2);
  EXPECT_TRUE(agent_.leaves().empty());
}

TEST_F(ServicesTest, AJoinThatItsClientGaveUpIsLeft) {
  rails::v1::JoinGroupRequest request;
  request.set_name("moe");
  request.set_world_size(2);
  request.set_rank(1);
  grpc::ClientContext context;
  Authenticate(&context);
  rails::v1::JoinGroupResponse response;
  grpc::Status status;
  std::thread caller([&] { status = groups_->JoinGroup(&context, request, &response); });
  ASSERT_TRUE(testing::Until([&] { return agent_.pending_joins() == 1; }));
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  auto join = std::make_shared<FakeAgent::PendingJoin>(agent_.TakeJoin());
  server_->Shutdown(absl::Seconds(5));
  std::move(join->done)(View());
  ASSERT_EQ(agent_.leaves().size(), 1u);
  EXPECT_EQ(agent_.leaves()[0].second, Rank(1));
}

TEST_F(ServicesTest, AWatchSeesItsOwnJobsOnly) {
  grpc::ClientContext context;
  Authenticate(&context);
  auto watch = jobs_->WatchJobs(&context, {});
  watch->WaitForInitialMetadata();
  JobReport other = Report(1, JobState::kDone);
  other.rank = Rank(4);
  feed_.OnJobFinished(SessionId(5), other);
  for (uint64_t seq = 1; seq <= 10; ++seq) feed_.OnJobFinished(SessionId(4), Report(seq, JobState::kDone));
  for (uint64_t seq = 1; seq <= 10; ++seq) {
    rails::v1::WatchJobsResponse response;
    ASSERT_TRUE(watch->Read(&response));
    EXPECT_EQ(response.report().job().seq(), seq);
    EXPECT_EQ(response.report().job().rank(), 3u);
    EXPECT_EQ(response.missed(), 0u);
  }
  context.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServicesTest, OperatorsSeePeersThatWereNeverUp) {
  AgentSnapshot snapshot;
  PeerView known;
  known.node = "n1";
  known.up = true;
  snapshot.peers.push_back(known);
  snapshot.finished_jobs = {Report(2, JobState::kDone), Report(1, JobState::kFailed)};
  snapshot.rails.resize(1);
  snapshot.rails[0].name = "rail0";
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
  job.ranks.push_back({Rank(3), begun + absl::Seconds(1)});
  job.exchanges.push_back({PeerIndex(4), "n4", 4096, 0, {}, false});
  job.exchanges[0].times.planned = begun + absl::Seconds(2);
  job.exchanges[0].times.offer_received = begun;
  job.timeline.Reset(1);
  const uint32_t record = job.timeline.OnPosted(RailIndex(0), PeerIndex(4), Rank(3), 4096, begun + absl::Seconds(3));
  job.timeline.OnEnded(record, RailIndex(0), true, begun + absl::Seconds(5));
  agent_.explanation = job;
  ASSERT_TRUE(operators_->ExplainJob(&b, {}, &response).ok());
  EXPECT_EQ(response.report().job().seq(), 7u);
  EXPECT_EQ(response.ranks(0).submitted_seconds(), 1);
  EXPECT_EQ(response.ranks(0).ended_seconds(), 0);
  EXPECT_EQ(response.exchanges(0).planned_seconds(), 2);
  EXPECT_EQ(response.exchanges(0).offer_sent_seconds(), 0) << "not yet";
  EXPECT_GT(response.exchanges(0).offer_received_seconds(), 0) << "in the first moment";
  EXPECT_EQ(response.rails(0).planned_bytes(), 5000u);
  EXPECT_EQ(response.rails(0).busy_seconds(), 2);
  ASSERT_EQ(response.chunks_size(), 1);
  EXPECT_EQ(response.chunks(0).exchange(), 0u);
  EXPECT_EQ(response.chunks(0).posted_seconds(), 3);
  EXPECT_EQ(response.chunks(0).ended_seconds(), 5);
}

TEST(RpcServerTest, AnAddressInUseIsSaid) {
  auto first = RpcServer::Start({"127.0.0.1:0", 1 << 20}, {});
  ASSERT_TRUE(first.ok());
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = RpcServer::Start({address, 1 << 20}, {});
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("cannot listen on ", address)));
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
  EXPECT_EQ(call("Loud"), "3 there is no log level 'Loud': it is one of trace, debug, info, warning, error, off");
  EXPECT_EQ(call("warn"), "debug");
  EXPECT_EQ(call("off"), "warning");
  EXPECT_EQ(call(""), "off");
}

}  // namespace
}  // namespace railsd
