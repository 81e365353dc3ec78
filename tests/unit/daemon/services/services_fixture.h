// The services of a daemon on a Unix socket, with a fake agent that the test controls.
#ifndef RAILSD_TESTS_UNIT_DAEMON_SERVICES_SERVICES_FIXTURE_H_
#define RAILSD_TESTS_UNIT_DAEMON_SERVICES_SERVICES_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/lifecycle/logging.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/lifecycle/reloader.h"
#include "daemon/rpc/rpc_server.h"
#include "daemon/services/services.h"
#include "rails/v1/group.grpc.pb.h"
#include "rails/v1/job.grpc.pb.h"
#include "rails/v1/operator.grpc.pb.h"
#include "rails/v1/session.grpc.pb.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/daemon/fake_agent.h"

namespace railsd {

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
    context_->calls = std::make_shared<CallCounters>();
    auto server = RpcServer::Start({address, 1 << 20}, {MakeSessionService(context_), MakeGroupService(context_),
                                                        MakeJobService(context_), MakeOperatorService(context_)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    sessions_ = rails::v1::SessionService::NewStub(channel_);
    groups_ = rails::v1::GroupService::NewStub(channel_);
    jobs_ = rails::v1::JobService::NewStub(channel_);
    operators_ = rails::v1::OperatorService::NewStub(channel_);
    token_ = registry_.Add({SessionId(4), {12, 34, 56, "t", "test"}});
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
  const std::vector<std::string> services_ = {"rails.v1.SessionService", "rails.v1.GroupService", "rails.v1.JobService",
                                              "rails.v1.OperatorService"};
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<rails::v1::SessionService::Stub> sessions_;
  std::unique_ptr<rails::v1::GroupService::Stub> groups_;
  std::unique_ptr<rails::v1::JobService::Stub> jobs_;
  std::unique_ptr<rails::v1::OperatorService::Stub> operators_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_SERVICES_SERVICES_FIXTURE_H_
