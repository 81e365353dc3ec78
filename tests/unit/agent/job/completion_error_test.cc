// Every way in which a work request can end badly, on rails that write into remote memory: what the job says, that
// nothing stays behind, and that the next job is as good as any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/job/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AnyOf;
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
    Exchange exchange(&cluster, 2, "g", 4 << 20);
    exchange.JoinAll();
    exchange.SetLengths({{0, 2'000'000}, {1'000'000, 0}}, 1);
    if (GetParam().before) GetParam().before(cluster);
    exchange.SubmitAll(1, 3);
    if (GetParam().during) {
      cluster.Run([&] { return cluster.HasReceived(1, 0); });
      ASSERT_TRUE(cluster.HasReceived(1, 0));
      GetParam().during(cluster);
    }
    cluster.Run();
    cluster.Advance(absl::Seconds(6));  // for those that wait for a word of the other side
    cluster.Run();
    for (uint32_t r : {0u, 1u}) {
      auto report = *exchange.trainer(r).Wait(1);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->status.code(), GetParam().code) << report->status;
      EXPECT_THAT(std::string(report->status.message()), HasSubstr(GetParam().text));
    }
    if (GetParam().code == absl::StatusCode::kOk) exchange.ExpectBytes();
    cluster.ExpectNothingOpen();
  }
  for (size_t n : {0u, 1u}) {
    for (size_t r = 0; r < GetParam().rails; ++r) {
      cluster.node(n).rails[r]->tamper = nullptr;
      cluster.fabric().FailOpenZones(cluster.AddressOf(n, r), 0);
      cluster.fabric().Heal(cluster.AddressOf(n, r));
    }
  }
  cluster.Run();
  Exchange next(&cluster, 2, "next", 4 << 20);
  next.JoinAll();
  next.SetLengths({{0, 700'000}, {700'000, 0}}, 2);
  next.SubmitAll(1);
  cluster.Run();
  next.ExpectDone(1);
  next.ExpectBytes();
  cluster.ExpectNothingOpen();
}

// The order that is the n-th to be done on n0's rail 0.
std::function<void(Cluster&)> Order(uint64_t nth, SendResult result, int error) {
  return [=](Cluster& c) { c.fabric().FailOrder(c.AddressOf(0, 0), nth, result, error); };
}
std::function<void(Cluster&)> Tamper(std::function<bool(SendOrder&)> tamper) {
  return [=](Cluster& c) {
    c.node(0).rails[0]->tamper = [=, done = false](SendOrder& order) mutable {
      return done || (done = true, tamper(order));
    };
  };
}
// Orders point at the engine's flows; the flow that a device sees may differ.
std::function<void(Cluster&)> Spoil(std::function<void(RemoteZone&)> spoil) {
  auto flow = std::make_shared<SendFlow>();
  return Tamper([=](SendOrder& order) {
    *flow = *order.flow;
    spoil(flow->remote);
    order.flow = flow.get();
    return true;
  });
}

// Both ends see it; who says it first is a matter of chance.
const char* const kRailFailed = "failed in the middle of job 1";
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

