// Tests hubs with mutual TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "daemon/tls/tls_files.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/peer/hub_node.h"
#include "tests/unit/daemon/peer/long_ready.h"
#include "tests/unit/daemon/tls/tls_test_files.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;

class TlsHubTest : public ::testing::Test {
 protected:
  // `certificate_of`: node whose certificate the hub shows.
  std::unique_ptr<TlsFiles> Run(Node* node, const Node& other, const TlsTestFiles& of,
                                const std::string& certificate_of) {
    auto opened = TlsFiles::Open(of.WriteNode(certificate_of), certificate_of, NullLogger());
    EXPECT_TRUE(opened.ok()) << opened.status();
    PeerHubOptions options = node->Options(other, node == &a ? 11 : 22);
    options.links.tls = opened->get();
    links[node == &a ? 0 : 1] = options.links.counters;
    node->Run(std::move(options));
    return *std::move(opened);
  }
  void RunBothWithTls() {
    a_tls = Run(&a, b, files, "a");
    b_tls = Run(&b, a, files, "b");
    ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); })) << Why(a) << Why(b);
  }
  static std::string Why(const Node& node) { return node.hub->Peers().at(0).why; }
  static bool BothSay(const Node& a, const Node& b, const std::string& text) {
    return testing::Until(
        [&] { return Why(a).find(text) != std::string::npos && Why(b).find(text) != std::string::npos; });
  }

  TlsTestFiles files;
  std::unique_ptr<TlsFiles> a_tls, b_tls;  // outlive the hubs
  std::shared_ptr<LinkCounters> links[2];
  Node a{"a", FreePort()}, b{"b", FreePort()};
};

TEST_F(TlsHubTest, BothSidesComeUpAndCarryMessages) {
  RunBothWithTls();
  a.hub->Send("b", testing::LongReady({{BootId(1), 2}, JobSeq(1)}, 20'000));
  for (uint64_t n = 1; n <= 100; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return b.agent.messages.size() == 101; }));
  for (const Node* node : {&a, &b}) {
    const PeerCounters& counters = node->hub->counters();
    EXPECT_EQ(counters.refused + counters.identity + counters.protocol_errors, 0u);
  }
}

TEST_F(TlsHubTest, AnothersNameIsRefusedOnBothSides) {
  // Node c of the same authority claims to be b.
  a_tls = Run(&a, b, files, "a");
  b_tls = Run(&b, a, files, "c");
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().identity >= 2; }));
  EXPECT_TRUE(BothSay(a, b, "says that it is node b, but its certificate is of c")) << Why(a) << Why(b);
  EXPECT_TRUE(a.agent.events().empty());
  EXPECT_TRUE(b.agent.events().empty());
  EXPECT_EQ(b.hub->counters().identity, 0u) << "a is who it says";
}

TEST_F(TlsHubTest, AnotherAuthorityIsRefused) {
  const TlsTestFiles others;
  a_tls = Run(&a, b, files, "a");
  b_tls = Run(&b, a, others, "b");
  EXPECT_TRUE(BothSay(a, b, "certificate")) << Why(a) << Why(b);
  ASSERT_TRUE(testing::Until([&] { return links[0]->failed_handshakes > 1 && links[1]->failed_handshakes > 1; }));
  EXPECT_EQ(a.hub->counters().connects + b.hub->counters().connects, 0u);
  EXPECT_EQ(a.hub->counters().protocol_errors + b.hub->counters().protocol_errors, 0u);
}

TEST_F(TlsHubTest, PlainTextMeetsNobodyAndBothSidesSayWhy) {
  a_tls = Run(&a, b, files, "a");
  b.Run(b.Options(a, 22));
  EXPECT_TRUE(BothSay(a, b, kTlsModesDiffer)) << Why(a) << Why(b);
  EXPECT_EQ(a.hub->counters().connects + b.hub->counters().connects, 0u);
  EXPECT_TRUE(a.agent.events().empty());
  EXPECT_TRUE(b.agent.events().empty());
}

TEST_F(TlsHubTest, NewFilesAreTakenUnderLoadWithoutLosingTheLink) {
  RunBothWithTls();
  const uint64_t connects = a.hub->counters().connects;
  uint64_t sent = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 100; ++i) a.hub->Send("b", Numbered(++sent));
    // A different authority, known to both only after the change.
    files.authority = TlsTestFiles::NewAuthority();
    files.Write("ca.pem", files.authority.certificate);
    files.WriteNode("a");
    files.WriteNode("b");
    a_tls->Look();
    b_tls->Look();
    for (int i = 0; i < 100; ++i) a.hub->Send("b", Numbered(++sent));
    if (round > 0) continue;
    ASSERT_TRUE(testing::Until([&] { return b.agent.messages.size() == sent; }));
  }
  EXPECT_EQ(a_tls->counters().taken, 3u);
  // A new connection uses the new files: the link goes on, no message is lost.
  EXPECT_TRUE(a.hub->Redial("b").ok());
  a.hub->Send("b", Numbered(++sent));
  ASSERT_TRUE(testing::Until([&] { return b.agent.messages.size() == sent && a.hub->counters().connects > connects; }))
      << Why(a);
  for (uint64_t n = 1; n <= sent; ++n) ASSERT_EQ(NumberOf(b.agent.messages()[n - 1].second), n);
  EXPECT_THAT(a.agent.events(), ElementsAre("up b"));
  EXPECT_EQ(a.hub->counters().lost + b.hub->counters().lost, 0u);
}

TEST_F(TlsHubTest, ARedialThatFailsLeavesTheLinkItsConnection) {
  TlsTestFiles files_of_b;  // stay as they are
  files_of_b.authority = files.authority;
  files_of_b.Write("ca.pem", files.authority.certificate);
  a_tls = Run(&a, b, files, "a");
  b_tls = Run(&b, a, files_of_b, "b");
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); })) << Why(a) << Why(b);
  files.authority = TlsTestFiles::NewAuthority();
  files.Write("ca.pem", files.authority.certificate);
  files.WriteNode("a");
  a_tls->Look();
  EXPECT_TRUE(a.hub->Redial("b").ok());
  ASSERT_TRUE(testing::Until([&] { return !a.hub->Peers().at(0).dial_failure.empty(); }));
  a.hub->Send("b", Numbered(1));
  ASSERT_TRUE(testing::Until([&] { return b.agent.messages.size() == 1; }));
  EXPECT_THAT(a.agent.events(), ElementsAre("up b"));
  EXPECT_EQ(a.hub->counters().lost + b.hub->counters().lost, 0u);
  EXPECT_EQ(a.hub->Redial("c").code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace railsd
