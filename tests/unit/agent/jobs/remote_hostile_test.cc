// Lies of hostile peers about jobs over rails that write into remote memory, and senders that do not stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr BootId kBootOf0(1000);  // of n0

class HostileRehomeTest : public ::testing::Test {
 protected:
  // Rank 0 on n0 sends to rank 1 on n1.
  void Submit() {
    exchange_.SubmitAll(1);
    cluster_.Run([&] {
      for (const Ready* ready : Outgoing<Ready>(cluster_, 1)) grant_ = ready->grant.value_or(grant_);
      return !grant_.keys.empty();
    });
    ASSERT_EQ(grant_.keys.size(), 2u);
  }
  // n1 has granted, and n0 has sent nothing.
  void Begin() {
    Submit();
    for (auto& rail : cluster_.node(0).rails) rail->frozen = true;
    cluster_.Run();
    cluster_.Hold(1, 0);
  }
  // n1's answer.
  std::vector<Rehomed::Exchange> Say(Rehome message) {
    const size_t before = Outgoing<Rehomed>(cluster_, 1).size();
    cluster_.node(1).engine->OnPeerMessage("n0", kBootOf0, std::move(message));
    cluster_.Run();
    const std::vector<Rehomed*> answers = Outgoing<Rehomed>(cluster_, 1);
    EXPECT_EQ(answers.size(), before + 1);
    return answers.size() == before + 1 ? answers.back()->exchanges : std::vector<Rehomed::Exchange>{};
  }
  // The answers are for a liar's ears only.
  void End() {
    std::erase_if(cluster_.node(1).outbox, [](const auto& m) { return std::holds_alternative<Rehomed>(m.second); });
    for (auto& rail : cluster_.node(0).rails) rail->frozen = false;
    cluster_.Release(1, 0);
    cluster_.Run();
  }
  JobKey job() { return {exchange_.trainer(0).group->epoch, JobSeq(1)}; }
  uint64_t Ignored(size_t n) { return cluster_.node(n).engine->Snapshot(0).counters.control_messages_ignored; }

  Cluster cluster_{{.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 16 << 10}}};
  Exchange exchange_{&cluster_, "g", {{0, 100'000}, {0, 0}}};
  Grant grant_;  // to n0
};

TEST_F(HostileRehomeTest, AnotherRoundFailsTheJob) {
  Begin();
  const auto answer = Say({{}, {{job(), 3}}});
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].state, Rehomed::State::kAborted);
  End();
  exchange_.ExpectFailed(1, "n0 moves job 1 off failed rails: round 3 is not 0");
}

TEST_F(HostileRehomeTest, TheSameExchangeTwiceFailsTheJob) {
  Begin();
  const auto answer = Say({{grant_.keys[0].rail}, {{job(), 0}, {job(), 0}}});
  ASSERT_EQ(answer.size(), 2u);
  for (const Rehomed::Exchange& exchange : answer) EXPECT_EQ(exchange.state, Rehomed::State::kAborted);
  End();
  exchange_.ExpectFailed(1, "round 0 is not 1");
}

TEST_F(HostileRehomeTest, JobsThatAreNotThereAreAnswered) {
  Begin();
  const Epoch epoch = job().epoch;
  // One that has not begun, one that can never be, one of a group that is not there.
  const auto answer = Say({{}, {{{epoch, JobSeq(2)}, 0}, {{epoch, JobSeq(1'000'000)}, 9}, {{}, 0}}});
  ASSERT_EQ(answer.size(), 3u);
  for (const Rehomed::Exchange& exchange : answer) EXPECT_EQ(exchange.state, Rehomed::State::kAborted);
  EXPECT_EQ(answer[1].job, (JobKey{epoch, JobSeq(1'000'000)}));
  End();
}

TEST_F(HostileRehomeTest, JobsThatHaveEndedAreAnswered) {
  Submit();
  cluster_.Run();
  exchange_.ExpectDone(1);
  ASSERT_TRUE(exchange_.trainer(1).Submit(exchange_.For(1, 2)).ok());
  cluster_.node(1).engine->Cancel(exchange_.trainer(1).session, {job().epoch, JobSeq(2)}, Rank(1), [](absl::Status) {});
  cluster_.Run();
  cluster_.Hold(1, 0);
  const auto answer = Say({{}, {{job(), 0}, {job(), 7}, {{job().epoch, JobSeq(2)}, 0}}});
  ASSERT_EQ(answer.size(), 3u);
  EXPECT_EQ(answer[0].state, Rehomed::State::kComplete);
  EXPECT_EQ(answer[1].state, Rehomed::State::kComplete);
  EXPECT_EQ(answer[2].state, Rehomed::State::kAborted);
}

