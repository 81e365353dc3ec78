// Every way in which a work request can end badly, on rails that write into remote memory: what the job says, that
// nothing stays behind, and that the next job is as good as any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/support/test_memory.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

struct Case {
  std::string name;
  // Before the jobs are submitted.
  std::function<void(Cluster&)> before;
  // When bytes have moved.
  std::function<void(Cluster&)> during;
  absl::StatusCode code;  // kOk: the job ends well all the same
  std::string text;       // of the sender's status
  size_t rails = 2;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class CompletionErrorTest : public ::testing::TestWithParam<Case> {};

TEST_P(CompletionErrorTest, IsToldAndLeavesNothing) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = GetParam().rails, .plan = {.chunk_bytes = 64 << 10}});
  {
    Exchange exchange(&cluster, "g", {{0, 2'000'000}, {1'000'000, 0}});
    if (GetParam().before) GetParam().before(cluster);
    exchange.SubmitAll(1, 3);
    if (GetParam().during) {
      cluster.Run([&] { return cluster.HasReceived(1, 0); });
      ASSERT_TRUE(cluster.HasReceived(1, 0));
      GetParam().during(cluster);
    }
    cluster.RunFor(absl::Seconds(6));  // for those that wait for a word of the other side
    for (uint32_t r : {0u, 1u}) {
      const JobReport report = exchange.Report(r, 1);
      EXPECT_EQ(report.status.code(), GetParam().code) << report.status;
      EXPECT_THAT(std::string(report.status.message()), HasSubstr(GetParam().text));
    }
    if (GetParam().code == absl::StatusCode::kOk) exchange.ExpectBytes();
    cluster.ExpectNothingOpen();
  }
  for (size_t n : {0u, 1u}) {
    for (size_t r = 0; r < GetParam().rails; ++r) {
      cluster.node(n).rails[r]->watched.tamper = nullptr;
      cluster.fabric().FailOpenZones(cluster.AddressOf(n, r), 0);
      cluster.fabric().Heal(cluster.AddressOf(n, r));
    }
  }
  cluster.Run();
  Exchange next(&cluster, "next", {{0, 700'000}, {700'000, 0}});
  next.RunJob(1);
  cluster.ExpectNothingOpen();
}

// The order that is the n-th to be done on n0's rail 0.
std::function<void(Cluster&)> Order(uint64_t nth, SendResult result, int error) {
  return [=](Cluster& c) { c.fabric().FailOrder(c.AddressOf(0, 0), nth, result, error); };
}
std::function<void(Cluster&)> Tamper(std::function<bool(SendOrder&)> tamper) {
  return [=](Cluster& c) {
    c.node(0).rails[0]->watched.tamper = [=, done = false](SendOrder& order) mutable {
      return done || (done = true, tamper(order));
    };
  };
}
// Orders point at the engine's streams; the stream that a device sees may differ.
std::unique_ptr<SendStream> CopyOf(const SendStream& stream) {
  auto copy = std::make_unique<SendStream>();
  copy->job = stream.job;
  copy->peer = stream.peer;
  copy->memory = stream.memory;
  copy->zone = stream.zone;
  copy->remote = stream.remote;
  return copy;
}
bool SpoilOrder(SendOrder& order, const std::function<void(SendStream&)>& spoil) {
  static std::deque<std::unique_ptr<SendStream>> spoilt;  // until the last order has ended
  spoilt.push_back(CopyOf(*order.stream));
  spoil(*spoilt.back());
  order.stream = spoilt.back().get();
  return true;
}
std::function<void(Cluster&)> Spoil(const std::function<void(SendStream&)>& spoil) {
  return Tamper([=](SendOrder& order) { return SpoilOrder(order, spoil); });
}

constexpr auto kOk = absl::StatusCode::kOk;

