#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/railsctl/config/peers.h"

namespace rails::ctl::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConfigPeersTest, EveryFormOfALine) {
  const absl::StatusOr<PeerList> list = ReadHosts(
      "# all\n127.0.0.1 localhost\n::1 ip6-localhost\nff02::1 ip6-allnodes\nfe00::0 ip6-localnet\n127.0.1.1 "
      "n0\n\nn1\nn2 10.0.0.2  # second\n"
      "\t10.0.0.3\tn3.cluster n3\r\nfd00::4 n4\n",
      "hosts", 7471);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->left_out, ElementsAre("localhost", "ip6-localhost", "ip6-allnodes", "ip6-localnet", "n0"));
  EXPECT_EQ(PeersYaml(list->peers),
            "peers:\n  static:\n"
            "    - {name: \"n1\", control: \"n1:7471\"}\n"
            "    - {name: \"n2\", control: \"10.0.0.2:7471\"}\n"
            "    - {name: \"n3.cluster\", control: \"10.0.0.3:7471\"}\n"
            "    - {name: \"n4\", control: \"[fd00::4]:7471\"}\n");
}

TEST(ConfigPeersTest, MistakesNameTheirLine) {
  const auto mistake = [](const std::string& text) {
    return std::string(ReadHosts(text, "hosts", 7471).status().message());
  };
  EXPECT_EQ(mistake("# nobody\n"), "hosts: no node is in it");
  EXPECT_EQ(mistake("a\nb\na 10.0.0.1\n"), "hosts:3: a is in line 1, too");
  EXPECT_EQ(mistake("10.0.0.1 a\n10.0.0.1 b\n"), "hosts:2: 10.0.0.1:7471 is in line 1, too");
  EXPECT_EQ(mistake("fd00::1 a\nfd00:0::1 b\n"), "hosts:2: [fd00::1]:7471 is in line 1, too");
  EXPECT_EQ(mistake("a b\n"), "hosts:1: 'a b' is neither NAME, NAME ADDRESS nor ADDRESS NAME");
  EXPECT_THAT(mistake("n[001-128]\n"), HasSubstr("hosts:1: 'n[001-128]': not a node's name: 1 to 253 of letters"));
  EXPECT_THAT(mistake("10.0.0.1\n"), HasSubstr("hosts:1: '10.0.0.1' has no name"));
  EXPECT_THAT(mistake("\x1b[31m\n"), HasSubstr("hosts:1: '?[31m' has control characters"));
  EXPECT_THAT(mistake(std::string(254, 'a')), HasSubstr("not a node's name"));
}

TEST(ConfigPeersTest, TheNumberOfNodesIsBounded) {
  std::string text;
  for (size_t n = 0; n < kMaxPeers; ++n) text += "n" + std::to_string(n) + "\n";
  EXPECT_EQ(ReadHosts(text, "hosts", 7471)->peers.size(), kMaxPeers);
  EXPECT_EQ(ReadHosts(text + "last\n", "hosts", 7471).status().message(), "hosts:4097: more than 4096 nodes");
}

}  // namespace
}  // namespace rails::ctl::config