// It ends no connection but those that the keys of this very exchange are for.
TEST_F(HostileRehomeTest, OtherConnectionsAreLeftAlone) {
  Begin();
  const auto ends = [&] {
    uint64_t disconnects = 0;
    for (auto& rail : cluster_.node(1).rails) disconnects += rail->counters().disconnects.load();
    return disconnects;
  };
  Rehome message{{}, {{job(), 0}}};
  for (uint32_t r = 0; r < 70; ++r) message.failed.push_back({RailIndex(r), 77'777});
  const auto answer = Say(std::move(message));
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].state, Rehomed::State::kOpen);
  EXPECT_EQ(answer[0].round, 1u);
  EXPECT_TRUE(answer[0].keys.empty()) << "n0 has them all";
  EXPECT_EQ(ends(), 0u);
  End();
}

TEST_F(HostileRehomeTest, ASecondQuestionBeforeTheAnswerIsIgnored) {
  Begin();
  for (auto& rail : cluster_.node(1).rails) rail->frozen = true;  // the answer waits for keys
  Engine& engine = *cluster_.node(1).engine;
  engine.OnPeerMessage("n0", kBootOf0, Rehome{{grant_.keys[0].rail, grant_.keys[1].rail}, {{job(), 0}}});
  const uint64_t ignored = Ignored(1);
  engine.OnPeerMessage("n0", kBootOf0, Rehome{{}, {{job(), 1}}});
  EXPECT_EQ(Ignored(1), ignored + 1);
  for (auto& rail : cluster_.node(1).rails) rail->frozen = false;
  cluster_.Run();
  ASSERT_EQ(Outgoing<Rehomed>(cluster_, 1).size(), 1u);
  const Rehomed& answer = *Outgoing<Rehomed>(cluster_, 1)[0];
  ASSERT_EQ(answer.exchanges.size(), 1u);
  EXPECT_EQ(answer.exchanges[0].round, 1u);
  EXPECT_EQ(answer.exchanges[0].keys.size(), 2u) << "new ones";
}

TEST_F(HostileRehomeTest, TheSixteenthRoundFailsTheJob) {
  Begin();
  for (uint32_t round = 0; round < 15; ++round) {
    const auto answer = Say({{}, {{job(), round}}});
    ASSERT_EQ(answer.size(), 1u);
    EXPECT_EQ(answer[0].state, Rehomed::State::kOpen);
    EXPECT_EQ(answer[0].round, round + 1);
  }
  const auto answer = Say({{}, {{job(), 15}}});
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].state, Rehomed::State::kAborted);
  End();
  exchange_.ExpectFailed(1, "n0 moves job 1 off failed rails: more than 15 times");
}

TEST_F(HostileRehomeTest, AnswersThatNobodyAskedForAreIgnored) {
  Begin();
  const uint64_t ignored = Ignored(0);
  for (const auto state : {Rehomed::State::kComplete, Rehomed::State::kOpen, Rehomed::State::kAborted}) {
    cluster_.node(0).engine->OnPeerMessage("n1", BootId(1001), Rehomed{{{job(), state, 1, {}}}});
  }
  EXPECT_EQ(Ignored(0), ignored + 3);
  End();
  exchange_.ExpectDone(1);
  exchange_.ExpectBytes();
}

// Fences that contradict each other. (A sender that says too early that all is there lies about its own bytes only;
// where the receiver places the bytes it finds out.)
struct FenceLie {
  std::string name;
  bool remote;
  std::function<void(size_t, SendOrder&)> tell;
};
void PrintTo(const FenceLie& lie, std::ostream* out) { *out << lie.name; }

class LyingFenceTest : public ::testing::TestWithParam<FenceLie> {};

