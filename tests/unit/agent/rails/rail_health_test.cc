// The engine's use of the health of rails: flaps hold work back, drains move it off, peers hear of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::HasSubstr;

uint64_t SentOver(Cluster& cluster, size_t n, size_t rail) {
  return cluster.node(n).engine->Snapshot(0).rails[rail].counts.tx_payload_bytes;
}

absl::Status Drain(Cluster& cluster, size_t n, const std::string& rail, bool drained) {
  absl::Status answer = absl::UnknownError("no answer");
  cluster.node(n).engine->DrainRail(rail, drained, [&](absl::Status s) { answer = std::move(s); });
  return answer;
}

// Both kinds of rails.
class EngineHealthTest : public ::testing::TestWithParam<bool> {
 protected:
  void Make(size_t nodes, size_t rails, Policy policy = Policy::kLpt) {
    cluster_ = std::make_unique<Cluster>(Cluster::Options{
        .remote = GetParam(), .nodes = nodes, .rails = rails, .plan = {.policy = policy, .chunk_bytes = 64 << 10}});
    exchange_ = std::make_unique<Exchange>(cluster_.get(), static_cast<uint32_t>(nodes), "g",
                                           ExchangeOptions{.buffer_bytes = 6 << 20});
  }
  void Begin(uint64_t seq, uint64_t bytes = 2'000'000) {
    exchange_->SetLengths(AllLengths(exchange_->world(), bytes), seq);
    exchange_->SubmitAll(seq);
  }
  void RunJob(uint64_t seq) {
    Begin(seq);
    Finish(seq);
  }
  void Finish(uint64_t seq) { exchange_->ExpectCompletes(seq); }
  RailView Rail(size_t n, size_t rail) { return cluster_->node(n).engine->Snapshot(0).rails[rail]; }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Exchange> exchange_;
};

// A node that was frozen takes a broken rail for its own failure, and tells a peer that has met it again already,
// before it knows that their old link is over.
TEST_P(EngineHealthTest, AnEndIsUsableAgainThoughItWasSaidNotToBeOnANewLink) {
  Make(2, 2);
  Node &one = cluster_->node(0), &other = cluster_->node(1);
  cluster_->Lose(0, 1, "nothing was heard of it");
  one.engine->OnPeerUp(cluster_->HelloOf(1));
  other.rails[1]->Tell({.kind = RailEvent::Kind::kLinkDown, .error_number = ENETDOWN});
  other.engine->Step();
  const std::vector<RailState*> told = Outgoing<RailState>(*cluster_, 1);
  ASSERT_EQ(told.size(), 1u);
  one.engine->OnPeerMessage(other.name, other.boot, *told[0]);
  other.engine->OnPeerDown(one.name, "its link is over");
  other.rails[1]->Tell({.kind = RailEvent::Kind::kLinkUp});
  other.engine->Step();
  for (Node* node : {&one, &other}) node->outbox.clear();
  other.engine->OnPeerUp(cluster_->HelloOf(0));
  cluster_->Release(0, 1);
  cluster_->Release(1, 0);
  cluster_->RunFor(absl::Minutes(1));
  for (const PeerView& peer : one.engine->Snapshot(0).peers) {
    EXPECT_THAT(peer.rail_states, ::testing::Each(HealthState::kUp));
  }
}

TEST_P(EngineHealthTest, ARailThatFlappedIsHeldBackAndThenUsedAgain) {
  Make(2, 2);
  RunJob(1);
  cluster_->fabric().Fail(cluster_->AddressOf(0, 0));
  cluster_->Run();
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kDown);
  cluster_->fabric().Heal(cluster_->AddressOf(0, 0));
  cluster_->Run();
  EXPECT_EQ(Rail(0, 0).peers_up, 1u);
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kProbing);
  const uint64_t before = SentOver(*cluster_, 0, 0);
  RunJob(2);
  EXPECT_EQ(SentOver(*cluster_, 0, 0), before) << "held back";
  const absl::Time due = cluster_->node(0).engine->NextDeadline();
  EXPECT_LE(due, absl::UnixEpoch() + absl::Milliseconds(250)) << "the engine wakes up by itself";
  cluster_->Advance(absl::Milliseconds(250));
  cluster_->Run();
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kUp);
  EXPECT_EQ(Rail(0, 0).health.flaps, 1u);
  RunJob(3);
  EXPECT_GE(SentOver(*cluster_, 0, 0), before + 900'000);
  cluster_->ExpectNothingOpen();
}