std::vector<Case> Cases() {
  const std::vector<Case> cases{
      Case{"RetriesExceededAtOnce", Order(0, SendResult::kRailFailed, ETIMEDOUT), {}, kUnavailable, kRailFailed},
      Case{"RetriesExceededLater", Order(7, SendResult::kRailFailed, ETIMEDOUT), {}, kUnavailable, kRailFailed},
      Case{"ReceiverNotReady", {}, Order(1, SendResult::kRailFailed, EAGAIN), kUnavailable, kRailFailed},
      Case{"RemoteOperationError", {}, Order(2, SendResult::kRailFailed, EREMOTEIO), kUnavailable, kRailFailed},
      Case{"LocalMemoryFault",
           Order(3, SendResult::kMemoryFault, EFAULT),
           {},
           absl::StatusCode::kFailedPrecondition,
           "a page of a send range of rank 0 cannot be read (rail 0 to n1)"},
      Case{"EndpointGivenUp",
           Order(3, SendResult::kStopped, 0),
           {},
           kUnavailable,
           "the endpoint of rail 0 to n1 was given up"},
      Case{"ClosedUnderIt",
           Order(3, SendResult::kZoneClosed, 0),
           {},
           absl::StatusCode::kAborted,
           "n1 closed its zones for job 1 early"},
      Case{"WrongKey", Spoil([](RemoteZone& z) { z.keys[0] ^= 0x1010; }), {}, kUnavailable, kRailFailed},
      Case{"AddressOutside",
           Spoil([](RemoteZone& z) { z.pieces[0].address -= 1 << 30; }),
           {},
           kUnavailable,
           kRailFailed},
      Case{"NoKeyAtAll", Spoil([](RemoteZone& z) { z.keys.clear(); }), {}, kUnavailable, kRailFailed},
      Case{"WrongFenceSlot",
           [](Cluster& c) {
             auto flow = std::make_shared<SendFlow>();
             c.node(0).rails[0]->tamper = [=](SendOrder& order) {
               if (order.fences == 0) return true;
               *flow = *order.flow;
               flow->remote.fence.generation ^= 1;
               order.flow = flow.get();
               return true;
             };
           },
           {},
           kUnavailable,
           kRailFailed},
      Case{"FlushedByADeadRail", {}, [](Cluster& c) { c.fabric().Fail(c.AddressOf(0, 0)); }, kUnavailable, kRailFailed},
      Case{"FlushedByADeadPeerRail",
           {},
           [](Cluster& c) { c.fabric().Fail(c.AddressOf(1, 0)); },
           kUnavailable,
           kRailFailed},
      Case{"ARailThatIsDownBeforehandIsDoneWithout",
           [](Cluster& c) { c.fabric().Fail(c.AddressOf(1, 0)); },
           {},
           absl::StatusCode::kOk,
           ""},
      Case{"NoRoomForWindows",
           [](Cluster& c) { c.fabric().FailOpenZones(c.AddressOf(1, 1), ENOMEM); },
           {},
           absl::StatusCode::kResourceExhausted,
           "rail 1 of n1 cannot open the zones of job 1 to n0: Cannot allocate memory"},
      Case{"NoConnectionForWindowsOnOneRail",
           [](Cluster& c) { c.fabric().FailOpenZones(c.AddressOf(1, 1), ENOTCONN); },
           {},
           absl::StatusCode::kOk,
           ""}};
  // What ends a rail's connection ends the job where there is no other rail, and only then.
  std::vector<Case> all;
  for (const Case& c : cases) {
    all.push_back(c);
    if (c.code != kUnavailable || c.name == "EndpointGivenUp") continue;
    all.back().rails = 1;
    all.back().name += "OnTheOnlyRail";
    all.push_back(c);
    all.back().code = absl::StatusCode::kOk;
    all.back().text = "";
    all.back().name += "IsRehomed";
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Errors, CompletionErrorTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// Rails that die and come back at any moment, again and again: as long as one is left every byte arrives, once.
TEST(CompletionErrorsTest, JobsSurviveRailsThatComeAndGo) {
  for (const uint64_t seed : Seeds(30)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const bool weak = seed % 2 == 0;
    Cluster cluster(
        {.remote = true, .nodes = 3, .rails = 4, .seed = seed, .plan = {.chunk_bytes = 16 << 10}, .weak_zones = weak});
    Exchange exchange(&cluster, 6, "g", 2 << 20);
    exchange.JoinAll();
    const auto lengths = Exchange::RandomLengths(6, 200'000, random);
    exchange.SetLengths(lengths, seed);
    for (size_t n = 0; n < 3; ++n) {
      for (auto& rail : cluster.node(n).rails) {
        rail->tamper = [](const SendOrder& order) {
          EXPECT_LT(order.zone.index, 4u) << "two ranks here, two there: it names the queue pair";
          return true;
        };
      }
    }
    exchange.SubmitAll(1, 2);
    for (size_t r = 1; r < 4; ++r) {  // rail 0 lives
      uint64_t steps = random() % 40;
      cluster.Run([&] { return steps-- == 0; });
      const std::string address = cluster.AddressOf(random() % 3, r);
      cluster.fabric().Fail(address);
      steps = random() % 10;
      cluster.Run([&] { return steps-- == 0; });
      if (random() % 2 == 0) cluster.fabric().Heal(address);
    }
    cluster.Run();
    exchange.ExpectDone(1);
    exchange.ExpectBytes();
    for (uint32_t n = 0; n < 3; ++n) {  // ranks n and n + 3; whoever ends last has seen all
      const auto first = (*exchange.trainer(n).Wait(1))->rail_tx_bytes;
      const auto second = (*exchange.trainer(n + 3).Wait(1))->rail_tx_bytes;
      uint64_t sent = 0, expected = 0;
      for (size_t r = 0; r < 4; ++r) sent += std::max(first[r], second[r]);
      for (uint32_t to = 0; to < 6; ++to) expected += to % 3 == n ? 0 : lengths[n][to] + lengths[n + 3][to];
      EXPECT_EQ(sent, expected) << "node " << n;
    }
    cluster.ExpectNothingOpen();
    if (::testing::Test::HasFailure()) return;
  }
}

// A sender whose acknowledgements are lost asks, and hears that everything is there.
TEST(CompletionErrorsTest, WhatHasArrivedIsNotSentAgain) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 1000}, {0, 0}}, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] {
    for (auto& [to, message] : cluster.node(1).outbox) {
      if (std::holds_alternative<Ready>(message)) return true;
    }
    return false;
  });
  // The order that carries the bytes and the fence is delivered, but comes back as failed.
  SteppedRail& rail = *cluster.node(0).rails[0];
  rail.on_event = [](RailEvent& event) {
    if (event.kind != RailEvent::Kind::kSendDone) return;
    event.result = SendResult::kRailFailed;
    event.error_number = ETIMEDOUT;
  };
  cluster.Run();
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
  EXPECT_EQ(rail.counters().tx_chunks.load(), 1u);
  EXPECT_EQ(cluster.node(0).engine->Snapshot(0).counters.rehomed_flows, 0u);
  cluster.ExpectNothingOpen();
}

