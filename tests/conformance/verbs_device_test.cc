// Devices, their links and their limits; what peers of the wrong kind are told.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/signal.h"
#include "agent/transport/verbs/verbs_transport.h"
#include "tests/conformance/verbs_worlds.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;
using ::testing::HasSubstr;

VerbsOptions Options() {
  VerbsOptions options;
  options.node = "a";
  options.boot = BootId(1);
  options.device = Rails()[0][0];
  return options;
}

std::string Refusal(VerbsOptions options) {
  const auto rail = CreateVerbsTransport(std::move(options));
  return rail.ok() ? "created" : rail.status().ToString();
}

TEST_P(VerbsSuite, WhatCannotBeOpenedIsSaidByName) {
  VerbsOptions options = Options();
  options.device = "mlx5_77";
  EXPECT_THAT(Refusal(options), ::testing::AllOf(HasSubstr("NOT_FOUND"), HasSubstr("rail 0"), HasSubstr("mlx5_77"),
                                                 HasSubstr("this node has: ")));
  options = Options();
  options.device = options.device.substr(0, options.device.find('/')) + "/9";
  EXPECT_THAT(Refusal(options), ::testing::AllOf(HasSubstr("NOT_FOUND"), HasSubstr("there is no port 9")));
  options = Options();
  options.tuning.gid_index = 250;
  EXPECT_THAT(Refusal(options), ::testing::AllOf(HasSubstr("GID index 250 is not in use"), HasSubstr("RoCE v2")));
  options = Options();
  options.tuning.retry_count = 7;
  EXPECT_THAT(Refusal(options), HasSubstr("retry_count 7"));
  options = Options();
  options.tuning.queue_pairs_per_peer = 65;
  EXPECT_THAT(Refusal(options), HasSubstr("queue_pairs_per_peer 65"));
}

TEST_P(VerbsSuite, LimitsAreCutToTheDeviceAndSaid) {
  VerbsOptions options = Options();
  options.tuning.completion_queue_depth = UINT32_MAX;
  options.tuning.send_queue_depth = UINT32_MAX;
  std::string said;
  options.on_notice = [&](const std::string& text) { absl::StrAppend(&said, text); };
  EXPECT_TRUE(CreateVerbsTransport(options).ok());
  EXPECT_THAT(said,
              ::testing::AllOf(HasSubstr("completion_queue_depth 4294967295 to "), HasSubstr("send_queue_depth")));
}

TEST_P(VerbsSuite, TheDeviceIsTold) {
  End& a = Add("a", 1);
  const RailDevice device = a.transport->Device();
  EXPECT_EQ(absl::StrCat(device.name, "/", device.port), Rails()[0][0]);
  EXPECT_EQ(a.transport->LocalAddress(), "verbs:" + Rails()[0][0]);
  EXPECT_EQ(device.state, "active");
  EXPECT_GE(device.mtu_bytes, 1024u);
  EXPECT_FALSE(device.gid.empty());
  EXPECT_EQ(a.transport->counters().queue_pairs.load(), 0u);
  End& b = Add("b", 2);
  Meet(a, b);
  EXPECT_EQ(a.transport->counters().queue_pairs.load(), 1u);
}

TEST_P(VerbsSuite, PeersOfAnotherVersionAreRefusedWithBothVersions) {
  End& a = Add("a", 1);
  const PeerIndex peer(7);
  a.transport->SetPeer({peer, "b", BootId(2), "verbs:x/1"});
  verbs::Signal signal;
  signal.version = verbs::kSignalVersion + 1;
  a.transport->OnSignal(peer, verbs::EncodeSignal(signal));
  EXPECT_EQ(a.transport->counters().refused_connections.load(), 1u);
  const absl::StatusOr<verbs::Signal> answer = verbs::DecodeSignal(a.signals.back().second);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->kind, verbs::Signal::Kind::kRefused);
  EXPECT_EQ(answer->reason, verbs::RefusalReason::kVersion);
  EXPECT_THAT(answer->text, ::testing::AllOf(HasSubstr("version 2"), HasSubstr("version 1")));
  a.transport->OnSignal(peer, "nonsense");
  EXPECT_EQ(a.transport->counters().protocol_errors.load(), 1u);
  a.signals.clear();  // b is not there
}

