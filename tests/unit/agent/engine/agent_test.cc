// Whole agents with their threads, over TCP rails on loopback. The suite that ThreadSanitizer runs on the core.
#include "agent/agent.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/null_sink.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/sessions/segment_mapper.h"
#include "tests/support/until.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

// Hands messages straight to the other agents' queues, as streams that never break would.
class DirectLink final : public ControlLink {
 public:
  DirectLink(std::string self, BootId boot) : self_(std::move(self)), boot_(boot) {}
  void Add(const std::string& node, Agent* agent) {
    std::lock_guard lock(mutex_);
    agents_[node] = agent;
  }
  void Clear() {
    std::lock_guard lock(mutex_);
    agents_.clear();
  }
  void Send(const std::string& node, ControlMessage message) override {
    std::lock_guard lock(mutex_);
    auto it = agents_.find(node);
    if (it != agents_.end()) it->second->OnPeerMessage(self_, boot_, std::move(message));
  }
  absl::Status SendIfItFits(const std::string& node, ControlMessage&& message) override {
    Send(node, std::move(message));
    return absl::OkStatus();
  }
  void SetPatience(const std::string&, absl::Duration) override {}

 private:
  const std::string self_;
  const BootId boot_;
  std::mutex mutex_;
  std::map<std::string, Agent*> agents_;
};

// Makes a blocking call of one that answers by callback.
template <typename T, typename Call>
T Await(Call call) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> future = promise->get_future();
  call([promise](T value) { promise->set_value(std::move(value)); });
  if (future.wait_for(kPatience) != std::future_status::ready) {
    ADD_FAILURE() << "no answer";
    return T(absl::DeadlineExceededError("no answer"));
  }
  return future.get();
}

AgentSnapshot SnapshotOf(Agent& agent) {
  auto promise = std::make_shared<std::promise<AgentSnapshot>>();
  agent.Snapshot([promise](AgentSnapshot s) { promise->set_value(std::move(s)); });
  return promise->get_future().get();
}

class AgentTest : public ::testing::Test {
 protected:
  void SetUpNodes(size_t nodes, size_t rails) {
    for (size_t n = 0; n < nodes; ++n) {
      AgentOptions options;
      options.node = absl::StrCat("n", n);
      options.boot = BootId(100 + n);
      options.plan.min_chunk_bytes = 4096;
      for (size_t r = 0; r < rails; ++r) options.rails.push_back({absl::StrCat("rail", r), "127.0.0.1", "", 0});
      options.tenants = tenants_;
      options.spin = spin_;
      options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>());
      links_.push_back(std::make_unique<DirectLink>(options.node, options.boot));
      auto agent = Agent::Create(options, links_.back().get(), nullptr);
      ASSERT_TRUE(agent.ok()) << agent.status();
      agents_.push_back(*std::move(agent));
    }
    for (size_t a = 0; a < nodes; ++a) {
      for (size_t b = 0; b < nodes; ++b) {
        if (a == b) continue;
        links_[a]->Add(absl::StrCat("n", b), agents_[b].get());
        TellKey(a, b, 7);
      }
    }
    for (auto& agent : agents_) {
      const auto connected = [&] {
        const AgentSnapshot snapshot = SnapshotOf(*agent);
        for (const RailView& rail : snapshot.rails) {
          if (rail.peers_up != nodes - 1) return false;
        }
        return true;
      };
      const auto limit = std::chrono::steady_clock::now() + kPatience;
      while (!connected() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      ASSERT_TRUE(connected());
    }
  }
  // Agent `a` hears of `b`, and of a key for their link.
  void TellKey(size_t a, size_t b, uint8_t key) {
    PeerHello hello = agents_[b]->Hello();
    hello.data_key.fill(key);
    agents_[a]->OnPeerUp(std::move(hello));
  }
  void TearDown() override {
    for (auto& link : links_) link->Clear();
    agents_.clear();
  }