// Whoever has asked waits for the answer: fences of the round that may be over by then prove nothing, though the rails
// acknowledge them. Once the sender took such a flow for done, and its receiver waited for ever.
TEST(CompletionErrorsTest, NothingButTheAnswerDecidesWhatWasAsked) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 128 << 10}, {0, 0}}, 1);
  cluster.node(0).rails[1]->frozen = true;
  exchange.SubmitAll(1);
  cluster.Run();  // rail 0 has sent its half and its fence
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  cluster.Hold(1, 0);
  cluster.Run();
  ASSERT_EQ(Outgoing<Rehomed>(cluster, 1).size(), 1u);
  EXPECT_FALSE(Outgoing<Rehomed>(cluster, 1)[0]->flows[0].arrived);
  cluster.node(0).rails[1]->frozen = false;  // its fence is of the round before
  cluster.Run();
  cluster.Release(1, 0);
  cluster.Run();
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
  cluster.ExpectNothingOpen();
}

class LyingRehomeTest : public ::testing::TestWithParam<std::pair<const char*, std::function<void(Rehomed*)>>> {};

TEST_P(LyingRehomeTest, FailsTheJob) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, 2, "g", 4 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 2'000'000}, {0, 0}}, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.Hold(1, 0);
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  Rehomed* answer = nullptr;
  cluster.Run([&] {
    for (auto& [to, message] : cluster.node(1).outbox) {
      if (answer == nullptr) answer = std::get_if<Rehomed>(&message);
    }
    return answer != nullptr;
  });
  ASSERT_NE(answer, nullptr);
  GetParam().second(answer);
  cluster.Release(1, 0);
  cluster.Run();
  for (uint32_t r : {0u, 1u}) {
    auto report = *exchange.trainer(r).Wait(1);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(report->status.message()),
                AnyOf(HasSubstr("which cannot be"), HasSubstr("does not answer")));
  }
  cluster.ExpectNothingOpen();
}