std::vector<Case> Cases() {
  const auto dies = [](size_t n) { return [n](Cluster& c) { c.fabric().Fail(c.AddressOf(n, 0)); }; };
  const std::vector<Case> cases{
      Case{"RetriesExceededAtOnce", Order(0, SendResult::kRailFailed, ETIMEDOUT), {}, kOk, ""},
      Case{"RetriesExceededLater", Order(7, SendResult::kRailFailed, ETIMEDOUT), {}, kOk, ""},
      Case{"ReceiverNotReady", {}, Order(1, SendResult::kRailFailed, EAGAIN), kOk, ""},
      Case{"RemoteOperationError", {}, Order(2, SendResult::kRailFailed, EREMOTEIO), kOk, ""},
      Case{"LocalMemoryFault",
           Order(3, SendResult::kMemoryFault, EFAULT),
           {},
           absl::StatusCode::kFailedPrecondition,
           "a page of a send range of rank 0 cannot be read (rail 0 to n1)"},
      Case{"EndpointGivenUp",
           Order(3, SendResult::kStopped, 0),
           {},
           absl::StatusCode::kUnavailable,
           "the endpoint of rail 0 to n1 was given up"},
      Case{"ClosedUnderIt",
           Order(3, SendResult::kZoneClosed, 0),
           {},
           absl::StatusCode::kAborted,
           "n1 closed its zone for job 1 early"},
      Case{"WrongKey", Spoil([](SendStream& s) { s.remote.keys[0][0] ^= 0x1010; }), {}, kOk, ""},
      Case{"AddressOutside", Spoil([](SendStream& s) { s.remote.pieces[0].address -= 1 << 30; }), {}, kOk, ""},
      Case{"NoKeyAtAll", Spoil([](SendStream& s) { s.remote.keys.clear(); }), {}, kOk, ""},
      Case{"FenceForAnotherZone",
           [](Cluster& c) {
             c.node(0).rails[0]->watched.tamper = [done = false](SendOrder& order) mutable {
               if (order.weight == 0 || std::exchange(done, true)) return true;
               return SpoilOrder(order, [](SendStream& s) { s.zone.generation ^= 1; });
             };
           },
           {},
           kOk,
           ""},
      Case{"FlushedByADeadRail", {}, dies(0), kOk, ""},
      Case{"FlushedByADeadPeerRail", {}, dies(1), kOk, ""},
      Case{"DeadBeforehand", dies(1), {}, kOk, ""},
      Case{"NoRoomForWindows",
           [](Cluster& c) { c.fabric().FailOpenZones(c.AddressOf(1, 0), ENOMEM); },
           {},
           absl::StatusCode::kResourceExhausted,
           "rail 0 of n1 cannot open a zone to n0: Cannot allocate memory"},
      Case{"NoConnectionForWindowsOnOneRail",
           [](Cluster& c) { c.fabric().FailOpenZones(c.AddressOf(1, 1), ENOTCONN); },
           {},
           kOk,
           ""}};
  // Where there is no other rail the job goes on over the next connection, if there is one.
  std::vector<Case> all;
  for (const Case& c : cases) {
    all.push_back(c);
    if (c.name == "NoConnectionForWindowsOnOneRail") continue;
    all.push_back(c);
    all.back().rails = 1;
    all.back().name += "OnTheOnlyRail";
    if (!c.name.starts_with("FlushedBy") && c.name != "DeadBeforehand") continue;
    all.back().code = absl::StatusCode::kUnavailable;
    all.back().text = "for 5s (job 1)";
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Errors, CompletionErrorTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// Rails that die and come back at any moment, again and again, sometimes all of them: every byte arrives, and is
// counted once.
TEST(CompletionErrorsTest, JobsSurviveRailsThatComeAndGo) {
  uint64_t rehomed = 0;
  for (const uint64_t seed : Seeds(30)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const bool weak = seed % 2 == 0;
    Cluster cluster(
        {.remote = true, .nodes = 3, .rails = 3, .seed = seed, .plan = {.chunk_bytes = 16 << 10}, .weak_zones = weak});
    Exchange exchange(&cluster, 6, "g", {.buffer_bytes = 2 << 20});
    const auto lengths = Exchange::RandomLengths(6, 200'000, random);
    exchange.SetLengths(lengths, seed);
    for (size_t i = 0; i < 9; ++i) cluster.fabric().SetStepBytes(cluster.AddressOf(i / 3, i % 3), 8 << 10);
    exchange.SubmitAll(1, 2);
    cluster.FailRails(8, random);
    cluster.Advance(absl::Milliseconds(50));  // a sender waits so long before it asks for keys once more
    exchange.ExpectCompletes(1);
    if (::testing::Test::HasFailure()) return;
    for (uint32_t n = 0; n < 3; ++n) {  // ranks n and n + 3; whoever ends last has seen all
      const auto first = (*exchange.trainer(n).Wait(1))->rail_tx_bytes;
      const auto second = (*exchange.trainer(n + 3).Wait(1))->rail_tx_bytes;
      uint64_t sent = 0, expected = 0;
      for (size_t r = 0; r < 3; ++r) sent += std::max(first[r], second[r]);
      for (uint32_t to = 0; to < 6; ++to) expected += to % 3 == n ? 0 : lengths[n][to] + lengths[n + 3][to];
      EXPECT_EQ(sent, expected) << "node " << n;
      rehomed += cluster.node(n).engine->Snapshot(0).counters.rehomed_exchanges;
    }
    cluster.ExpectNothingOpen();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(rehomed > 0 || Seeds(30).size() == 1);
}

// Once all rails to a peer were cut there was no key left that was good for anything; now REHOME brings others.
TEST(CompletionErrorsTest, JobsGoOnAfterAllRailsWereCut) {
  for (const bool weak : {false, true}) {
    Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}, .weak_zones = weak});
    Exchange exchange(&cluster, "g", {{0, 2'000'000}, {1'000'000, 0}});
    exchange.SubmitAll(1);
    Grant grant;
    Rehome asked;
    Rehomed answered;
    const auto watch = [&] {
      for (const Ready* ready : Outgoing<Ready>(cluster, 1)) grant = ready->grant.value_or(grant);
      for (const Rehome* rehome : Outgoing<Rehome>(cluster, 0)) {
        asked.failed.insert(asked.failed.end(), rehome->failed.begin(), rehome->failed.end());
      }
      for (const Rehomed* rehomed : Outgoing<Rehomed>(cluster, 1)) answered = *rehomed;
      return false;
    };
    cluster.Run([&] { return watch() || cluster.HasReceived(1, 0); });
    ASSERT_EQ(grant.keys.size(), 2u);
    for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(1, r));
    cluster.Run(watch);
    cluster.Advance(absl::Seconds(4));
    cluster.Run(watch);
    EXPECT_FALSE(exchange.trainer(0).Wait(1)->ok()) << "it waits for a rail";
    EXPECT_TRUE(answered.exchanges.empty()) << "there are no keys to answer with";
    cluster.fabric().Heal(cluster.AddressOf(1, 1));
    cluster.Run(watch);
    exchange.ExpectDone(1);
    exchange.ExpectBytes();
    EXPECT_THAT(asked.failed, AllOf(Contains(grant.keys[0].rail), Contains(grant.keys[1].rail)));
    ASSERT_EQ(answered.exchanges.size(), 1u);
    EXPECT_EQ(answered.exchanges[0].state, Rehomed::State::kOpen);
    ASSERT_EQ(answered.exchanges[0].keys.size(), 1u);
    EXPECT_EQ(answered.exchanges[0].keys[0].rail.rail, RailIndex(1));
    EXPECT_GT(answered.exchanges[0].keys[0].rail.connection, grant.keys[1].rail.connection);
    for (size_t n : {0u, 1u}) EXPECT_GE(cluster.node(n).engine->Snapshot(0).counters.rehomed_exchanges, 1u);
    cluster.ExpectNothingOpen();
  }
}

