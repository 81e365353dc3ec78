#include "daemon/lifecycle/rail_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using verbs::RdmaPort;

RdmaPort Port(const std::string& device, uint8_t number, bool active = true, bool address = true) {
  RdmaPort port;
  port.device = device;
  port.port = number;
  port.state = active ? verbs::PortState::kActive : verbs::PortState::kDown;
  port.state_text = active ? "ACTIVE" : "DOWN, physically Polling";
  port.speed_bytes_per_s = 50'000'000'000;
  port.mtu_bytes = 4096;
  port.pci_address = "0000:3b:00.0";
  port.numa_node = 1;
  verbs::Gid gid;
  gid.index = 3;
  gid.type = address ? verbs::GidType::kRoceV2 : verbs::GidType::kRoceV1;
  gid.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number};
  gid.interface = "eth" + std::to_string(number);
  port.gids.push_back(gid);
  return port;
}

// Two cards with one port, one card with two ports (the second is down), one card without an address.
std::vector<RdmaPort> Ports() {
  return {Port("mlx5_0", 1), Port("mlx5_1", 1), Port("mlx5_2", 1), Port("mlx5_2", 2, false),
          Port("bnxt_0", 1, true, false)};
}

std::vector<std::string> Choose(const std::string& rails) {
  absl::StatusOr<Config> config = ParseConfig("rails: " + rails + "\n", "f");
  if (!config.ok()) return {std::string(config.status().message())};
  const absl::StatusOr<std::vector<RailSpec>> chosen = ChooseRails(*config, Ports());
  if (!chosen.ok()) return {chosen.status().ToString()};
  std::vector<std::string> out;
  for (const RailSpec& rail : *chosen) {
    EXPECT_EQ(rail.kind, RailKind::kVerbs);
    out.push_back(absl::StrCat(rail.name, "=", rail.device, "@", rail.speed_bytes_per_s / 125'000'000, "g"));
  }
  return out;
}

TEST(RailChoiceTest, EveryUsablePortInOrder) {
  EXPECT_THAT(Choose("auto"), ElementsAre("rail0=mlx5_0/1@400g", "rail1=mlx5_1/1@400g", "rail2=mlx5_2/1@400g"));
}

