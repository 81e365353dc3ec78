// Devices, their links and their limits; what peers of the wrong kind are told.
#include <gmock/gmock.h>
#include <infiniband/verbs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/transport/verbs/signal.h"
#include "agent/transport/verbs/verbs_rail.h"
#include "agent/transport/verbs/verbs_transport.h"
#include "tests/conformance/verbs_worlds.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;
using ::testing::HasSubstr;

VerbsOptions Options() {
  static ZoneTable zones;
  VerbsOptions options;
  options.zones = &zones;
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
  const TransportInfo info = a.transport->Info();
  const RailDevice& device = info.device;
  EXPECT_EQ(absl::StrCat(device.name, "/", device.port), Rails()[0][0]);
  EXPECT_EQ(info.address, "verbs:" + Rails()[0][0]);
  EXPECT_NE(info.binder, nullptr);
  EXPECT_EQ(info.zone_room, VerbsTuning().fence_queue_depth);
  EXPECT_EQ(info.max_rounds, 15u);
  EXPECT_EQ(device.state, "active");
  EXPECT_GE(device.mtu_bytes, 1024u);
  EXPECT_FALSE(device.gid.empty());
  EXPECT_EQ(a.counters().queue_pairs.load(), 0u);
  End& b = Add("b", 2);
  Meet(a, b);
  EXPECT_EQ(a.counters().queue_pairs.load(), 1u);
}

TEST_P(VerbsSuite, PeersOfAnotherVersionAreRefusedWithBothVersions) {
  End& a = Add("a", 1);
  const PeerIndex peer(7);
  a.transport->SetPeer({peer, "b", BootId(2), "verbs:x/1"});
  verbs::Signal signal;
  signal.version = verbs::kSignalVersion + 1;
  a.binder()->OnSignal(peer, verbs::EncodeSignal(signal));
  EXPECT_EQ(a.counters().refused_connections.load(), 1u);
  const absl::StatusOr<verbs::Signal> answer = verbs::DecodeSignal(a.signals.back().second);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->kind, verbs::Signal::Kind::kRefused);
  EXPECT_EQ(answer->reason, verbs::RefusalReason::kVersion);
  EXPECT_THAT(answer->text, ::testing::AllOf(HasSubstr("version 2"), HasSubstr("version 1")));
  a.binder()->OnSignal(peer, "nonsense");
  EXPECT_EQ(a.counters().protocol_errors.load(), 1u);
  a.signals.clear();  // b is not there
}

TEST_P(VerbsSuite, BatchesAreSignalledNotChunks) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 64 * 5000);
  const uint64_t before = a.counters().completions.load();
  ASSERT_EQ(a.Post(Orders(*exchange, 5000)), 64u);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1 && a.Count(Kind::kSendDone) == 64; }));
  EXPECT_EQ(a.counters().work_requests.load(), 64u) << "the fence rides on the last write";
  EXPECT_LE(a.counters().completions.load() - before, 2u);
  ExpectArrived(b, *exchange);
}

TEST_P(VerbsSuite, ASegmentThatAnotherProcessWrites) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  constexpr uint64_t kBytes = 300000;
  Exchange* exchange = OpenNew(b, a, kBytes);
  const MemoryRanges::Piece piece = exchange->stream.memory.pieces()[0];
  const pid_t trainer = ::fork();
  if (trainer == 0) {
    std::memset(piece.address, 'w', piece.length_bytes);  // the memfd is mapped in both
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(trainer, &status, 0), trainer);
  ASSERT_EQ(status, 0);
  SendAll(a, *exchange, 100000);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1; }));
  EXPECT_TRUE(ReadAll(exchange->received()) == std::string(kBytes, 'w'));
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
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 1000000);
  ASSERT_EQ(link("down"), 0);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1 && b.Count(Kind::kPeerDown) == 1; }))
      << "nobody has sent anything: the device told b, and b told a";
  EXPECT_EQ(b.transport->Info().device.state, "down");
  EXPECT_EQ(b.Of(Kind::kPeerDown)[0].error_number, ENETDOWN);
  ASSERT_TRUE(Until([&] { return a.counters().queue_pairs.load() == 1; })) << "a tries again";
  EXPECT_EQ(b.counters().queue_pairs.load(), 0u) << "b waits for its link";
  const SendOrder order = Order(*exchange, 0, 1000, 1);
  ASSERT_EQ(a.Post({order}), 1u);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kNotSent) == 1; }));
  ASSERT_EQ(link("up"), 0);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == 2 && b.Count(Kind::kPeerUp) == 2; }));
  EXPECT_EQ(b.transport->Info().device.state, "active");
  Bind(b, *exchange);
  for (const size_t i : {0u, 1u}) {
    const uint64_t connection = a.Of(Kind::kPeerUp)[i].connection;
    EXPECT_EQ(b.Of(Kind::kPeerUp)[i].connection, connection);
    EXPECT_EQ(b.Of(Kind::kZoneOpened)[i].connection, connection) << "the zone has keys again, for this one";
  }
  Carry(a, b, *exchange, 250000);
}