  struct Member {
    Agent* agent;
    SessionId session;
    Rank rank;
    std::unique_ptr<Buffer> send, receive;
    GroupView group;
  };
  std::vector<Member> Join(uint32_t world, const std::string& name, uint64_t bytes) {
    std::vector<Member> members(world);
    std::vector<std::future<absl::StatusOr<GroupView>>> joins;
    for (uint32_t r = 0; r < world; ++r) {
      Member& m = members[r];
      m.agent = agents_[r % agents_.size()].get();
      m.rank = Rank(r);
      m.session = *Await<absl::StatusOr<SessionId>>([&](auto done) { m.agent->OpenSession({1, 2, 3, "t"}, done); });
      m.send = std::make_unique<Buffer>(bytes);
      m.receive = std::make_unique<Buffer>(bytes);
      for (uint32_t id : {1u, 2u}) {
        Buffer& buffer = id == 1 ? *m.send : *m.receive;
        const absl::Status added = Await<absl::Status>(
            [&](auto done) { m.agent->AddSegment(m.session, SegmentId(id), buffer.Dup(), bytes, done); });
        EXPECT_TRUE(added.ok()) << added;
      }
      auto promise = std::make_shared<std::promise<absl::StatusOr<GroupView>>>();
      joins.push_back(promise->get_future());
      m.agent->Join({m.session, name, "", world, m.rank, absl::Minutes(1)},
                    [promise](absl::StatusOr<GroupView> view) { promise->set_value(std::move(view)); });
    }
    for (uint32_t r = 0; r < world; ++r) {
      absl::StatusOr<GroupView> view = joins[r].get();
      EXPECT_TRUE(view.ok()) << view.status();
      if (view.ok()) members[r].group = *view;
    }
    return members;
  }
  // Everybody sends `bytes` to everybody else.
  absl::Status Submit(Member& m, uint32_t world, uint64_t seq, uint64_t bytes) {
    Submission s;
    s.session = m.session;
    s.job = {m.group.epoch, JobSeq(seq)};
    s.rank = m.rank;
    for (uint32_t peer = 0; peer < world; ++peer) {
      if (peer == m.rank.value()) continue;
      s.sends.push_back({Rank(peer), {{SegmentId(1), peer * bytes, bytes}}});
      s.receives.push_back({Rank(peer), {{SegmentId(2), peer * bytes, bytes}}});
    }
    return Await<absl::Status>([&](auto done) {
      if (absl::Status full = m.agent->Submit(std::move(s), done); !full.ok()) done(full);
    });
  }
  static absl::StatusOr<JobReport> Wait(Member& m, uint64_t seq) {
    return Await<absl::StatusOr<JobReport>>([&](auto done) {
      m.agent->Wait(m.session, {m.group.epoch, JobSeq(seq)}, m.rank, absl::Minutes(1), done);
    });
  }
  static uint8_t Byte(uint64_t seq, uint32_t source, uint32_t destination, uint64_t i) {
    return static_cast<uint8_t>((seq * 31 + source * 7 + destination * 13) ^ (i * 2654435761u >> 13));
  }