TEST_P(LyingFenceTest, FailsTheJob) {
  Cluster cluster({.remote = GetParam().remote, .nodes = 2, .rails = 3});
  Exchange exchange(&cluster, "g", {{0, 900'000}, {0, 0}});
  for (size_t r = 0; r < 3; ++r) {
    cluster.node(0).rails[r]->watched.tamper = [r](SendOrder& order) {
      if (order.weight > 0) GetParam().tell(r, order);
      return true;
    };
  }
  cluster.Hold(1, 0);
  exchange.SubmitAll(1);
  cluster.Run();
  cluster.Release(1, 0);
  cluster.node(0).rails[2]->frozen = true;  // it comes last
  cluster.Run();
  cluster.node(0).rails[2]->frozen = false;
  cluster.Run();
  // Its receiver, that is: the liar may have had all its acknowledgements before.
  exchange.ExpectFailed(1, absl::StatusCode::kInternal,
                        AllOf(HasSubstr("n0 sent a fence of weight"), HasSubstr("contradicts")), {1});
  cluster.ExpectNothingOpen();
}

std::vector<FenceLie> FenceLies() {
  std::vector<FenceLie> lies;
  for (const bool remote : {false, true}) {
    const std::string of = remote ? "Remote" : "Framed";
    lies.push_back({"WeightsPassTheWhole" + of, remote, [](size_t, SendOrder& o) { o.weight = 200; }});
    lies.push_back({"ByOne" + of, remote, [](size_t r, SendOrder& o) { o.weight = r == 0 ? 86 : 85; }});
    lies.push_back({"LaterRound" + of, remote, [](size_t r, SendOrder& o) { o.round = r == 2 ? 1 : 0; }});
    lies.push_back({"LastRound" + of, remote, [](size_t, SendOrder& o) { o.round = 15; }});
  }
  // The whole weight, and nothing has come over rail 2.
  lies.push_back({"TooEarlyFramed", false, [](size_t r, SendOrder& o) { o.weight = r == 0 ? 128 : 127; }});
  return lies;
}

INSTANTIATE_TEST_SUITE_P(Lies, LyingFenceTest, ::testing::ValuesIn(FenceLies()),
                         [](const auto& info) { return info.param.name; });

class RemoteQuiescenceTest : public ::testing::TestWithParam<bool> {  // weak zones?
 protected:
  // n1 receives, and aborts in the middle; n0 does not stop, for its rails are frozen.
  void Begin() {
    cluster_ = std::make_unique<Cluster>(Cluster::Options{.remote = true, .weak_zones = GetParam()});
    exchange_ = std::make_unique<Exchange>(cluster_.get(), "g", Lengths{{0, 4'000'000}, {0, 0}});
    exchange_->SubmitAll(1);
    cluster_->Run([&] {
      for (const Ready* ready : Outgoing<Ready>(*cluster_, 1)) grant_ = ready->grant.value_or(grant_);
      return cluster_->HasReceived(1, 0);
    });
    for (auto& rail : cluster_->node(0).rails) rail->frozen = true;
    receiver_ = exchange_->trainer(1).Wait(1);
    sender_ = exchange_->trainer(0).Wait(1);
    exchange_->trainer(1).Cancel(1);
    cluster_->Run();
    EXPECT_FALSE(receiver_->ok()) << "n0 may still write";
    EXPECT_GT(cluster_->fabric().OpenKeys(cluster_->AddressOf(1, 0)), 0u);
    EXPECT_EQ(cluster_->node(1).engine->Snapshot(0).counters.open_zones, 1u);
  }
  uint64_t Disconnects() {
    return cluster_->node(1).rails[0]->counters().disconnects.load() +
           cluster_->node(1).rails[1]->counters().disconnects.load();
  }
  void Thaw() {
    for (auto& rail : cluster_->node(0).rails) rail->frozen = false;
    cluster_->Run();
  }
  // Terminal means that no byte changes any more.
  void ExpectUntouchedWhile(const std::function<void()>& body) {
    const Buffer& receive = *exchange_->trainer(1).receive;
    const std::vector<uint8_t> before(receive.data(), receive.data() + receive.size());
    body();
    EXPECT_TRUE(std::equal(before.begin(), before.end(), receive.data()));
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Exchange> exchange_;
  Grant grant_;  // to n0
  std::shared_ptr<absl::StatusOr<JobReport>> receiver_, sender_;
};

INSTANTIATE_TEST_SUITE_P(Zones, RemoteQuiescenceTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Weak" : "Windows"; });

TEST_P(RemoteQuiescenceTest, ZonesCloseWhenTheSenderHasStopped) {
  Begin();
  Thaw();
  ASSERT_TRUE(receiver_->ok());
  ASSERT_TRUE(sender_->ok());
  EXPECT_EQ((*receiver_)->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Disconnects(), 0u) << "it said QUIESCED: no connection had to be broken";
  cluster_->ExpectNothingOpen();
}

TEST_P(RemoteQuiescenceTest, ASenderThatDoesNotStopIsWaitedForOneSecond) {
  Begin();
  cluster_->Advance(absl::Milliseconds(900));
  cluster_->Run();
  EXPECT_FALSE(receiver_->ok());
  cluster_->Advance(absl::Milliseconds(200));
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  ExpectUntouchedWhile([&] { Thaw(); });
  ASSERT_TRUE(sender_->ok());
  cluster_->ExpectNothingOpen();
}

TEST_P(RemoteQuiescenceTest, APeerThatIsLostMeanwhileIsNotWaitedFor) {
  Begin();
  cluster_->node(1).engine->OnPeerDown("n0", "silent for 5 s");
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  EXPECT_EQ((*receiver_)->status.code(), absl::StatusCode::kCancelled);
  ExpectUntouchedWhile([&] { Thaw(); });
}

// Bytes on the wire of a connection that failed at its sender may yet land, though the sender has stopped.
TEST_P(RemoteQuiescenceTest, ConnectionsThatFailedAtTheSenderAreEndedHereToo) {
  Begin();
  ASSERT_EQ(grant_.keys.size(), 2u);
  const RailConnection first = grant_.keys[0].rail, second = grant_.keys[1].rail;
  ASSERT_EQ(first.rail, RailIndex(0));
  // One connection that the keys are for, one that is over, and a rail that is not there.
  cluster_->node(1).engine->OnPeerMessage("n0", BootId(1000),
                                          Quiesced{{exchange_->trainer(1).group->epoch, JobSeq(1)},
                                                   {first, {RailIndex(1), second.connection + 1}, {RailIndex(70), 1}}});
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  const auto broken = [&](size_t rail) { return cluster_->node(0).rails[rail]->counters().disconnects.load(); };
  EXPECT_EQ(broken(0), GetParam() ? 1u : 0u) << "without windows only the end of the connection is safe";
  EXPECT_EQ(broken(1), 0u);
  ExpectUntouchedWhile([&] { Thaw(); });
  cluster_->ExpectNothingOpen();
}

TEST_P(RemoteQuiescenceTest, TheSenderNamesTheConnectionsThatFailed) {
  Cluster cluster({.remote = true, .rails = 3, .plan = {.chunk_bytes = 64 << 10}, .weak_zones = GetParam()});
  Exchange exchange(&cluster, "g", {{0, 4'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  Grant grant;
  cluster.Run([&] {
    for (const Ready* ready : Outgoing<Ready>(cluster, 1)) grant = ready->grant.value_or(grant);
    return cluster.HasReceived(1, 0);
  });
  ASSERT_EQ(grant.keys.size(), 3u);
  cluster.Hold(0, 1);
  for (size_t r : {0u, 2u}) cluster.fabric().FailOrder(cluster.AddressOf(0, r), 0, SendResult::kRailFailed, ETIMEDOUT);
  cluster.Run();
  ASSERT_EQ(Outgoing<Rehome>(cluster, 0).size(), 1u) << "one at a time";
  const Rehome& rehome = *Outgoing<Rehome>(cluster, 0)[0];
  EXPECT_FALSE(rehome.failed.empty());
  for (const RailConnection& rail : rehome.failed) EXPECT_THAT(rail, AnyOf(grant.keys[0].rail, grant.keys[2].rail));
  exchange.trainer(1).Cancel(1);
  cluster.Run();
  ASSERT_EQ(Outgoing<Rehome>(cluster, 0).size(), 1u);
  ASSERT_FALSE(Outgoing<Quiesced>(cluster, 0).empty());
  EXPECT_THAT(Outgoing<Quiesced>(cluster, 0)[0]->failed, UnorderedElementsAre(grant.keys[0].rail, grant.keys[2].rail));
  cluster.Release(0, 1);
  cluster.Run();
  cluster.ExpectNothingOpen();
}

TEST_P(RemoteQuiescenceTest, TheSendersWordMayBeLateOrLost) {
  Begin();
  cluster_->Hold(0, 1);
  Thaw();
  EXPECT_FALSE(receiver_->ok()) << "its QUIESCED is under way";
  cluster_->Advance(absl::Milliseconds(1100));
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  cluster_->Release(0, 1);
  cluster_->Run();
  cluster_->ExpectNothingOpen();
}

}  // namespace
}  // namespace railsd::testing
