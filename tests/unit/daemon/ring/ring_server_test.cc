// Rings over the real descriptor server, with a fake agent.
#include "daemon/ring/ring_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/services/services.h"
#include "daemon/session/descriptor_server.h"
#include "rails/v1/group.pb.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/ring/ring_trainer.h"
#include "tests/unit/daemon/session/descriptor_client.h"

namespace railsd {
namespace {

using rails::ring::kDataBytes;
using rails::ring::Kind;
using rails::ring::kMaxPayloadBytes;
using rails::ring::kMore;
using testing::DescriptorClient;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OpenRequest;
using testing::OpenRingRequest;
using testing::RingClient;
using testing::Trainer;
using testing::Until;

constexpr uint32_t kMaxCalls = 100;
constexpr size_t kMaxMessage = 1 << 20;

class RingServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    context_->agent = &agent_;
    context_->sessions = &registry_;
    context_->feed = &feed_;
    context_->log = NullLogger();
    RingServerOptions options;
    options.max_message_bytes = kMaxMessage;
    options.max_memory_bytes = 2 * kMaxMessage;
    options.max_calls_per_session = kMaxCalls;
    auto rings = RingServer::Start(options, context_);
    ASSERT_TRUE(rings.ok()) << rings.status();
    rings_ = *std::move(rings);
    DescriptorServerOptions descriptors;
    descriptors.sockets = {{path_}};
    descriptors.node = "n0";
    descriptors.boot = BootId(77);
    descriptors.rings = rings_.get();
    descriptors.on_session_closed = [this](SessionId session) { feed_.RemoveSession(session); };
    descriptors.log = NullLogger();
    auto server = DescriptorServer::Start(descriptors, &agent_, &registry_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  static rails::v1::JobId Job(uint64_t seq) {
    rails::v1::JobId job;
    job.mutable_epoch()->set_boot_id(1);
    job.set_seq(seq);
    return job;
  }
  static std::string SubmitOf(uint64_t seq, size_t ranges = 0) {
    rails::v1::SubmitAllToAllRequest request;
    *request.mutable_job() = Job(seq);
    auto* const flow = request.add_sends();
    if (ranges > 0) flow->add_segment_ids(1);
    for (size_t i = 0; i < ranges; ++i) {
      flow->add_offsets_bytes(i);
      flow->add_lengths_bytes(uint64_t{1} << 40);
    }
    return request.SerializeAsString();
  }
  static std::string WaitOf(uint64_t seq) {
    rails::v1::WaitJobRequest request;
    *request.mutable_job() = Job(seq);
    request.set_timeout_milliseconds(600'000);
    return request.SerializeAsString();
  }
  static std::string JoinRequest() {
    rails::v1::JoinGroupRequest request;
    request.set_name("moe");
    request.set_world_size(2);
    return request.SerializeAsString();
  }
  static JobReport Report(uint64_t seq, std::string group = "moe") {
    JobReport report;
    report.job.seq = JobSeq(seq);
    report.state = JobState::kDone;
    report.group = std::move(group);
    return report;
  }
  // A report that takes much room.
  static JobReport LongReport(uint64_t seq) { return Report(seq, std::string(10'000, 'g')); }

  // Ends when the session has been closed, and tells why.
  std::string EndOf(Trainer& trainer) {
    EXPECT_TRUE(trainer.ring->Closed());
    EXPECT_TRUE(trainer.session.Closed());
    EXPECT_TRUE(Until([&] { return !agent_.close_reasons().empty(); }));
    return agent_.close_reasons().empty() ? "" : agent_.close_reasons().back();
  }
  // Mappings of rings in this process.
  static size_t Mappings() {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += absl::StrContains(line, "memfd:railsd-") ? 1 : 0;
    return count;
  }

  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/descriptors.sock";
  FakeAgent agent_;
  SessionRegistry registry_;
  JobFeed feed_{nullptr};
  std::shared_ptr<ServiceContext> context_ = std::make_shared<ServiceContext>();
  std::unique_ptr<RingServer> rings_;
  std::unique_ptr<DescriptorServer> server_;
};

TEST_F(RingServerTest, TheMemoriesAreSealed) {
  Trainer trainer(path_);
  const RingDescriptors& got = trainer.ring->descriptors();
  EXPECT_EQ(fcntl(got.requests.get(), F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_EQ(fcntl(got.answers.get(), F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
  const size_t length = rails::ring::kMemoryBytes;
  EXPECT_EQ(mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, got.answers.get(), 0), MAP_FAILED);
  void* const mapped = mmap(nullptr, length, PROT_READ, MAP_SHARED, got.answers.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_NE(mprotect(mapped, length, PROT_READ | PROT_WRITE), 0);
  munmap(mapped, length);
  EXPECT_LT(pwrite(got.answers.get(), "x", 1, 0), 0);
  EXPECT_NE(ftruncate(got.answers.get(), 0), 0);
  EXPECT_NE(ftruncate(got.requests.get(), 0), 0);
  EXPECT_NE(fallocate(got.answers.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_EQ(rings_->counters().open, 1u);
}

TEST_F(RingServerTest, ASessionOpensOneRingOfAKnownVersion) {
  DescriptorClient client(path_);
  EXPECT_THAT(client.Ask(OpenRingRequest()).message(), HasSubstr("no session"));
  Trainer trainer(path_);
  EXPECT_THAT(trainer.session.Ask(OpenRingRequest()).message(), HasSubstr("has a ring already"));
  client.Ask(OpenRequest());
  EXPECT_THAT(client.Ask(OpenRingRequest(2, 3)).message(), HasSubstr("versions 2 to 3 do not include 1"));
  EXPECT_THAT(client.Ask(OpenRingRequest(), {client.fd()}).message(), HasSubstr("carries 1 descriptors, wants none"));
  EXPECT_EQ(rings_->counters().open, 1u);
}

// More requests than the ring has room for arrive in their order, and each is answered once.
TEST_F(RingServerTest, RequestsAreTakenInTheirOrder) {
  Trainer trainer(path_);
  std::set<uint64_t> ids;
  constexpr uint64_t kJobs = 300;
  // Some go through a thread, some do not.
  const auto ranges = [](uint64_t seq) -> size_t { return seq % 100 == 0 ? 60'000 : seq % 3 == 0 ? 2000 : 2; };
  for (uint64_t seq = 1; seq <= kJobs; ++seq) {
    ids.insert(trainer.ring->Send(Kind::kSubmit, SubmitOf(seq, ranges(seq))));
  }
  for (const uint64_t id : ids) ASSERT_EQ(trainer.ring->AnswerTo(id).code(), 0) << id;
  const std::vector<Submission> submissions = agent_.submissions();
  ASSERT_EQ(submissions.size(), kJobs);
  for (uint64_t seq = 1; seq <= kJobs; ++seq) {
    EXPECT_EQ(submissions[seq - 1].job.seq.value(), seq);
    EXPECT_EQ(submissions[seq - 1].sends.at(0).ranges.size(), ranges(seq));
  }
}

TEST_F(RingServerTest, TheEnginesThreadChecksShortRequestsThatAreQuickToCheck) {
  Trainer trainer(path_);
  const auto by_engine = [&](size_t ranges) {
    EXPECT_EQ(trainer.ring->AnswerTo(trainer.ring->Send(Kind::kSubmit, SubmitOf(1, ranges))).code(), 0);
    return agent_.submitted_by_source.load();
  };
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Until([&] { return by_engine(2); })) << "a thread may have had the session until now";
    EXPECT_FALSE(by_engine(2000));
    agent_.quick_to_check = false;
    EXPECT_FALSE(by_engine(2));
    agent_.quick_to_check = true;
  }
}

TEST_F(RingServerTest, TwoSessionsDoNotMeet) {
  Trainer first(path_), second(path_);
  const uint64_t wait = first.ring->Send(Kind::kWaitJob, WaitOf(1));
  ASSERT_TRUE(Until([&] { return agent_.waits.size() == 1; }));
  const uint64_t join = second.ring->Send(Kind::kJoinGroup, JoinRequest());
  ASSERT_EQ(wait, join) << "the ids are each session's own";
  ASSERT_TRUE(Until([&] { return agent_.joins.size() == 1; }));
  FakeAgent::PendingJoin joining = agent_.joins.Take();
  EXPECT_EQ(joining.request.session, SessionId(second.id));
  feed_.OnJobFinished(SessionId(first.id), Report(1));
  feed_.OnJobFinished(SessionId(second.id), Report(2));
  std::move(joining.done)(absl::UnavailableError("no"));
  std::move(agent_.waits.Take().done)(absl::NotFoundError("job"));
  EXPECT_EQ(first.ring->AnswerTo(wait).message(), "job");
  EXPECT_EQ(second.ring->AnswerTo(join).message(), "no");
  EXPECT_EQ(first.ring->Report()->job().seq(), 1u);
  EXPECT_EQ(second.ring->Report()->job().seq(), 2u);
}

TEST_F(RingServerTest, TheDoorbellRingsOnlyForASleeper) {
  Trainer trainer(path_);
  for (uint64_t seq = 1; seq <= 100; ++seq) feed_.OnJobFinished(SessionId(trainer.id), Report(seq));
  for (uint64_t seq = 1; seq <= 100; ++seq) EXPECT_EQ(trainer.ring->Report()->job().seq(), seq);
  EXPECT_EQ(trainer.ring->rings(), 0u);
  trainer.ring->control().sleeps.store(1);
  for (uint64_t seq = 1; seq <= 100; ++seq) feed_.OnJobFinished(SessionId(trainer.id), Report(seq));
  EXPECT_EQ(trainer.ring->control().sleeps.load(), 0u);
  char bytes[64];
  EXPECT_EQ(recv(trainer.ring->doorbell(), bytes, sizeof(bytes), MSG_DONTWAIT), 1);
}

TEST_F(RingServerTest, ReportsLeaveRoomForAnswersAndAreMissed) {
  Trainer trainer(path_);
  constexpr uint64_t kReports = 100;
  for (uint64_t seq = 1; seq <= kReports; ++seq) feed_.OnJobFinished(SessionId(trainer.id), LongReport(seq));
  const uint64_t missed = trainer.ring->answer_control().missed.load();
  EXPECT_GT(missed, 0u);
  EXPECT_EQ(rings_->counters().missed_reports, missed);
  // A sleeper is rung for what it misses, too.
  trainer.ring->control().sleeps.store(1);
  feed_.OnJobFinished(SessionId(trainer.id), LongReport(0));
  EXPECT_EQ(trainer.ring->control().sleeps.load(), 0u);
  EXPECT_EQ(trainer.ring->AnswerTo(trainer.ring->Send(Kind::kSubmit, SubmitOf(1))).code(), 0) << "there is room";
  for (uint64_t seq = 1; seq <= kReports - missed; ++seq) EXPECT_EQ(trainer.ring->Report()->job().seq(), seq);
  feed_.OnJobFinished(SessionId(trainer.id), LongReport(500));
  EXPECT_EQ(trainer.ring->Report()->job().seq(), 500u) << "later reports find room again";
  EXPECT_EQ(trainer.ring->answer_control().missed.load(), missed + 1);
}

TEST_F(RingServerTest, AClientThatDoesNotReadItsAnswersLosesItsSession) {
  Trainer trainer(path_);
  const size_t answer = rails::ring::RecordBytes(10'000);
  for (size_t i = 0; i <= kDataBytes / answer; ++i) {
    trainer.ring->Send(Kind::kWaitJob, WaitOf(1));
    if (!Until([&] { return agent_.waits.size() == 1 || !agent_.close_reasons().empty(); })) break;
    if (agent_.waits.size() == 1) std::move(agent_.waits.Take().done)(absl::NotFoundError(std::string(10'000, 'x')));
  }
  EXPECT_THAT(EndOf(trainer), HasSubstr("does not read its answers"));
  EXPECT_EQ(rings_->counters().full, 1u);
  EXPECT_EQ(rings_->counters().broken, 0u);
}

TEST_F(RingServerTest, AnAnswerLongerThanTheRingsPayloadsSaysSo) {
  Trainer trainer(path_);
  const uint64_t join = trainer.ring->Send(Kind::kJoinGroup, JoinRequest());
  ASSERT_TRUE(Until([&] { return agent_.joins.size() == 1; }));
  GroupView view;
  view.epoch = {BootId(1), 2};
  view.members.assign(4096, std::string(200, 'n'));
  std::move(agent_.joins.Take().done)(view);
  const rails::v1::RingAnswer answer = trainer.ring->AnswerTo(join);
  EXPECT_EQ(answer.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(answer.message(), HasSubstr("more than the ring's"));
  EXPECT_EQ(agent_.leaves().size(), 1u) << "the client does not know that it is a member";
}

TEST_F(RingServerTest, CallsWithoutAnAnswerAreFew) {
  Trainer trainer(path_);
  for (uint64_t seq = 1; seq <= kMaxCalls; ++seq) trainer.ring->Send(Kind::kWaitJob, WaitOf(seq));
  const uint64_t refused = trainer.ring->Send(Kind::kSubmit, SubmitOf(1));
  const rails::v1::RingAnswer answer = trainer.ring->AnswerTo(refused);
  EXPECT_THAT(answer.message(), HasSubstr("limits.max_calls_per_client_connection"));
  EXPECT_EQ(context_->refused->Read(Limit::kCallsPerClientConnection), 1u);
  EXPECT_EQ(agent_.waits.size(), kMaxCalls);
  trainer.ring->Write(Kind::kGiveUp, 1, "");
  EXPECT_EQ(trainer.ring->AnswerTo(1).code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(trainer.ring->AnswerTo(trainer.ring->Send(Kind::kSubmit, SubmitOf(1))).code(), 0);
}

// Bounds of one request, and of all sessions' requests whose last part has not come.
TEST_F(RingServerTest, RequestsInPartsAreBounded) {
  const std::string part(kMaxPayloadBytes, 'x');
  Trainer trainer(path_), second(path_), third(path_);
  for (int i = 0; i < 5; ++i) trainer.ring->Write(Kind::kSubmit, 9, part, kMore);
  trainer.ring->Write(Kind::kSubmit, 9, "");
  const rails::v1::RingAnswer answer = trainer.ring->AnswerTo(9);
  EXPECT_THAT(answer.message(), HasSubstr("limits.max_message"));

  // Two messages fit, in their parts. The answer to another request shows that the parts before it were taken.
  for (Trainer* each : {&trainer, &second}) {
    each->ring->Write(Kind::kSubmit, 10, part, kMore);
    each->ring->Write(Kind::kSubmit, 10, part, kMore);
    ASSERT_TRUE(Until([&] { return each->ring->answer_control().taken == each->ring->control().written; }));
  }
  third.ring->Write(Kind::kSubmit, 10, "x", kMore);
  third.ring->Write(Kind::kSubmit, 10, "x");
  EXPECT_THAT(third.ring->AnswerTo(10).message(), HasSubstr("limits.max_grpc_memory"));
  second.session.Close();
  uint64_t id = 11;
  EXPECT_TRUE(Until([&] {
    third.ring->Write(Kind::kSubmit, ++id, "", kMore);
    third.ring->Write(Kind::kSubmit, id, SubmitOf(1));
    return third.ring->AnswerTo(id).code() == 0;
  })) << "the ended session gives its memory back";
  trainer.ring->Write(Kind::kSubmit, 10, "");
  EXPECT_EQ(trainer.ring->AnswerTo(10).message(), "job: missing") << "unknown fields only";
}

TEST_F(RingServerTest, WhatBreaksTheRulesEndsTheSession) {
  using Act = std::function<void(RingClient&)>;
  const auto header = [](RingClient& ring, uint32_t length) {
    const rails::ring::RecordHeader bad = {length, static_cast<uint16_t>(Kind::kSubmit), 0, 1};
    memcpy(ring.request_data(), &bad, sizeof(bad));
  };
  const std::vector<std::pair<const char*, Act>> acts = {
      {"impossible counter", [](RingClient& ring) { ring.control().written = kDataBytes + 1; }},
      {"impossible counter", [](RingClient& ring) { ring.control().written = 8; }},
      {"impossible counter",
       [&](RingClient& ring) {
         header(ring, kMaxPayloadBytes + 1);
         ring.control().written = kDataBytes;
       }},
      {"impossible counter",
       [&](RingClient& ring) {
         header(ring, 17);
         ring.control().written = 32;
       }},
      {"impossible counter",  // a hole: the counters are 0 again
       [](RingClient& ring) {
         ring.AnswerTo(ring.Send(Kind::kSubmit, ""));
         EXPECT_EQ(fallocate(ring.descriptors().requests.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                             rails::ring::kMemoryBytes),
                   0);
       }},
      {"number of taken answers",
       [](RingClient& ring) {
         ring.control().taken = 1;
         ring.Write(Kind::kSubmit, 1, "");
       }},
      {"unknown kind 77", [](RingClient& ring) { ring.Write(static_cast<Kind>(77), 1, ""); }},
      {"unknown kind 100", [](RingClient& ring) { ring.Write(Kind::kAnswer, 1, ""); }},
      {"flags 6", [](RingClient& ring) { ring.Write(Kind::kSubmit, 1, "", 6); }},
      {"request 1 while an earlier one has that id",
       [](RingClient& ring) {
         ring.Write(Kind::kWaitJob, 1, WaitOf(1));
         ring.Write(Kind::kWaitJob, 1, WaitOf(1));
       }},
      {"request 2 before the last part of request 1",
       [](RingClient& ring) {
         ring.Write(Kind::kSubmit, 1, "x", kMore);
         ring.Write(Kind::kSubmit, 2, "x");
       }},
      {"request 1 before the last part of request 1", [](RingClient& ring) {
         ring.Write(Kind::kSubmit, 1, "x", kMore);
         ring.Write(Kind::kWaitJob, 1, "x");
       }}};
  Trainer other(path_);
  uint64_t broken = 0;
  for (const auto& [why, act] : acts) {
    Trainer trainer(path_);
    act(*trainer.ring);
    trainer.ring->Ring();
    EXPECT_TRUE(trainer.session.Closed()) << why;
    ASSERT_TRUE(Until([&] { return agent_.close_reasons().size() == broken + 1; })) << why;
    EXPECT_THAT(agent_.close_reasons().back(), HasSubstr(why));
    EXPECT_EQ(rings_->counters().broken, ++broken);
  }
  EXPECT_EQ(other.ring->AnswerTo(other.ring->Send(Kind::kSubmit, SubmitOf(1))).code(), 0) << "others go on";
  EXPECT_EQ(rings_->counters().open, 1u);
}

TEST_F(RingServerTest, BadPayloadsAreRefusedAndTheSessionGoesOn) {
  Trainer trainer(path_);
  for (const Kind kind : {Kind::kSubmit, Kind::kWaitJob, Kind::kCancelJob, Kind::kJoinGroup, Kind::kLeaveGroup,
                          Kind::kRemoveSegment, Kind::kPrepare, Kind::kSubmitPrepared, Kind::kReleasePrepared}) {
    const rails::v1::RingAnswer answer = trainer.ring->AnswerTo(trainer.ring->Send(kind, "\xff\xff"));
    EXPECT_EQ(answer.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(answer.message(), HasSubstr("request: not a rails.v1."));
  }
  trainer.ring->Write(Kind::kGiveUp, 12345, "of no call");
  EXPECT_EQ(trainer.ring->AnswerTo(trainer.ring->Send(Kind::kSubmit, SubmitOf(1))).code(), 0);
}

TEST_F(RingServerTest, ASessionsEndGivesUpItsCallsAndUnmaps) {
  const size_t before = Mappings();
  {
    Trainer trainer(path_);
    const uint64_t join = trainer.ring->Send(Kind::kJoinGroup, JoinRequest());
    trainer.ring->Send(Kind::kWaitJob, WaitOf(1));
    ASSERT_TRUE(Until([&] { return agent_.joins.size() == 1 && agent_.waits.size() == 1; }));
    EXPECT_EQ(Mappings(), before + 4);
    feed_.OnJobFinished(SessionId(trainer.id), Report(8));
    trainer.session.Close();
    EXPECT_TRUE(trainer.ring->Closed());
    EXPECT_EQ(trainer.ring->Report()->job().seq(), 8u) << "what was written stays readable";
    EXPECT_EQ(trainer.ring->AnswerTo(join).code(), -1);
    ASSERT_TRUE(Until([&] { return Mappings() == before + 2; })) << "although calls wait at the agent";
  }
  GroupView view;
  view.epoch = {BootId(1), 2};
  std::move(agent_.joins.Take().done)(view);
  std::move(agent_.waits.Take().done)(Report(1));
  EXPECT_EQ(agent_.leaves().size(), 1u);
  EXPECT_EQ(agent_.waits.size(), 0u);
  EXPECT_EQ(rings_->counters().open, 0u);
}

// Sessions end one after the other. A client whose session is still open would take the end of another one for a
// trainer's failure.
TEST_F(RingServerTest, AStoppedServerSaysNothingUntilTheSessionEnds) {
  Trainer trainer(path_);
  const uint64_t join = trainer.ring->Send(Kind::kJoinGroup, JoinRequest());
  ASSERT_TRUE(Until([&] { return agent_.joins.size() == 1; }));
  feed_.OnJobFinished(SessionId(trainer.id), Report(1));
  rings_->Stop();
  std::move(agent_.joins.Take().done)(absl::FailedPreconditionError("group moe is broken"));
  feed_.OnJobFinished(SessionId(trainer.id), Report(2));
  EXPECT_TRUE(agent_.close_reasons().empty());
  EXPECT_EQ(rings_->Open(SessionId(trainer.id + 1), nullptr).status().code(), absl::StatusCode::kUnavailable);
  server_ = nullptr;
  EXPECT_TRUE(trainer.ring->Closed());
  EXPECT_EQ(trainer.ring->Report()->job().seq(), 1u);
  EXPECT_EQ(trainer.ring->AnswerTo(join).code(), -1);
  EXPECT_FALSE(trainer.ring->Report().has_value());
}

// A client that ends closes its descriptors in any order.
TEST_F(RingServerTest, AClosedDoorbellEndsNothing) {
  Trainer trainer(path_), other(path_);
  trainer.ring->CloseDoorbell();
  for (uint64_t seq = 1; seq <= 10; ++seq) {
    trainer.ring->control().sleeps.store(1);
    feed_.OnJobFinished(SessionId(trainer.id), Report(seq));
    EXPECT_EQ(other.ring->AnswerTo(other.ring->Send(Kind::kSubmit, SubmitOf(seq))).code(), 0);
  }
  EXPECT_EQ(trainer.ring->Report()->job().seq(), 1u);
  EXPECT_TRUE(agent_.close_reasons().empty());
  EXPECT_EQ(rings_->counters().broken, 0u);
}

TEST_F(RingServerTest, AFloodOfTheDoorbellDelaysNobodyAndLeavesNothing) {
  const size_t before = testing::OpenDescriptors();
  {
    Trainer hostile(path_), other(path_);
    const std::string noise(1000, 'x');
    const UniqueFd file(memfd_create("flood", MFD_CLOEXEC));
    for (int i = 0; i < 200; ++i) {
      static_cast<void>(send(hostile.ring->doorbell(), noise.data(), noise.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
      testing::SendPacket(hostile.ring->doorbell(), "x", std::vector<int>(10, file.get()));
      if (i % 10 != 0) continue;
      ASSERT_EQ(other.ring->AnswerTo(other.ring->Send(Kind::kSubmit, SubmitOf(1))).code(), 0);
    }
    EXPECT_EQ(hostile.ring->AnswerTo(hostile.ring->Send(Kind::kSubmit, SubmitOf(1))).code(), 0);
    // The rest is still in the socket when the session ends.
    for (int i = 0; i < 20; ++i) testing::SendPacket(hostile.ring->doorbell(), "x", std::vector<int>(10, file.get()));
  }
  EXPECT_TRUE(Until([&] { return testing::OpenDescriptors() == before; }));
  EXPECT_EQ(rings_->counters().broken, 0u);
}

TEST_F(RingServerTest, CallsAreCountedAndThreadsTakeTurns) {
  Trainer trainer(path_);
  trainer.ring->AnswerTo(trainer.ring->Send(Kind::kCancelJob, ""));
  std::vector<std::string> counted;
  context_->ring_calls->ForEach([&](const std::string& method, const std::string& code, uint64_t count) {
    counted.push_back(absl::StrCat(method, " ", code, " ", count));
  });
  EXPECT_THAT(counted, ElementsAre("JobService/CancelJob invalid_argument 1"));
  ASSERT_EQ(rings_->Progress().size(), 1u);
  EXPECT_EQ(rings_->Progress()[0].name, "rings.0");
  EXPECT_TRUE(Until([&] { return rings_->Progress()[0].turns > 0; }));
}

TEST(RingThreadsTest, FollowTheProcessors) {
  EXPECT_EQ(RingThreads(0), 1u);
  EXPECT_EQ(RingThreads(2), 1u);
  EXPECT_EQ(RingThreads(8), 2u);
  EXPECT_EQ(RingThreads(192), 4u);
}

}  // namespace
}  // namespace railsd