INSTANTIATE_TEST_SUITE_P(Lies, LyingRehomeTest,
                         ::testing::Values(std::pair{"AnotherZone", [](Rehomed* a) { a->flows[0].zone = 9; }},
                                           std::pair{"NoFlow", [](Rehomed* a) { a->flows.clear(); }},
                                           std::pair{"AnotherRound", [](Rehomed* a) { a->flows[0].round = 3; }},
                                           std::pair{"ArrivedBeforeItWasSent",
                                                     [](Rehomed* a) { a->flows[0].arrived = true; }}),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(CompletionErrorsTest, ASenderThatMovesItsFlowsTooOftenIsRefused) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 2, "g", 4 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 2'000'000}, {0, 0}}, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  for (auto& rail : cluster.node(0).rails) rail->frozen = true;
  const JobKey job{exchange.trainer(1).group->epoch, JobSeq(1)};
  Engine& engine = *cluster.node(1).engine;
  for (uint8_t round = 0; round < 7; ++round) {
    engine.OnPeerMessage("n0", BootId(1000), Rehome{job, 1, {{0, round}}});
    EXPECT_EQ(engine.Snapshot(0).active_jobs.size(), 1u);
  }
  engine.OnPeerMessage("n0", BootId(1000), Rehome{job, 1, {{0, 7}}});
  for (auto& rail : cluster.node(0).rails) rail->frozen = false;
  cluster.Run();
  auto report = *exchange.trainer(1).Wait(1);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(std::string(report->status.message()), HasSubstr("more than 7 times"));
  cluster.ExpectNothingOpen();
}

TEST(CompletionErrorsTest, ZonesAreOpenedAgainWhenARailIsUpAgain) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 100'000}, {0, 0}}, 1);
  for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(1, r));
  cluster.Run();
  exchange.SubmitAll(1);
  cluster.Run();
  EXPECT_FALSE(exchange.trainer(1).Wait(1)->ok());
  cluster.fabric().Heal(cluster.AddressOf(1, 1));
  cluster.Run();
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
  cluster.ExpectNothingOpen();
}

TEST(CompletionErrorsTest, AnUnregisteredSegmentIsNeverRead) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 1000}, {0, 0}}, 1);
  SendFlow naked;
  cluster.node(0).rails[0]->tamper = [&](SendOrder& order) {
    naked = *order.flow;
    Buffer buffer(4096);
    auto segment = Segment::Map(SegmentId(9), buffer.Dup(), 4096).value();
    naked.memory = MemoryRanges();
    naked.memory.Append(segment, 0, 1000);
    order.flow = &naked;
    return true;
  };
  exchange.SubmitAll(1);
  cluster.Run();
  auto report = *exchange.trainer(0).Wait(1);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(std::string(report->status.message()), HasSubstr("rail 0 to n1 failed"));
  cluster.ExpectNothingOpen();
}

TEST(CompletionErrorsTest, ARegistrationThatIsRefusedLeavesNoneBehind) {
  Cluster cluster({.remote = true, .nodes = 1, .rails = 3});
  cluster.fabric().RefuseRegistrations(cluster.AddressOf(0, 2), true);
  Buffer buffer(4096);
  auto segment = Segment::Map(SegmentId(1), buffer.Dup(), 4096).value();
  std::vector<std::shared_ptr<MemoryRegistrar>> registrars;
  for (auto& rail : cluster.node(0).rails) registrars.push_back(rail->transport().registrar());
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
