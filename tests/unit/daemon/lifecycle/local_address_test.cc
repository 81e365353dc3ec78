#include "daemon/lifecycle/local_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/config/network.h"
#include "daemon/lifecycle/rail_speed.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

const std::vector<LocalAddress> kKnown = {
    {"lo", "127.0.0.1", true, 8},          {"lo", "10.3.0.1", true, 32},      {"eth0", "10.20.3.4", true, 16},
    {"rail0", "10.1.0.7", true, 24},       {"rail1", "10.2.0.7", true, 20},   {"rail1", "10.2.0.8", true, 20},
    {"rail2", "fe80::7%rail2", false, 64}, {"rail2", "fd00:2::7", false, 64}, {"rail3", "fe80::8%rail3", false, 64},
};

TEST(IpNetworkTest, ContainsWhatItsPrefixSays) {
  const auto contains = [](const char* network, const char* address) {
    return IpNetwork::Parse(network)->Contains(std::string(address));
  };
  EXPECT_TRUE(contains("10.16.0.0/12", "10.31.255.255"));
  EXPECT_FALSE(contains("10.16.0.0/12", "10.32.0.0"));
  EXPECT_TRUE(contains("10.16.3.4/12", "10.17.0.1"));
  EXPECT_TRUE(contains("0.0.0.0/0", "192.0.2.1"));
  EXPECT_FALSE(contains("0.0.0.0/0", "fd00::1"));
  EXPECT_TRUE(contains("10.0.0.1/32", "10.0.0.1"));
  EXPECT_TRUE(contains("fd00::/65", "fd00::7fff:0:0:1"));
  EXPECT_FALSE(contains("fd00::/65", "fd00::8000:0:0:1"));
  EXPECT_TRUE(contains("fe80::/10", "fe80::1%eth0"));
  EXPECT_TRUE(contains("::/0", "fd00::1"));
  EXPECT_FALSE(contains("10.0.0.0/8", "host.example"));
  for (const char* wrong : {"", "10.0.0.1", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "10.0.0.0/", "10.0.0.0/-1", "/8",
                            "10.0.0.0/8/8", "a/8", "10.0.0.0/+8", "10.0.0.0/ 8"}) {
    EXPECT_EQ(IpNetwork::Parse(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(LocalAddressTest, ListensWhereThisMachineIs) {
  const auto resolve = [](const char* listen) -> std::string {
    const absl::StatusOr<std::string> found = ResolveListen("control.listen", listen, kKnown);
    return found.ok() ? *found : std::string(found.status().message());
  };
  EXPECT_EQ(resolve(""), "");
  EXPECT_EQ(resolve("10.0.0.0/12:7471"), "10.1.0.7:7471");  // the first of them
  EXPECT_EQ(resolve("10.20.0.0/16:0"), "10.20.3.4:0");
  EXPECT_EQ(resolve("10.0.0.0/8:7471"), "10.20.3.4:7471");  // not the one of lo
  EXPECT_EQ(resolve("10.3.0.0/16:7471"), "10.3.0.1:7471");
  EXPECT_EQ(resolve("[fd00::/16]:7471"), "[fd00:2::7]:7471");
  EXPECT_EQ(resolve("eth0:7471"), "10.20.3.4:7471");
  EXPECT_EQ(resolve("rail2:7471"), "[fd00:2::7]:7471");
  EXPECT_EQ(resolve("localhost:7471"), "localhost:7471");
  EXPECT_EQ(resolve("0.0.0.0:7471"), "0.0.0.0:7471");
  EXPECT_THAT(
      resolve("192.168.0.0/16:7471"),
      HasSubstr(
          "control.listen: this machine has no address in 192.168.0.0/16; it has 127.0.0.1, 10.3.0.1, 10.20.3.4"));
}

TEST(LocalAddressTest, KnowsThisMachine) {
  EXPECT_EQ(InterfaceOf("127.0.0.1:80", LocalAddresses()), "lo");
  EXPECT_EQ(InterfaceOf("192.0.2.1", LocalAddresses()), "");
  EXPECT_EQ(AddressOf("lo", LocalAddresses()), "127.0.0.1");
  EXPECT_EQ(SubnetOf("127.0.0.1:80", LocalAddresses()), "127.0.0.0/8");
  EXPECT_EQ(SubnetOf("10.2.0.8:7000", kKnown), "10.2.0.0/20");
  EXPECT_EQ(SubnetOf("[fe80::7%rail2]:7000", kKnown), "fe80::/64");
  EXPECT_EQ(SubnetOf("192.0.2.1", kKnown), "");
  EXPECT_EQ(AddressOf("rail2", kKnown), "fd00:2::7");
  EXPECT_EQ(AddressOf("rail3", kKnown), "");
  EXPECT_EQ(InterfaceSpeed("no-such-interface"), 0u);
}

TEST(RailAddressTest, OfAnInterfaceOrANetwork) {
  std::vector<RailSpec> rails(4);
  rails[0].address = "192.0.2.1";
  rails[0].interface = "eth0";
  rails[1].interface = "rail1";
  rails[2].address = "10.1.0.0/16";
  rails[3].address = "[fd00:2::/64]:7000";
  ASSERT_TRUE(FillRailAddresses(kKnown, &rails).ok());
  EXPECT_EQ(rails[0].address, "192.0.2.1");  // as configured
  EXPECT_EQ(rails[1].address, "10.2.0.7");
  EXPECT_EQ(rails[2].address, "10.1.0.7");
  EXPECT_EQ(rails[3].address, "[fd00:2::7]:7000");
  // Bound to the interface of the network.
  EXPECT_EQ(rails[0].interface, "eth0");
  EXPECT_EQ(rails[2].interface, "rail0");
  EXPECT_EQ(rails[3].interface, "rail2");
}

TEST(RailAddressTest, OfANetworkOnAnInterface) {
  std::vector<RailSpec> rails = {{.name = "rail0", .address = "10.0.0.0/8", .interface = "rail1"},
                                 {.name = "rail1", .address = "10.0.0.0/8", .interface = "rail0"},
                                 {.name = "rail2", .address = "127.0.0.0/8", .interface = ""}};
  ASSERT_TRUE(FillRailAddresses(kKnown, &rails).ok());
  EXPECT_EQ(rails[0].address, "10.2.0.7");
  EXPECT_EQ(rails[1].address, "10.1.0.7");
  EXPECT_EQ(rails[2].interface, "");  // the loopback has no cable
}

TEST(RailAddressTest, AnAddressThatIsRoutedByItselfIsBoundToNoInterface) {
  const std::vector<LocalAddress> known = {{"dummy0", "10.9.0.1", true, 32}, {"eth0", "10.8.0.1", true, 31}};
  std::vector<RailSpec> rails = {{.name = "rail0", .address = "10.9.0.0/16", .interface = ""},
                                 {.name = "rail1", .address = "10.8.0.0/16", .interface = ""}};
  ASSERT_TRUE(FillRailAddresses(known, &rails).ok());
  EXPECT_EQ(rails[0].interface, "");
  EXPECT_EQ(rails[1].interface, "eth0");
}

TEST(RailAddressTest, TellsWhichRailHasNone) {
  const auto fill = [](RailSpec rail) {
    std::vector<RailSpec> rails = {{.name = "rail0", .address = "", .interface = "rail0"}, std::move(rail)};
    return FillRailAddresses(kKnown, &rails);
  };
  EXPECT_EQ(fill({.name = "rail1", .address = "", .interface = "no-such"}).message(),
            "rails: rail1: interface 'no-such' is not there or has no address; `ip -brief address` shows what is");
  EXPECT_THAT(std::string(fill({.name = "rail1", .address = "10.4.0.0/16", .interface = ""}).message()),
              HasSubstr("rails: rail1: this machine has no address in 10.4.0.0/16; it has"));
  EXPECT_EQ(fill({.name = "rail1", .address = "10.1.0.0/16", .interface = ""}).message(),
            "rails: rail1: rail0 has its address, 10.1.0.7; give each rail a network or an interface of its own");
  std::vector<RailSpec> rails = {{.name = "a", .address = "10.1.0.7:7000", .interface = ""},
                                 {.name = "b", .address = "10.1.0.0/16", .interface = ""}};
  EXPECT_THAT(std::string(FillRailAddresses(kKnown, &rails).message()), HasSubstr("rails: b: a has its address"));
}

}  // namespace
}  // namespace railsd