TEST_P(EngineHealthTest, AHoldEndsInTheMiddleOfAJob) {
  Make(2, 2);
  for (size_t r : {0u, 1u}) cluster_->fabric().Fail(cluster_->AddressOf(0, r));
  cluster_->Run();
  Begin(1);
  cluster_->fabric().Heal(cluster_->AddressOf(0, 1));
  cluster_->RunSteps(60);
  cluster_->fabric().Heal(cluster_->AddressOf(0, 0));  // both are held back: both may be used
  Finish(1);
  cluster_->ExpectNothingOpen();
}

TEST_P(EngineHealthTest, ADrainMovesWorkOffAndLosesNothing) {
  for (const Policy policy : {Policy::kLpt, Policy::kPinned, Policy::kRoundRobin}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    Make(3, 3, policy);
    Begin(1);
    cluster_->RunSteps(60);
    ASSERT_TRUE(Drain(*cluster_, 0, "rail1", true).ok());
    ASSERT_TRUE(Drain(*cluster_, 0, "1", true).ok()) << "again, by its index";
    Finish(1);
    std::vector<uint64_t> before;
    for (size_t n = 0; n < 3; ++n) before.push_back(SentOver(*cluster_, n, 1));
    RunJob(2);
    EXPECT_EQ(SentOver(*cluster_, 0, 1), before[0]);
    EXPECT_EQ(Rail(0, 1).health.drained, true);
    EXPECT_THAT(Rail(0, 1).health.why, HasSubstr("drained by an operator"));
    if (policy != Policy::kPinned) {  // n1 and n2 have heard of it: rail 1 is theirs alone
      EXPECT_GT(SentOver(*cluster_, 1, 1), before[1]);
      EXPECT_LT(SentOver(*cluster_, 1, 1), before[1] + 2'000'000);
    }
    ASSERT_TRUE(Drain(*cluster_, 0, "rail1", false).ok());
    cluster_->Run();
    RunJob(3);
    EXPECT_TRUE(policy == Policy::kPinned || SentOver(*cluster_, 0, 1) > before[0]);
    cluster_->ExpectNothingOpen();
  }
}

// Over rails that write into remote memory a job's keys for a rail end with its connection, and no more are given. The
// clock stands still: nothing ends by its deadline.
TEST_P(EngineHealthTest, ADrainLeavesWorkWhereItHasItsOnlyKeys) {
  for (const size_t drains : {0u, 1u}) {
    Make(2, 2);
    for (size_t n : {0u, 1u}) {
      for (size_t r : {0u, 1u}) cluster_->fabric().SetStepBytes(cluster_->AddressOf(n, r), 8 << 10);
    }
    Begin(1);
    cluster_->RunSteps(60);
    cluster_->fabric().Fail(cluster_->AddressOf(0, 1));
    cluster_->RunSteps(20);
    cluster_->fabric().Heal(cluster_->AddressOf(0, 1));
    cluster_->RunSteps(20);
    ASSERT_GT(cluster_->node(0).engine->Snapshot(0).active_jobs.size(), 0u);
    ASSERT_GT(cluster_->node(0).engine->Snapshot(0).counters.rehomed_exchanges, 0u);
    const uint64_t without_keys = SentOver(*cluster_, 0, 1);
    ASSERT_TRUE(Drain(*cluster_, drains, "rail0", true).ok());
    Finish(1);
    if (GetParam()) {
      EXPECT_EQ(SentOver(*cluster_, 0, 1), without_keys) << "rail 1 has no keys of job 1 any more";
      EXPECT_EQ(SentOver(*cluster_, 0, 0), 2'000'000 - without_keys);
    }
    const uint64_t before = SentOver(*cluster_, 0, 0);
    RunJob(2);
    EXPECT_EQ(SentOver(*cluster_, 0, 0), before) << "the next job has keys for the other rail";
    cluster_->ExpectNothingOpen();
  }
}

TEST_P(EngineHealthTest, ADrainedRailThatHasTheOnlyKeysIsPlannedWith) {
  Make(2, 2);
  cluster_->fabric().Fail(cluster_->AddressOf(0, 1));
  cluster_->Run();
  Begin(1);
  cluster_->Run([&] { return !Outgoing<Ready>(*cluster_, 1).empty(); });
  // READY, which names rail 0 alone, is late.
  auto& outbox = cluster_->node(1).outbox;
  const auto ready = std::find_if(outbox.begin(), outbox.end(),
                                  [](const auto& message) { return std::holds_alternative<Ready>(message.second); });
  auto late = std::move(*ready);
  outbox.erase(ready);
  cluster_->fabric().Heal(cluster_->AddressOf(0, 1));
  cluster_->Run();
  ASSERT_TRUE(Drain(*cluster_, 0, "rail0", true).ok());
  cluster_->Run();
  outbox.push_back(std::move(late));
  Finish(1);
  EXPECT_EQ(SentOver(*cluster_, 0, GetParam() ? 0 : 1), 2'000'000u) << "TCP needs no keys";
  cluster_->ExpectNothingOpen();
}

