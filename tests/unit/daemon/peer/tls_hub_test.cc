// Hubs that prove to each other who they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/tls/credentials.h"
#include "daemon/tls/tls_files.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/free_port.h"
#include "tests/unit/daemon/peer/lane_proxy.h"
#include "tests/unit/daemon/tls/tls_test_files.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

struct Node {
  std::string name;
  int port = FreePort();
  FakeAgent agent;
  std::unique_ptr<TlsFiles> tls;
  std::unique_ptr<PeerHub> hub;

  explicit Node(std::string node) : name(std::move(node)) {}
  ~Node() {
    if (hub) hub->Stop();
  }
  // `certificate_of`: whose it shows.
  void Run(const Node& other, uint64_t boot, const TlsTestFiles* files, const std::string& certificate_of) {
    PeerHubOptions options;
    options.node = name;
    options.boot = BootId(boot);
    options.version = "1";
    options.listen = absl::StrCat("127.0.0.1:", port);
    options.static_peers.push_back({other.name, absl::StrCat("127.0.0.1:", other.port), {}});
    options.lost_after = absl::Seconds(30);
    options.heartbeat = absl::Milliseconds(50);
    options.log = NullLogger();
    if (files != nullptr) {
      auto opened = TlsFiles::Open(files->WriteNode(certificate_of), certificate_of, NullLogger());
      ASSERT_TRUE(opened.ok()) << opened.status();
      tls = *std::move(opened);
      options.tls = tls.get();
    }
    hub = PeerHub::Make(std::move(options));
    const absl::Status status = hub->Start(&agent);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::string Why() const { return hub->Peers().at(0).why; }
};

class TlsHubTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { RequireTls13(); }
  TlsTestFiles files;
  Node a{"a"}, b{"b"};
};

ControlMessage Numbered(uint64_t n) { return Quiesced{{{BootId(1), 1}, JobSeq(n)}, 0}; }

TEST_F(TlsHubTest, BothSidesComeUpAndCarryMessages) {
  a.Run(b, 11, &files, "a");
  b.Run(a, 22, &files, "b");
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); })) << a.Why() << b.Why();
  for (uint64_t n = 1; n <= 100; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 100; }));
  EXPECT_EQ(a.hub->counters().refused + b.hub->counters().refused, 0u);
  EXPECT_EQ(a.hub->counters().identity + b.hub->counters().identity, 0u);
}

TEST_F(TlsHubTest, TheirLanesAreSealed) {
  Node way_to_b{"b"};
  LaneProxy proxy(way_to_b.port, b.port);
  a.Run(way_to_b, 11, &files, "a");
  b.Run(a, 22, &files, "b");
  ASSERT_TRUE(
      testing::Until([&] { return a.hub->counters().lanes_opened == 1 && b.hub->counters().lanes_opened == 1; }));
  for (uint64_t n = 1; n <= 100; ++n) {
    a.hub->Send("b", Abort{{{BootId(1), 1}, JobSeq(n)}, absl::StatusCode::kAborted, "plain words", false});
  }
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 100; }));
  EXPECT_EQ(a.hub->counters().lane_messages_out, 100u);
  EXPECT_EQ(b.hub->counters().lane_messages_in, 100u);
  EXPECT_GT(proxy.lane_bytes().size(), 100 * std::string("plain words").size());
  EXPECT_EQ(proxy.lane_bytes().find("plain words"), std::string::npos);
  EXPECT_EQ(a.hub->counters().lanes_lost + b.hub->counters().lanes_lost, 0u);
  a.hub->Stop();
  b.hub->Stop();
}

TEST_F(TlsHubTest, AnothersNameIsRefusedOnBothSides) {
  // A node of the same authority, c, that says it is b.
  a.Run(b, 11, &files, "a");
  b.Run(a, 22, &files, "c");
  const std::string both = "says that it is node b, but its certificate is of c";
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().identity >= 2; }));
  ASSERT_TRUE(testing::Until([&] { return a.Why().find(both) != std::string::npos; })) << a.Why();
  ASSERT_TRUE(testing::Until([&] { return b.Why().find(both) != std::string::npos; }))
      << "told to who dials: " << b.Why();
  EXPECT_THAT(b.Why(), HasSubstr("UNAUTHENTICATED"));
  EXPECT_FALSE(a.agent.Saw("up b"));
  EXPECT_FALSE(b.agent.Saw("up a"));
  EXPECT_EQ(b.hub->counters().identity, 0u) << "a is who it says";
}

TEST_F(TlsHubTest, AnotherAuthorityIsRefused) {
  const TlsTestFiles others;
  a.Run(b, 11, &files, "a");
  b.Run(a, 22, &others, "b");
  ASSERT_TRUE(testing::Until([&] { return a.Why().find("certificate verify failed") != std::string::npos; }))
      << a.Why();
  ASSERT_TRUE(testing::Until([&] { return b.Why().find("certificate verify failed") != std::string::npos; }))
      << b.Why();
  EXPECT_EQ(a.hub->counters().connects + b.hub->counters().connects, 0u);
}

TEST_F(TlsHubTest, PlainTextMeetsNobody) {
  a.Run(b, 11, &files, "a");
  b.Run(a, 22, nullptr, "");
  ASSERT_TRUE(testing::Until([&] { return a.Why() != "not reached yet" && b.Why() != "not reached yet"; }));
  EXPECT_EQ(a.hub->counters().connects + b.hub->counters().connects, 0u);
  EXPECT_FALSE(a.agent.Saw("up b"));
  EXPECT_FALSE(b.agent.Saw("up a"));
}

TEST_F(TlsHubTest, NewFilesAreTakenWithoutLosingTheLink) {
  a.Run(b, 11, &files, "a");
  b.Run(a, 22, &files, "b");
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); }));
  // Another authority altogether, known to both only after the change.
  files.authority = TlsTestFiles::NewAuthority();
  files.Write("ca.pem", files.authority.certificate);
  files.WriteNode("a");
  files.WriteNode("b");
  a.tls->Look();
  b.tls->Look();
  EXPECT_EQ(a.tls->counters().taken, 1u);
  a.hub->Send("b", Numbered(1));
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 1; }));
  EXPECT_EQ(a.hub->counters().connects, 1u) << "the stream is the one of before";
  // What begins anew does so with the new ones: the link goes on, no message is lost.
  a.hub->BreakStreams("b");
  a.hub->Send("b", Numbered(2));
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 2 && a.hub->counters().connects >= 2; }))
      << a.Why();
  EXPECT_EQ(a.hub->counters().lost + b.hub->counters().lost, 0u);
  EXPECT_FALSE(a.agent.Saw("down b"));
}

}  // namespace
}  // namespace railsd