// The exchange has posted nothing and is not in doubt: the grant's keys are for connections that are over.
TEST(CompletionErrorsTest, KeysThatComeTooLateAreAskedForAnew) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 100'000}, {0, 0}});
  cluster.Hold(1, 0);
  exchange.SubmitAll(1);
  cluster.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster, 1).size(), 1u);
  for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(1, r));
  cluster.Run();
  for (size_t r : {0u, 1u}) cluster.fabric().Heal(cluster.AddressOf(1, r));
  cluster.Release(1, 0);
  size_t asked = 0;
  cluster.Run([&] {
    for (const Rehome* rehome : Outgoing<Rehome>(cluster, 0)) {
      ++asked;
      EXPECT_TRUE(rehome->failed.empty());
    }
    return false;
  });
  EXPECT_GT(asked, 0u);
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
  EXPECT_EQ(cluster.node(0).rails[0]->counters().endpoint_errors.load(), 0u) << "a void key was never used";
  cluster.ExpectNothingOpen();
}

// A sender whose acknowledgements are lost asks, and hears that everything is there.
TEST(CompletionErrorsTest, WhatHasArrivedIsNotSentAgain) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 1000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] {
    for (auto& [to, message] : cluster.node(1).outbox) {
      if (std::holds_alternative<Ready>(message)) return true;
    }
    return false;
  });
  // The order that carries the bytes and the fence is delivered, but comes back as failed, and then its connection
  // ends.
  SteppedRail& rail = *cluster.node(0).rails[0];
  bool failed = false;
  rail.watched.on_event = [&](RailEvent& event) {
    if (event.kind != RailEvent::Kind::kSendDone) return;
    event.result = SendResult::kRailFailed;
    event.error_number = ETIMEDOUT;
    failed = true;
  };
  cluster.Run([&] { return failed; });
  cluster.fabric().Break(cluster.AddressOf(0, 0), PeerIndex(0), ETIMEDOUT);
  exchange.ExpectCompletes(1);
  EXPECT_EQ(rail.counters().tx_chunks.load(), 1u);
  EXPECT_EQ(cluster.node(0).engine->Snapshot(0).counters.rehomed_exchanges, 0u);
  cluster.ExpectNothingOpen();
}