  std::vector<TenantOptions> tenants_;
  absl::Duration spin_;
  std::vector<std::unique_ptr<DirectLink>> links_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(AgentTest, JobsOverTcpRailsEveryByte) {
  constexpr uint32_t kWorld = 6;
  constexpr uint64_t kBytes = 300'007;
  SetUpNodes(3, 2);
  std::vector<Member> members = Join(kWorld, "g", kWorld * kBytes);
  for (uint64_t seq = 1; seq <= 4; ++seq) {
    for (Member& m : members) {
      for (uint32_t d = 0; d < kWorld; ++d) {
        for (uint64_t i = 0; i < kBytes; ++i) m.send->data()[d * kBytes + i] = Byte(seq, m.rank.value(), d, i);
      }
      std::fill_n(m.receive->data(), m.receive->size(), uint8_t{0});
    }
    for (Member& m : members) {
      const absl::Status s = Submit(m, kWorld, seq, kBytes);
      ASSERT_TRUE(s.ok()) << s;
    }
    for (Member& m : members) {
      absl::StatusOr<JobReport> report = Wait(m, seq);
      ASSERT_TRUE(report.ok()) << report.status();
      ASSERT_EQ(report->state, JobState::kDone) << report->status;
      for (uint32_t s = 0; s < kWorld; ++s) {
        if (s == m.rank.value()) continue;
        for (uint64_t i = 0; i < kBytes; ++i) {
          ASSERT_EQ(m.receive->data()[s * kBytes + i], Byte(seq, s, m.rank.value(), i)) << s << " " << i;
        }
      }
    }
  }
  for (auto& agent : agents_) {
    const AgentSnapshot snapshot = SnapshotOf(*agent);
    EXPECT_EQ(snapshot.rails[0].queued_bytes + snapshot.rails[0].in_flight_bytes, 0u);
    EXPECT_GT(snapshot.counters.local_copy_bytes, 0u);
    EXPECT_EQ(snapshot.counters.jobs_done, 8u);
  }
}

TEST_F(AgentTest, ThreadsThatSpinDoNotSleepWhileJobsFollowEachOther) {
  constexpr uint32_t kWorld = 2;
  constexpr uint64_t kBytes = 100'000;
  spin_ = absl::Minutes(10);
  SetUpNodes(2, 1);
  std::vector<Member> members = Join(kWorld, "g", kWorld * kBytes);
  std::vector<uint64_t> before;
  for (uint64_t seq = 1; seq <= 20; ++seq) {
    for (Member& m : members) ASSERT_TRUE(Submit(m, kWorld, seq, kBytes).ok());
    for (Member& m : members) ASSERT_EQ(Wait(m, seq)->state, JobState::kDone);
    std::vector<uint64_t> sleeps;
    for (auto& agent : agents_) {
      const AgentSnapshot snapshot = SnapshotOf(*agent);
      sleeps.insert(sleeps.end(), {snapshot.counters.engine_sleeps, snapshot.rails[0].sleeps});
    }
    if (seq == 1) before = sleeps;  // of threads that had no work yet
    EXPECT_EQ(sleeps, before) << seq;
  }
}

TEST_F(AgentTest, DataConnectionsNeedTheKeyOfTheLink) {
  SetUpNodes(2, 1);
  const auto rail = [&](size_t n) { return SnapshotOf(*agents_[n]).rails[0]; };
  agents_[0]->OnPeerDown("n1", "the link is over", false);
  TellKey(0, 1, 8);
  EXPECT_TRUE(Until([&] { return rail(0).counts.protocol_errors > 0; }));
  EXPECT_TRUE(Until([&] { return rail(1).counts.protocol_errors > 0; }));
  EXPECT_EQ(rail(0).peers_up, 0u);
  agents_[1]->OnPeerDown("n0", "the link is over", false);
  TellKey(1, 0, 8);
  EXPECT_TRUE(Until([&] { return rail(0).peers_up == 1 && rail(1).peers_up == 1; }));
}

// Takes snapshots, as scrapes do, as often as it can: ThreadSanitizer says that they do not race with the rails.
TEST_F(AgentTest, SnapshotsWhileJobsRun) {
  constexpr uint32_t kWorld = 4;
  constexpr uint64_t kBytes = 1 << 20;
  SetUpNodes(2, 4);
  std::vector<Member> members = Join(kWorld, "g", kWorld * kBytes);
  std::atomic<bool> end{false};
  std::atomic<uint64_t> snapshots{0};
  std::vector<std::thread> scrapers;
  for (auto& agent : agents_) {
    scrapers.emplace_back([&end, &snapshots, agent = agent.get()] {
      uint64_t sent = 0;
      while (!end) {
        uint64_t now = 0;
        for (const RailView& rail : SnapshotOf(*agent).rails) now += rail.counts.tx_payload_bytes;
        EXPECT_GE(now, sent) << "counters never fall";
        sent = now;
        ++snapshots;
      }
    });
  }
  for (uint64_t seq = 1; seq <= 20 || snapshots < 1000; ++seq) {
    for (Member& m : members) EXPECT_TRUE(Submit(m, kWorld, seq, kBytes).ok());
    for (Member& m : members) {
      const absl::StatusOr<JobReport> report = Wait(m, seq);
      EXPECT_TRUE(report.ok() && report->state == JobState::kDone) << report.status();
    }
  }
  end = true;
  for (std::thread& scraper : scrapers) scraper.join();
}

TEST_F(AgentTest, SessionsThatEndInTheMiddleLeaveNothing) {
  constexpr uint64_t kBytes = 4 << 20;
  SetUpNodes(2, 2);
  for (int round = 0; round < 10; ++round) {
    std::vector<Member> members = Join(4, "g", 4 * kBytes);
    for (Member& m : members) ASSERT_TRUE(Submit(m, 4, 1, kBytes).ok());
    Member& victim = members[static_cast<size_t>(round) % 4];
    const absl::Status closed =
        Await<absl::Status>([&](auto done) { victim.agent->CloseSession(victim.session, "pid 1 was killed", done); });
    EXPECT_TRUE(closed.ok()) << closed;
    for (Member& m : members) {
      if (m.session == victim.session && m.agent == victim.agent) continue;
      absl::StatusOr<JobReport> report = Wait(m, 1);
      ASSERT_TRUE(report.ok()) << report.status();
      if (report->state == JobState::kFailed) {
        EXPECT_THAT(std::string(report->status.message()),
                    ::testing::HasSubstr(absl::StrCat("rank ", victim.rank.value(), " on ")));
      }
      EXPECT_TRUE(Await<absl::Status>([&](auto done) { m.agent->CloseSession(m.session, "end of round", done); }).ok());
    }
    for (auto& agent : agents_) {
      const AgentSnapshot snapshot = SnapshotOf(*agent);
      EXPECT_TRUE(snapshot.sessions.empty());
      EXPECT_TRUE(snapshot.active_jobs.empty());
    }
  }
}

// Judged before anything is mapped: what the descriptor is does not matter then.
TEST_F(AgentTest, SegmentsOverAQuotaAreNotMapped) {
  TenantOptions tenant{"t"};
  tenant.quota[QuotaKind::kSegmentBytes] = 8192;
  tenants_ = {tenant};
  SetUpNodes(1, 1);
  Agent& agent = *agents_[0];
  const SessionId session = *Await<absl::StatusOr<SessionId>>([&](auto done) {
    agent.OpenSession({1, 2, 3, "t"}, done);
  });
  // A refused descriptor is closed before the answer: the other end of a pipe tells.
  const auto refusal = [&](uint64_t bytes) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd watched(ends[0]);
    auto answer = std::make_shared<std::promise<absl::StatusCode>>();
    agent.AddSegment(session, SegmentId(1), UniqueFd(ends[1]), bytes, [answer, end = watched.get()](absl::Status s) {
      pollfd writers{end, POLLIN, 0};
      EXPECT_EQ(::poll(&writers, 1, 0), 1) << "not closed yet";
      answer->set_value(s.code());
    });
    return answer->get_future().get();
  };
  EXPECT_EQ(refusal(8193), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refusal(8192), absl::StatusCode::kInvalidArgument);
  // The refusals gave their room back. Only one of two segments at once gets it.
  Buffer buffer(8192);
  auto first = std::make_shared<std::promise<absl::Status>>(), second = std::make_shared<std::promise<absl::Status>>();
  agent.AddSegment(session, SegmentId(1), buffer.Dup(), 8192, [first](absl::Status s) { first->set_value(s); });
  agent.AddSegment(session, SegmentId(2), buffer.Dup(), 8192, [second](absl::Status s) { second->set_value(s); });
  EXPECT_EQ(first->get_future().get(), absl::OkStatus());
  EXPECT_EQ(second->get_future().get().code(), absl::StatusCode::kResourceExhausted);
  const absl::Status closed = Await<absl::Status>([&](auto done) { agent.CloseSession(session, "test", done); });
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_EQ(SnapshotOf(agent).tenants[0].in_use, QuotaNumbers());
}