// The engine gives up what it sent over a connection before anything can be sent over the next one.
TEST_P(VerbsSuite, TheEndOfAConnectionIsToldBeforeAnotherIsBegun) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 100 * 1000);
  a.signals.clear();
  a.batch = 1;  // the end waits behind what became of the orders
  for (uint64_t i = 0; i < 100; ++i) {
    const SendOrder order = Order(*exchange, i * 1000, 1000, i);
    ASSERT_EQ(a.Post({order}), 1u);
  }
  b.transport.reset();
  while (CarrySignal(b)) {
  }
  const auto begun = [&] {
    return std::any_of(a.signals.begin(), a.signals.end(), [](const auto& signal) {
      const absl::StatusOr<verbs::Signal> decoded = verbs::DecodeSignal(signal.second);
      return decoded.ok() && decoded->kind == verbs::Signal::Kind::kHello;
    });
  };
  for (int i = 0; i < 10000 && a.Count(Kind::kPeerDown) == 0; ++i) {
    Poll(a, absl::Milliseconds(10));
    absl::SleepFor(absl::Milliseconds(1));  // longer than the first back-off in all
    ASSERT_FALSE(begun()) << a.events.size() << " events taken";
  }
  EXPECT_EQ(a.Count(Kind::kSendDone), 100u);
  ASSERT_EQ(a.Count(Kind::kPeerDown), 1u);
  for (int i = 0; i < 1000 && !begun(); ++i) Poll(a, absl::Milliseconds(10));
  EXPECT_TRUE(begun());
}

// Passes signals on, and knows the number of the newest queue pair.
class Listener final : public SignalSink {
 public:
  explicit Listener(SignalSink* next) : next_(next) {}
  void Send(PeerIndex peer, std::string bytes) override {
    const absl::StatusOr<verbs::Signal> signal = verbs::DecodeSignal(bytes);
    if (signal.ok() && signal->kind == verbs::Signal::Kind::kHello) number_ = signal->endpoint.queue_pairs[0].number;
    next_->Send(peer, std::move(bytes));
  }
  uint32_t number() const { return number_; }

 private:
  SignalSink* const next_;
  uint32_t number_ = 0;
};

TEST_P(VerbsSuite, EveryEventOfADeviceIsActedOn) {
  for (const ibv_event_type fatal : {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR}) {
    End &a = Add("a", 1), &b = Add("b", 2);
    Listener listener(&a);
    std::string said;
    const absl::Cleanup end = [&] { ends_.clear(); };
    VerbsOptions options = Options();
    options.signals = &listener;
    options.zones = &a.zones;
    options.on_notice = [&](const std::string& text) { absl::StrAppend(&said, text, "\n"); };
    a.transport.reset();
    a.transport = CreateVerbsTransport(options).value();
    const auto tell = [&](ibv_event_type type, uint8_t port, uint32_t queue_pair) {
      static_cast<verbs::VerbsRail&>(*a.transport).OnDeviceEvent({type, port, queue_pair});
    };
    Meet(a, b);
    // The port is as it was, whatever they say; or they concern nobody here.
    for (const ibv_event_type harmless :
         {IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE,
          IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_SM_CHANGE, IBV_EVENT_PKEY_CHANGE}) {
      tell(harmless, 1, 0);
      tell(harmless, 2, 0);
    }
    tell(IBV_EVENT_QP_FATAL, 0, listener.number() + 1);
    tell(IBV_EVENT_COMM_EST, 0, listener.number());
    tell(IBV_EVENT_SQ_DRAINED, 0, listener.number());
    Spin(20);
    EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
    EXPECT_THAT(said, ::testing::AllOf(HasSubstr("port error"), HasSubstr("GID table change")));
    size_t downs = 0;
    for (const ibv_event_type type :
         {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}) {
      SCOPED_TRACE(ibv_event_type_str(type));
      tell(type, 0, listener.number());
      ++downs;
      ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == downs && a.Count(Kind::kPeerUp) == downs + 1; }));
      ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerUp) == downs + 1; }));
      EXPECT_EQ(a.Of(Kind::kPeerDown).back().error_number, EIO);
    }
    EXPECT_EQ(a.Count(Kind::kLinkDown) + a.Count(Kind::kLinkUp), 0u);
    tell(fatal, 0, 0);
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == downs + 1 && b.Count(Kind::kPeerDown) == downs + 1; }));
    Spin(20);
    EXPECT_EQ(a.counters().queue_pairs.load(), 0u) << "it is not tried again";
    EXPECT_EQ(a.Count(Kind::kLinkDown), 1u);
    EXPECT_THAT(said, HasSubstr("the rail is out until the daemon restarts"));
  }
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
    End &a = Add("a", 1), &b = AddMet(a, "b", 2);
    Exchange* exchange = OpenNew(b, a, 100000, 3, 3);
    SendAll(a, *exchange, 30000);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1; }));
    EXPECT_NE(Resources(), before);
    if (round % 2 == 0) Close(b, *exchange);
    ends_.clear();
    exchanges_.clear();
    EXPECT_EQ(Resources(), before) << "round " << round;
  }
}

}  // namespace
}  // namespace railsd::testing