// A sender that has asked waits for the answer: fences of the round that may be over by then prove nothing, though the
// rails acknowledge them. Else the sender takes such an exchange for done, and its receiver waits for ever.
TEST(CompletionErrorsTest, NothingButTheAnswerDecidesWhatWasAsked) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", {{0, 128 << 10}, {0, 0}});
  cluster.node(0).rails[1]->frozen = true;
  // Rail 0 sends its half and its fence, and does not know that its half has arrived.
  cluster.node(0).rails[0]->watched.on_event = [](RailEvent& event) {
    if (event.kind == RailEvent::Kind::kSendDone && event.length_bytes > 0) event.result = SendResult::kRailFailed;
  };
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.node(0).rails[0]->counters().tx_chunks.load() > 0; });
  cluster.Hold(1, 0);
  cluster.Run();
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  cluster.Run();
  ASSERT_EQ(Outgoing<Rehomed>(cluster, 1).size(), 1u);
  const Rehomed::Exchange answer = Outgoing<Rehomed>(cluster, 1)[0]->exchanges.at(0);
  EXPECT_EQ(answer.state, Rehomed::State::kOpen);
  EXPECT_EQ(answer.round, 1u);
  cluster.node(0).rails[0]->watched.on_event = nullptr;
  cluster.node(0).rails[1]->frozen = false;  // its fence is of the round before
  auto sender = exchange.trainer(0).Wait(1), receiver = exchange.trainer(1).Wait(1);
  cluster.Run();
  EXPECT_FALSE(sender->ok());
  EXPECT_FALSE(receiver->ok()) << "the fences of both rounds do not add up";
  cluster.Release(1, 0);
  exchange.ExpectCompletes(1);
  cluster.ExpectNothingOpen();
}

struct RehomeLie {
  std::string name;
  std::function<void(Rehomed*)> tell;
  std::string text;
  absl::StatusCode code = absl::StatusCode::kInternal;
};
void PrintTo(const RehomeLie& lie, std::ostream* out) { *out << lie.name; }

class LyingRehomeTest : public ::testing::TestWithParam<RehomeLie> {};

TEST_P(LyingRehomeTest, FailsTheJob) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", {{0, 2'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.node(0).rails[1]->frozen = true;
  cluster.Hold(1, 0);
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  cluster.Run();
  ASSERT_EQ(Outgoing<Rehomed>(cluster, 1).size(), 1u);
  Rehomed* const answer = Outgoing<Rehomed>(cluster, 1)[0];
  ASSERT_EQ(answer->exchanges.size(), 1u);
  GetParam().tell(answer);
  cluster.Release(1, 0);
  cluster.Run();
  cluster.node(0).rails[1]->frozen = false;
  cluster.Run();
  exchange.ExpectFailed(1, GetParam().code, AllOf(HasSubstr("REHOMED of n1 for job 1: "), HasSubstr(GetParam().text)));
  cluster.ExpectNothingOpen();
}

const char* const kOthers = "it answers for other exchanges than it was asked about";