// The lower bound of a job, and its use of the rails, are of those that operators want to be used.
TEST_P(EngineHealthTest, DrainedRailsAreNoPartOfTheBound) {
  Make(2, 4);
  const auto report = [this](size_t n) { return cluster_->node(n).engine->Snapshot(0).finished_jobs.front(); };
  RunJob(1);
  const JobReport all = report(0);
  EXPECT_EQ(all.drained_rails, 0u);
  ASSERT_TRUE(Drain(*cluster_, 1, "rail3", true).ok());
  cluster_->Run();
  RunJob(2);
  for (size_t n : {0u, 1u}) {  // drained by the peer, and here
    EXPECT_EQ(report(n).drained_rails, 8u) << n;
    EXPECT_NEAR(absl::FDivDuration(report(n).node_bound, all.node_bound), 4.0 / 3, 1e-6) << n;
  }
  ASSERT_TRUE(Drain(*cluster_, 1, "rail3", false).ok());
  cluster_->Run();
  RunJob(3);
  EXPECT_EQ(report(0).drained_rails, 0u);
  EXPECT_EQ(report(0).node_bound, all.node_bound);
}

TEST_P(EngineHealthTest, APeerThatComesLaterHearsOfADrain) {
  Make(2, 2);
  ASSERT_TRUE(Drain(*cluster_, 1, "rail0", true).ok());
  cluster_->Run();
  EXPECT_EQ(cluster_->node(0).engine->Snapshot(0).peers[0].rail_states[0], HealthState::kDrainedByPeer);
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kDrainedByPeer);
  EXPECT_EQ(Rail(0, 0).peers_up, 0u);
  EXPECT_EQ(Rail(0, 0).peers_drained, 1u);
  PeerHello again = cluster_->HelloOf(1);
  cluster_->node(0).engine->OnPeerDown("n1", "a test");
  cluster_->node(1).engine->OnPeerDown("n0", "a test");
  cluster_->Connect(0, 1);
  cluster_->RunFor(absl::Minutes(1));  // one end may have met the other before that one had let it go
  EXPECT_EQ(cluster_->node(0).engine->Snapshot(0).peers[0].rail_states[0], HealthState::kDrainedByPeer);
  EXPECT_EQ(cluster_->node(0).engine->Snapshot(0).peers[0].rail_states[1], HealthState::kUp);
}

// A rail whose link is down already is drained: the peers hear that it is no fault any more.
TEST_P(EngineHealthTest, ADrainOfARailThatIsDownIsTold) {
  Make(2, 2);
  RailEvent event;
  event.kind = RailEvent::Kind::kLinkDown;
  event.error_number = ENETDOWN;
  cluster_->node(1).rails[0]->Tell(event);
  cluster_->Run();
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kDown);
  ASSERT_TRUE(Drain(*cluster_, 1, "rail0", true).ok());
  cluster_->Run();
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kDrainedByPeer);
  ASSERT_TRUE(Drain(*cluster_, 1, "rail0", false).ok());
  cluster_->Run();
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kDown);
}

TEST_P(EngineHealthTest, AForgottenPeerIsMissedByNobody) {
  Make(3, 2);
  Engine& engine = *cluster_->node(0).engine;
  engine.OnPeerForgotten("n2");
  EXPECT_EQ(engine.Snapshot(0).peers.size(), 2u) << "it is up";
  engine.OnPeerDown("n2", "a test");
  EXPECT_EQ(Rail(0, 0).peers_known, 2u);
  engine.OnPeerForgotten("n2");
  EXPECT_EQ(engine.Snapshot(0).peers.size(), 1u);
  EXPECT_EQ(Rail(0, 0).peers_known, 1u);
  engine.OnPeerUp(cluster_->HelloOf(2));
  EXPECT_EQ(engine.Snapshot(0).peers.size(), 2u);
  EXPECT_EQ(Rail(0, 0).peers_known, 2u);
}

TEST_P(EngineHealthTest, TheLastRailCannotBeDrained) {
  Make(2, 2);
  ASSERT_TRUE(Drain(*cluster_, 0, "rail0", true).ok());
  const absl::Status last = Drain(*cluster_, 0, "rail1", true);
  EXPECT_EQ(last.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(last.message()), HasSubstr("rail1 is the last rail of n0 that is not drained"));
  const absl::Status unknown = Drain(*cluster_, 0, "eth7", true);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("it has rail0, rail1"));
}