TEST_P(VerbsSuite, BatchesAreSignalledNotChunks) {
  End& a = Add("a", 1);
  End& b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 64 * 5000);
  Open(b, a, 1, {flow.get()});
  const uint64_t before = a.transport->counters().completions.load();
  std::vector<SendOrder> orders;
  for (uint64_t i = 0; i < 64; ++i) orders.push_back(Order(*flow, 1, 0, i * 5000, 5000, i));
  ASSERT_EQ(a.transport->Post(orders), 64u);
  Fence(a, *flow, 1, 0);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 64 * 5000 && a.Count(Kind::kSendDone) == 64; }));
  ASSERT_TRUE(Until([&] { return a.fences_done == 1; }));
  EXPECT_EQ(a.transport->counters().work_requests.load(), 65u);
  EXPECT_LE(a.transport->counters().completions.load() - before, 3u) << "two of the batch, one of the fence";
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
}

TEST_P(VerbsSuite, ASegmentThatAnotherProcessWrites) {
  End& a = Add("a", 1);
  End& b = Add("b", 2);
  Meet(a, b);
  constexpr uint64_t kBytes = 300000;
  auto flow = MakeFlow(b, kBytes);
  Open(b, a, 1, {flow.get()});
  const MemoryRanges::Piece piece = flow->send.memory.pieces()[0];
  const pid_t trainer = ::fork();
  if (trainer == 0) {
    std::memset(piece.address, 'w', piece.length_bytes);  // the memfd is mapped in both
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(trainer, &status, 0), trainer);
  ASSERT_EQ(status, 0);
  SendAll(a, *flow, 1, 0, 100000);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == kBytes; }));
  EXPECT_TRUE(ReadAll(flow->zone) == std::string(kBytes, 'w'));
}

TEST_P(VerbsSuite, ALinkThatGoesDownAndComesBack) {
  std::string interface;
  for (const verbs::RdmaPort& port : DiscoverRdmaPorts()) {
    if (port.Name() == Rails()[0][1]) interface = verbs::ChooseGid(port, std::nullopt)->interface;
  }
  ASSERT_FALSE(interface.empty());
  const auto link = [&](const char* state) {
    return std::system(absl::StrCat("ip link set dev ", interface, " ", state).c_str());
  };
  End& a = Add("a", 1);
  End& b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 1000000);
  Open(b, a, 1, {flow.get()});
  ASSERT_EQ(link("down"), 0);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1 && b.Count(Kind::kPeerDown) == 1; }))
      << "nobody has sent anything: the device told b, and b told a";
  EXPECT_EQ(b.transport->Device().state, "down");
  EXPECT_EQ(b.Of(Kind::kPeerDown)[0].error_number, ENETDOWN);
  ASSERT_TRUE(Until([&] { return a.transport->counters().queue_pairs.load() == 1; })) << "a tries again";
  EXPECT_EQ(b.transport->counters().queue_pairs.load(), 0u) << "b waits for its link";
  const SendOrder order = Order(*flow, 1, 0, 0, 1000, 1);
  ASSERT_EQ(a.transport->Post({&order, 1}), 1u);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kRailFailed) == 1; }));
  ASSERT_EQ(link("up"), 0);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == 2 && b.Count(Kind::kPeerUp) == 2; }));
  EXPECT_EQ(b.transport->Device().state, "active");
  b.transport->CloseZones(1, 1, false);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kZonesClosed) == 1; }));
  Open(b, a, 1, {flow.get()}, /*generation=*/2);
  SendAll(a, *flow, 1, 0, 250000);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 1000000; }));
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
}

// Every object of the kernel that this process has, by kind and device.
std::string Resources() {
  std::string text;
  std::array<char, 4096> buffer;
  FILE* const pipe = ::popen("rdma resource show", "r");
  if (pipe == nullptr) return "no answer";
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), count);
  return ::pclose(pipe) == 0 ? text : "no answer";
}

TEST_P(VerbsSuite, NothingIsLeftBehind) {
  const std::string before = Resources();
  ASSERT_THAT(before, HasSubstr(" qp "));
  for (int round = 0; round < 10; ++round) {
    End& a = Add("a", 1);
    End& b = Add("b", 2);
    Meet(a, b);
    auto flow = MakeFlow(b, 100000, 3, 3);
    Open(b, a, 1, {flow.get()});
    SendAll(a, *flow, 1, 0, 30000);
    ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 100000; }));
    EXPECT_NE(Resources(), before);
    if (round % 2 == 0) {
      b.transport->CloseZones(1, 1, true);
      ASSERT_TRUE(Until([&] { return b.Count(Kind::kZonesClosed) == 1; }));
    }
    flow.reset();
    ends_.clear();
    EXPECT_EQ(Resources(), before) << "round " << round;
  }
}

}  // namespace
}  // namespace railsd::testing