INSTANTIATE_TEST_SUITE_P(
    Lies, LyingRehomeTest,
    ::testing::Values(
        RehomeLie{"AnotherJob", [](Rehomed* a) { a->exchanges[0].job.seq = JobSeq(9); }, kOthers},
        RehomeLie{"NoExchange", [](Rehomed* a) { a->exchanges.clear(); }, kOthers},
        RehomeLie{"OneTooMany", [](Rehomed* a) { a->exchanges.push_back(a->exchanges[0]); }, kOthers},
        RehomeLie{"TheSameRound", [](Rehomed* a) { a->exchanges[0].round = 0; }, "round 0 does not follow round 0"},
        RehomeLie{"ALaterRound", [](Rehomed* a) { a->exchanges[0].round = 3; }, "round 3 does not follow round 0"},
        RehomeLie{"CompleteThoughNotAllWasSent", [](Rehomed* a) { a->exchanges[0].state = Rehomed::State::kComplete; },
                  "it has everything, though"},
        RehomeLie{"AbortedForNoReason", [](Rehomed* a) { a->exchanges[0].state = Rehomed::State::kAborted; },
                  "the receiver has aborted it and did not say why", absl::StatusCode::kUnavailable},
        RehomeLie{"KeysMissing",
                  [](Rehomed* a) {
                    a->exchanges[0].keys.push_back({{RailIndex(0), 99}, {}});
                  },
                  "0 keys of rail 0 for 1 ranges"},
        RehomeLie{"KeysOfARailInUse",
                  [](Rehomed* a) {
                    a->exchanges[0].keys.push_back({{RailIndex(1), 99}, {7}});
                  },
                  "keys of rail 1, which is in use"}),
    [](const auto& info) { return info.param.name; });

TEST(CompletionErrorsTest, ZonesAreOpenedAgainWhenARailIsUpAgain) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 100'000}, {0, 0}});
  for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(1, r));
  cluster.Run();
  exchange.SubmitAll(1);
  cluster.Run();
  EXPECT_FALSE(exchange.trainer(1).Wait(1)->ok());
  cluster.fabric().Heal(cluster.AddressOf(1, 1));
  exchange.ExpectCompletes(1);
  cluster.ExpectNothingOpen();
}

// Its rail fails under each round, until there are no more.
TEST(CompletionErrorsTest, AnUnregisteredSegmentIsNeverRead) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 1000}, {0, 0}});
  cluster.node(0).rails[0]->watched.tamper = [&](SendOrder& order) {
    return order.length_bytes == 0 || SpoilOrder(order, [](SendStream& naked) {
             Buffer buffer(4096);
             auto segment = Segment::Map(SegmentId(9), buffer.Dup(), 4096).value();
             naked.memory = MemoryRanges();
             testing::Append(&naked.memory, segment, 0, 1000);
           });
  };
  exchange.SubmitAll(1);
  cluster.Run();
  exchange.ExpectFailed(1, "n0 moves job 1 off failed rails: more than 15 times");
  const Buffer& receive = *exchange.trainer(1).receive;
  EXPECT_EQ(std::count(receive.data(), receive.data() + receive.size(), 0xee), 1 << 20) << "nothing has arrived";
  cluster.ExpectNothingOpen();
}

TEST(CompletionErrorsTest, ARegistrationThatIsRefusedLeavesNoneBehind) {
  Cluster cluster({.remote = true, .nodes = 1, .rails = 3});
  cluster.fabric().RefuseRegistrations(cluster.AddressOf(0, 2), true);
  Buffer buffer(4096);
  auto segment = Segment::Map(SegmentId(1), buffer.Dup(), 4096).value();
  std::vector<std::shared_ptr<MemoryRegistrar>> registrars;
  for (auto& rail : cluster.node(0).rails) registrars.push_back(rail->transport().Info().registrar);
  const absl::Status status = segment->Register(registrars);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("segment 1"));
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(cluster.fabric().Registrations(cluster.AddressOf(0, r)), 0u);
  cluster.fabric().RefuseRegistrations(cluster.AddressOf(0, 2), false);
  EXPECT_TRUE(segment->Register(registrars).ok());
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(cluster.fabric().Registrations(cluster.AddressOf(0, r)), 1u);
  segment.reset();
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(cluster.fabric().Registrations(cluster.AddressOf(0, r)), 0u);
}

}  // namespace
}  // namespace railsd::testing