TEST(RailChoiceTest, WithoutLibibverbsRdmaIsRefusedAndTcpIsNot) {
  const auto choose = [](const std::string& rails) {
    const absl::StatusOr<Config> config = ParseConfig("rails: " + rails + "\n", "f");
    return ChooseRails(*config, Ports(), /*has_verbs=*/false).status();
  };
  EXPECT_EQ(choose("auto").code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(choose("[{device: mlx5_1}]").message(),
              ::testing::AllOf(HasSubstr("device 'mlx5_1'"), HasSubstr("built without libibverbs")));
  EXPECT_TRUE(choose("[{address: 10.0.0.1}]").ok());
}

TEST(RailChoiceTest, NamedDevices) {
  EXPECT_THAT(Choose("[{device: mlx5_1, speed: 10gbit}, {name: a, device: mlx5_2/2}]"),
              ElementsAre("rail0=mlx5_1/1@10g", "a=mlx5_2/2@400g"));
  EXPECT_THAT(Choose("[{device: mlx5_9}]"),
              ElementsAre("NOT_FOUND: rails: device 'mlx5_9' is not there; this node has mlx5_0/1, mlx5_1/1, mlx5_2/1, "
                          "mlx5_2/2, bnxt_0/1"));
  EXPECT_THAT(Choose("[{device: mlx5_0/2}]"), ElementsAre(HasSubstr("device 'mlx5_0/2' is not there")));
  EXPECT_THAT(Choose("[{device: mlx5_2}]"),
              ElementsAre("INVALID_ARGUMENT: rails: device 'mlx5_2' has several ports; say which, as in mlx5_2/1"));
  EXPECT_THAT(Choose("[{device: mlx5_0}, {device: mlx5_0/1}]"),
              ElementsAre("INVALID_ARGUMENT: rails: mlx5_0/1 is named by two entries"));
}

TEST(RailChoiceTest, Patterns) {
  // In any state: mlx5_2/2 is down and keeps its index.
  EXPECT_THAT(Choose("[{device: \"mlx5_[12]\"}, {device: mlx5_0}]"),
              ElementsAre("rail0=mlx5_1/1@400g", "rail1=mlx5_2/1@400g", "rail2=mlx5_2/2@400g", "rail3=mlx5_0/1@400g"));
  EXPECT_THAT(Choose("[{device: \"mlx5_?/1\"}]"),
              ElementsAre("rail0=mlx5_0/1@400g", "rail1=mlx5_1/1@400g", "rail2=mlx5_2/1@400g"));
  EXPECT_THAT(Choose("[{device: \"mlx5_*/2\"}, {device: \"bnxt*\"}]"),
              ElementsAre("rail0=mlx5_2/2@400g", "rail1=bnxt_0/1@400g"));
  EXPECT_THAT(Choose("[{device: \"x*\"}]"),
              ElementsAre(HasSubstr("no RDMA port matches device 'x*'; this node has mlx5_0/1")));
  EXPECT_THAT(Choose("[{device: \"mlx5_*\"}, {device: mlx5_1}]"),
              ElementsAre("INVALID_ARGUMENT: rails: mlx5_1/1 is named by two entries"));
  EXPECT_THAT(Choose("[{device: \"mlx5_[01]\"}, {name: rail1, device: mlx5_2/1}]"),
              ElementsAre("INVALID_ARGUMENT: rails: 'rail1' is the name of another rail, and the default name of rail "
                          "1; give one of them another name"));
}

// Two rails, the second of which is down, and a NIC for storage.
TEST(RailChoiceTest, RulesOfAuto) {
  std::vector<RdmaPort> ports = {Port("mlx5_0", 1), Port("mlx5_1", 2, false), Port("mlx5_2", 3)};
  ports[0].pci_address = "0000:1a:00.0";
  ports[0].numa_node = 0;
  ports[2].pci_address = "0000:c1:00.0";
  const auto choose = [&](const std::string& rules) -> std::string {
    const absl::StatusOr<Config> config = ParseConfig("rails: auto\nauto_rails: " + rules + "\n", "f");
    if (!config.ok()) return std::string(config.status().message());
    const absl::StatusOr<std::vector<RailSpec>> chosen = ChooseRails(*config, ports);
    if (!chosen.ok()) return chosen.status().ToString();
    std::string out;
    for (const RailSpec& rail : *chosen) absl::StrAppend(&out, rail.name, "=", rail.device, " ");
    return out;
  };
  EXPECT_EQ(choose("{}"), "rail0=mlx5_0/1 rail1=mlx5_2/3 ");
  EXPECT_EQ(choose("{leave: [device:mlx5_2]}"), "rail0=mlx5_0/1 ");
  // A port that is down keeps its index.
  EXPECT_EQ(choose("{take: [\"device:mlx5_*\"], leave: [\"pci:0000:c?:*\"]}"), "rail0=mlx5_0/1 rail1=mlx5_1/2 ");
  EXPECT_EQ(choose("{take: [\"interface:eth[23]\"]}"), "rail0=mlx5_1/2 rail1=mlx5_2/3 ");
  EXPECT_EQ(choose("{take: [\"network:10.0.0.1/32\", \"network:10.0.0.3/32\"]}"), "rail0=mlx5_0/1 rail1=mlx5_2/3 ");
  EXPECT_EQ(choose("{take: [\"numa:0\", \"device:mlx5_1/2\"], count: 2}"), "rail0=mlx5_0/1 rail1=mlx5_1/2 ");
  EXPECT_EQ(
      choose("{count: 3}"),
      "FAILED_PRECONDITION: rails: auto gives 2, and auto_rails.count is 3; they are mlx5_0/1, mlx5_2/3; left out: "
      "mlx5_1/2: the port is not active: DOWN, physically Polling");
  EXPECT_EQ(choose("{take: [\"numa:7\"], leave: [\"device:mlx5_0\"]}"),
            "NOT_FOUND: rails: auto: no RDMA port can be a rail; mlx5_0/1: auto_rails.leave has device:mlx5_0; "
            "mlx5_1/2: no rule of auto_rails.take matches; mlx5_2/3: no rule of auto_rails.take matches");
}

TEST(RailChoiceTest, NoDevicesAndRailsOverTcp) {
  absl::StatusOr<Config> config = ParseConfig("rails: auto\n", "f");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(ChooseRails(*config, {}).status().message(),
            "rails: auto: no RDMA port can be a rail; this node has no RDMA devices");
  config = ParseConfig("rails: [{address: 10.0.0.1}]\n", "f");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(ChooseRails(*config, {})->front().address, "10.0.0.1");
}

TEST(RdmaPortListTest, TableAndJson) {
  EXPECT_EQ(RdmaPortTable({}), "no RDMA devices\n");
  const std::vector<RdmaPort> all = Ports();
  EXPECT_EQ(RdmaPortTable({all[0], all[3], all[4]}),
            "PORT      STATE                     LINK      SPEED    MTU   GID                    INTERFACE  NUMA  "
            "PCI           USABLE AS A RAIL\n"
            "mlx5_0/1  ACTIVE                    Ethernet  400gbit  4096  3: 10.0.0.1 (RoCE v2)  eth1       1     "
            "0000:3b:00.0  yes\n"
            "mlx5_2/2  DOWN, physically Polling  Ethernet  400gbit  4096  3: 10.0.0.2 (RoCE v2)  eth2       1     "
            "0000:3b:00.0  no: mlx5_2/2: the port is not active: DOWN, physically Polling\n"
            "bnxt_0/1  ACTIVE                    Ethernet  400gbit  4096  -                      -          1     "
            "0000:3b:00.0  no: bnxt_0/1: no RoCE v2 GID (give its network interface an address); it has: 3: 10.0.0.1 "
            "RoCE v1\n");
  const std::string json = RdmaPortJson({all[3]});
  for (const char* part : {"\"device\": \"mlx5_2\"", "\"usable\": false", "\"gid_index\": 3",
                           "\"why_not\": \"mlx5_2/2: the port is not active", "\"interface\": \"eth2\""}) {
    EXPECT_THAT(json, HasSubstr(part));
  }
}

}  // namespace
}  // namespace railsd
