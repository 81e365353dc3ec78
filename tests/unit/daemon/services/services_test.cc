#include "daemon/services/services.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "agent/base/unique_fd.h"
#include "daemon/rpc/rpc_server.h"
#include "tests/unit/daemon/services/services_fixture.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

TEST_F(ServicesTest, EveryMethodIsCountedOnceACall) {
  grpc::GenericStub stub(channel_);
  std::map<std::string, uint64_t> called, counted;
  for (const std::string& name : services_) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string method = absl::StrCat(service->name(), "/", service->method(i)->name());
      grpc::ClientContext context;
      const grpc::Slice nothing;
      const grpc::ByteBuffer request(&nothing, 1);
      grpc::ByteBuffer response;
      absl::Notification done;
      stub.UnaryCall(&context, absl::StrCat("/rails.v1.", method), {}, &request, &response,
                     [&done](const grpc::Status&) { done.Notify(); });
      done.WaitForNotification();
      called[method] = 1;
    }
  }
  context_->calls->ForEach(
      [&](const std::string& method, const std::string&, uint64_t count) { counted[method] += count; });
  EXPECT_EQ(counted, called);
}

TEST_F(ServicesTest, CallsAreCountedByTheirCode) {
  agent_.drain_status = absl::DeadlineExceededError("3 jobs");
  grpc::ClientContext drain_context, watch_context;
  rails::v1::DrainNodeResponse drained;
  operators_->DrainNode(&drain_context, {}, &drained);
  Authenticate(&watch_context);
  const auto watch = jobs_->WatchJobs(&watch_context, {});
  watch->WaitForInitialMetadata();
  watch_context.TryCancel();
  server_->Shutdown(absl::Seconds(5));
  std::vector<std::string> counted;
  context_->calls->ForEach([&](const std::string& method, const std::string& code, uint64_t count) {
    counted.push_back(absl::StrCat(method, " ", code, " ", count));
  });
  EXPECT_THAT(counted, ::testing::ElementsAre("JobService/WatchJobs cancelled 1",
                                              "OperatorService/DrainNode deadline_exceeded 1"));
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
  EXPECT_EQ(agent_.joins.size() + agent_.waits.size() + agent_.submissions().size(), 0u);
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

// A tenant's own socket treats a token of another tenant's session like an invented one.
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
  readiness_.AddListener([&ready](bool now, bool) { ready = now; });
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

TEST(RpcServerTest, ASocketGivesWayAndAFileDoesNot) {
  const testing::TemporaryFolder folder;
  const UniqueFd left(socket(AF_UNIX, SOCK_STREAM, 0));
  const std::string path = folder.path() + "/left.sock";
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(name.sun_path));
  memcpy(name.sun_path, path.data(), path.size());
  ASSERT_EQ(bind(left.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_TRUE(RpcServer::Start({absl::StrCat("unix:", path)}, {}).ok());
  folder.Write("file", "");
  const std::string file = absl::StrCat("unix:", folder.path(), "/file");
  EXPECT_THAT(std::string(RpcServer::Start({file}, {}).status().message()),
              HasSubstr(absl::StrCat("cannot listen on ", file)));
}

}  // namespace
}  // namespace railsd