class CountingRegistrar final : public MemoryRegistrar {
 public:
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Segment&) override {
    ++count;
    if (gate.valid()) gate.wait();
    return absl::ResourceExhaustedError("no room on the device");
  }
  std::atomic<int> count{0};
  std::shared_future<void> gate;
};

TEST(SegmentMapperTest, AnswersEverybodyAndHoldsNoMoreThanItMay) {
  std::promise<void> open;
  auto registrar = std::make_shared<CountingRegistrar>();
  registrar->gate = open.get_future().share();
  SegmentMapper mapper({registrar}, 2);
  Buffer buffer(4096);
  std::mutex mutex;
  std::map<uint32_t, absl::StatusCode> answers;
  const auto submit = [&](uint32_t id) {
    mapper.Submit({SegmentId(id), buffer.Dup(), 4096, [&, id](const auto& segment) {
                     std::lock_guard lock(mutex);
                     answers[id] = segment.status().code();
                   }});
  };
  submit(1);
  while (registrar->count == 0) std::this_thread::yield();  // it is at the first
  for (uint32_t id = 2; id <= 4; ++id) submit(id);
  {
    std::lock_guard lock(mutex);
    EXPECT_EQ(answers, (std::map<uint32_t, absl::StatusCode>{{4, absl::StatusCode::kUnavailable}}));
  }
  std::thread stopper([&] { mapper.Stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  open.set_value();
  stopper.join();
  submit(5);
  EXPECT_EQ(answers.size(), 5u);
  EXPECT_EQ(answers[1], absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(answers[5], absl::StatusCode::kAborted);
}

TEST_F(AgentTest, AgentThatStopsAnswersEverybody) {
  SetUpNodes(2, 1);
  std::vector<Member> members = Join(2, "g", 2 << 20);
  ASSERT_TRUE(Submit(members[0], 2, 1, 1 << 20).ok());
  auto answer = std::make_shared<std::promise<absl::StatusOr<JobReport>>>();
  members[0].agent->Wait(members[0].session, {members[0].group.epoch, JobSeq(1)}, Rank(0), absl::Minutes(1),
                         [answer](absl::StatusOr<JobReport> r) { answer->set_value(std::move(r)); });
  for (auto& link : links_) link->Clear();
  agents_[0].reset();
  absl::StatusOr<JobReport> report = answer->get_future().get();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->state, JobState::kFailed);
}

// The caller gives up the peer that is refused: it must be the one that talks too much.
TEST_F(AgentTest, APeerThatOutrunsTheEngineTakesNobodyElsesPlace) {
  SetUpNodes(1, 1);
  std::promise<void> reached, go_on;
  agents_[0]->Undrain([&](absl::Status) {  // on the engine's thread
    reached.set_value();
    go_on.get_future().wait();
  });
  reached.get_future().wait();
  size_t taken = 0;
  while (taken < 1'000'000 && agents_[0]->OnPeerMessage("loud", BootId(7), RailState{RailIndex(0), true})) ++taken;
  EXPECT_EQ(taken, 1u << 16);
  EXPECT_TRUE(agents_[0]->OnPeerMessage("quiet", BootId(8), RailState{RailIndex(0), true}));
  std::promise<absl::StatusOr<SessionId>> session;
  agents_[0]->OpenSession({1, 2, 3, "t"}, [&](absl::StatusOr<SessionId> id) { session.set_value(std::move(id)); });
  Ready large;
  large.sends = std::vector<Ready::Flow>((256 << 20) / sizeof(Ready::Flow));
  EXPECT_TRUE(agents_[0]->OnPeerMessage("large", BootId(9), std::move(large))) << "one is always taken";
  EXPECT_FALSE(agents_[0]->OnPeerMessage("large", BootId(9), RailState{RailIndex(0), true}));
  go_on.set_value();
  EXPECT_TRUE(session.get_future().get().ok()) << "limits.max_waiting_calls is for calls";
  EXPECT_EQ(SnapshotOf(*agents_[0]).counters.control_messages_ignored, taken + 2) << "of nodes that are not up";
  EXPECT_TRUE(agents_[0]->OnPeerMessage("loud", BootId(7), RailState{RailIndex(0), true})) << "it has room again";
}

TEST_F(AgentTest, ASubmissionThatFindsNoPlaceIsRefusedBeforeItIsChecked) {
  SetUpNodes(1, 1);
  std::promise<void> reached, go_on;
  agents_[0]->Undrain([&](absl::Status) {  // on the engine's thread
    reached.set_value();
    go_on.get_future().wait();
  });
  reached.get_future().wait();
  AgentTuning tuning;
  tuning.limits.max_waiting_calls = 1;
  agents_[0]->Retune(tuning, [](absl::Status) {});
  Submission submission;
  submission.session = SessionId(77);
  std::promise<absl::Status> first;
  EXPECT_TRUE(agents_[0]->Submit(submission, [&](absl::Status s) { first.set_value(std::move(s)); }).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(agents_[0]->Submit(submission, [](absl::Status) { ADD_FAILURE(); })));
  go_on.set_value();
  EXPECT_TRUE(absl::IsNotFound(first.get_future().get())) << "the session is not open";
}

TEST_F(AgentTest, RailThatCannotBindIsNamed) {
  AgentOptions options;
  options.node = "n0";
  options.rails.push_back({"rail0", "127.0.0.1", "", 0});
  options.rails.push_back({"fast1", "192.0.2.1", "", 0});  // TEST-NET-1: of nobody
  options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>());
  DirectLink link("n0", BootId(1));
  auto agent = Agent::Create(options, &link, nullptr);
  ASSERT_FALSE(agent.ok());
  EXPECT_THAT(std::string(agent.status().message()),
              ::testing::AllOf(::testing::HasSubstr("fast1"), ::testing::HasSubstr("192.0.2.1")));
}

}  // namespace
}  // namespace railsd::testing
