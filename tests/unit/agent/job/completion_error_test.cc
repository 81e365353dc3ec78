// Every way in which a work request can end badly, on rails that write into remote memory: what the job says, that
// nothing stays behind, and that the next job is as good as any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <string>

#include "tests/unit/agent/job/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string name;
  // Before the jobs are submitted.
  std::function<void(Cluster&)> before;
  // When bytes have moved.
  std::function<void(Cluster&)> during;
  absl::StatusCode code;  // kOk: the job ends well all the same
  std::string text;       // of the sender's status
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class CompletionErrorTest : public ::testing::TestWithParam<Case> {};

TEST_P(CompletionErrorTest, IsToldAndLeavesNothing) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
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
    for (size_t r : {0u, 1u}) {
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

INSTANTIATE_TEST_SUITE_P(
    Errors, CompletionErrorTest,
    ::testing::Values(
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
        Case{"FlushedByADeadRail",
             {},
             [](Cluster& c) { c.fabric().Fail(c.AddressOf(0, 0)); },
             kUnavailable,
             "rail 0 to n"},
        Case{"FlushedByADeadPeerRail",
             {},
             [](Cluster& c) { c.fabric().Fail(c.AddressOf(1, 0)); },
             kUnavailable,
             "rail 0 to n"},
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
             ""}),
    [](const auto& info) { return info.param.name; });

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