// Before any connection breaks: nothing new goes over a link that is down, at either end.
TEST_P(EngineHealthTest, ALinkThatIsDownIsLeftAtBothEnds) {
  Make(3, 3);
  RailEvent event;
  event.kind = RailEvent::Kind::kLinkDown;
  event.error_number = EADDRNOTAVAIL;
  Begin(1);
  cluster_->RunSteps(60);
  cluster_->node(0).rails[1]->Tell(event);
  Finish(1);
  EXPECT_EQ(Rail(0, 1).health.state, HealthState::kDown);
  EXPECT_EQ(Rail(0, 1).health.why, "no interface has its address any more");
  EXPECT_EQ(Rail(0, 1).health.flaps, 1u);
  // Whoever sends over it does not wait for timeouts, and is told once.
  for (const size_t peer : {1, 2}) {
    Node& node = cluster_->node(peer);
    for (int i = 0; i < 3; ++i) {
      node.engine->OnPeerMessage("n0", cluster_->node(0).boot, RailState{RailIndex(1), false, false, /*down=*/true});
      cluster_->Run();
    }
    EXPECT_THAT(node.rails[1]->watched.ended, ::testing::ElementsAre(0, 0, ::testing::Gt(0)));
    EXPECT_THAT(node.rails[0]->watched.ended, ::testing::ElementsAre(0, 0));
  }
  const uint64_t own = SentOver(*cluster_, 0, 1), theirs = SentOver(*cluster_, 1, 1);
  RunJob(2);
  EXPECT_EQ(SentOver(*cluster_, 0, 1), own);
  EXPECT_GT(SentOver(*cluster_, 1, 1), theirs) << "to n2";
  EXPECT_LT(SentOver(*cluster_, 1, 1), theirs + 2'000'000);
}

// A path that stalls is left until it moves.
TEST_P(EngineHealthTest, AStalledPathIsLeft) {
  Make(2, 2);
  RailEvent event;
  event.kind = RailEvent::Kind::kPeerStalled;
  event.peer = PeerIndex(0);
  event.cookie = 1;  // the first link
  event.error_number = ETIMEDOUT;
  cluster_->node(0).rails[0]->Tell(event);
  cluster_->Run();
  EXPECT_EQ(Rail(0, 0).health.state, HealthState::kSuspect);
  RunJob(1);
  EXPECT_EQ(SentOver(*cluster_, 0, 0), 0u);
  event.error_number = 0;
  cluster_->node(0).rails[0]->Tell(event);
  cluster_->Run();
  RunJob(2);
  EXPECT_GE(SentOver(*cluster_, 0, 0), 900'000u);
  cluster_->ExpectNothingOpen();
}

// Two ends drained on different rails: the third carries all.
TEST_P(EngineHealthTest, BothEndsCount) {
  Make(2, 3);
  ASSERT_TRUE(Drain(*cluster_, 0, "rail0", true).ok());
  ASSERT_TRUE(Drain(*cluster_, 1, "rail1", true).ok());
  cluster_->Run();
  RunJob(1);
  for (size_t n : {0u, 1u}) {
    EXPECT_EQ(SentOver(*cluster_, n, 0) + SentOver(*cluster_, n, 1), 0u);
    EXPECT_EQ(SentOver(*cluster_, n, 2), 2'000'000u);
  }
  cluster_->ExpectNothingOpen();
}

// Drains, failures and time at any moment of jobs.
TEST_P(EngineHealthTest, JobsSurviveWhateverHappens) {
  for (const uint64_t seed : Seeds(15)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    Make(3, 3);
    std::vector<std::string> dead;
    for (uint64_t seq = 1; seq <= 2; ++seq) {
      Begin(seq, 500'000);
      for (int fault = 0; fault < 6; ++fault) {
        cluster_->RunSteps(random() % 60);
        const size_t n = random() % 3, r = random() % 2;  // rail 2 lives: verbs have no other way to go on
        switch (random() % 4) {
          case 0:
            dead.push_back(cluster_->AddressOf(n, r));
            cluster_->fabric().Fail(dead.back());
            break;
          case 1:
            if (!dead.empty()) cluster_->fabric().Heal(dead[random() % dead.size()]);
            break;
          case 2:
            static_cast<void>(Drain(*cluster_, n, absl::StrCat(r), random() % 2 == 0));
            break;
          default:
            cluster_->Advance(absl::Milliseconds(random() % 300));
        }
      }
      for (const std::string& address : dead) cluster_->fabric().Heal(address);
      Finish(seq);
    }
    cluster_->ExpectNothingOpen();
    if (::testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Rails, EngineHealthTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "Remote" : "Placing"); });

}  // namespace
}  // namespace railsd::testing
