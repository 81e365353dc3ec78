#include "agent/transport/verbs/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/temporary_folder.h"

namespace railsd::verbs {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A sysfs tree of the test's own.
class Discovery : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) { folder_.Write(path, text + "\n"); }
  static std::string Port(const std::string& device, int port) {
    return absl::StrCat("ib/", device, "/ports/", port, "/");
  }
  void AddPort(const std::string& device, int port, const std::string& state = "4: ACTIVE",
               const std::string& layer = "Ethernet") {
    const std::string base = Port(device, port);
    Write(base + "state", state);
    Write(base + "phys_state", state == "4: ACTIVE" ? "5: LinkUp" : "3: Disabled");
    Write(base + "rate", "100 Gb/sec (4X EDR)");
    Write(base + "lid", layer == "Ethernet" ? "0x0" : "0x2a");
    Write(base + "link_layer", layer);
  }
  void AddGid(const std::string& device, int port, int index, const std::string& gid, const std::string& type) {
    const std::string base = Port(device, port);
    Write(absl::StrCat(base, "gids/", index), gid);
    Write(absl::StrCat(base, "gid_attrs/types/", index), type);
    Write(absl::StrCat(base, "gid_attrs/ndevs/", index), "eth0");
  }
  void AddPci(const std::string& device, const std::string& address, const std::string& numa_node) {
    Write("pci/" + address + "/numa_node", numa_node);
    fs::create_directories(root_ / "ib" / device);
    fs::create_directory_symlink(root_ / "pci" / address, root_ / "ib" / device / "device");
  }
  std::vector<RdmaPort> Read() { return ReadRdmaPorts((root_ / "ib").string()); }

  const testing::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

constexpr char kLinkLocal[] = "fe80:0000:0000:0000:0a00:27ff:fe00:0001";
constexpr char kRoutable[] = "2001:0db8:0000:0000:0000:0000:0000:0001";
constexpr char kIpv4[] = "0000:0000:0000:0000:0000:ffff:c0a8:0a01";
constexpr char kUnused[] = "0000:0000:0000:0000:0000:0000:0000:0000";

TEST_F(Discovery, NothingThere) { EXPECT_TRUE(Read().empty()); }

TEST_F(Discovery, TwoPortsOfOneCardAndASoftwareDevice) {
  AddPort("mlx5_1", 1);
  AddPort("mlx5_1", 2, "1: DOWN");
  AddPci("mlx5_1", "0000:3b:00.0", "1");
  AddPort("mlx5_0", 1);
  AddPci("mlx5_0", "0000:5e:00.0", "0");
  AddPort("arxe", 1);
  const std::vector<RdmaPort> ports = Read();
  ASSERT_EQ(ports.size(), 4u);
  EXPECT_EQ(ports[0].Name(), "mlx5_1/1") << "by PCI address, not by name";
  EXPECT_EQ(ports[1].Name(), "mlx5_1/2");
  EXPECT_EQ(ports[2].Name(), "mlx5_0/1");
  EXPECT_EQ(ports[3].Name(), "arxe/1");
  EXPECT_EQ(ports[0].pci_address, "0000:3b:00.0");
  EXPECT_EQ(ports[0].numa_node, 1);
  EXPECT_EQ(ports[0].speed_bytes_per_s, 12'500'000'000u);
  EXPECT_EQ(ports[0].state, PortState::kActive);
  EXPECT_EQ(ports[1].state, PortState::kDown);
  EXPECT_EQ(ports[3].pci_address, "");
  EXPECT_EQ(ports[3].numa_node, -1);
}

TEST_F(Discovery, APortThatIsDownIsSaidToBe) {
  AddPort("mlx5_0", 1, "1: DOWN");
  AddGid("mlx5_0", 1, 0, kIpv4, "RoCE v2");
  EXPECT_THAT(std::string(CheckUsable(Read()[0]).message()),
              ::testing::AllOf(HasSubstr("mlx5_0/1"), HasSubstr("DOWN"), HasSubstr("Disabled")));
}

TEST_F(Discovery, TheRightGidIsChosen) {
  AddPort("mlx5_0", 1);
  AddGid("mlx5_0", 1, 0, kLinkLocal, "IB/RoCE v1");
  AddGid("mlx5_0", 1, 1, kLinkLocal, "RoCE v2");
  EXPECT_EQ(ChooseGid(Read()[0], std::nullopt)->index, 1u);
  AddGid("mlx5_0", 1, 2, kRoutable, "RoCE v2");
  EXPECT_EQ(ChooseGid(Read()[0], std::nullopt)->index, 2u);
  AddGid("mlx5_0", 1, 3, kIpv4, "IB/RoCE v1");
  AddGid("mlx5_0", 1, 4, kUnused, "RoCE v2");
  AddGid("mlx5_0", 1, 10, kIpv4, "RoCE v2");
  AddGid("mlx5_0", 1, 9, kIpv4, "RoCE v2");
  const absl::StatusOr<Gid> gid = ChooseGid(Read()[0], std::nullopt);
  EXPECT_EQ(gid->index, 9u) << "the first of equals, by number";
  EXPECT_EQ(gid->interface, "eth0");
  EXPECT_TRUE(CheckUsable(Read()[0]).ok());
}

TEST_F(Discovery, AGidCanBeForced) {
  AddPort("mlx5_0", 1);
  AddGid("mlx5_0", 1, 0, kLinkLocal, "IB/RoCE v1");
  AddGid("mlx5_0", 1, 3, kIpv4, "RoCE v2");
  EXPECT_EQ(ChooseGid(Read()[0], 0)->index, 0u);
  const absl::Status wrong = ChooseGid(Read()[0], 2).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("GID index 2 is not in use; it has: 0: fe80"));
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("3: 192.168.10.1 RoCE v2"));
}

TEST_F(Discovery, ADeviceWithoutAUsableGidSaysSo) {
  AddPort("mlx5_0", 1);
  EXPECT_THAT(std::string(CheckUsable(Read()[0]).message()), HasSubstr("no RoCE v2 GID"));
  AddGid("mlx5_0", 1, 0, kIpv4, "IB/RoCE v1");
  EXPECT_EQ(CheckUsable(Read()[0]).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(Discovery, AnInfiniBandPortWithoutAGidIsNotAskedForRoce) {
  AddPort("mlx5_0", 1, "4: ACTIVE", "InfiniBand");
  const std::string text(ChooseGid(Read()[0], std::nullopt).status().message());
  EXPECT_EQ(text, "mlx5_0/1: the InfiniBand port has no GID (is a subnet manager running?)");
}

TEST_F(Discovery, InfiniBandNeedsALid) {
  AddPort("mlx5_0", 1, "4: ACTIVE", "InfiniBand");
  AddGid("mlx5_0", 1, 0, kLinkLocal, "IB/RoCE v1");
  const RdmaPort port = Read()[0];
  EXPECT_EQ(port.link_layer, LinkLayer::kInfiniBand);
  EXPECT_EQ(port.lid, 42);
  EXPECT_TRUE(CheckUsable(port).ok());
  EXPECT_EQ(ChooseGid(port, std::nullopt)->type, GidType::kInfiniBand);
  Write(Port("mlx5_0", 1) + "lid", "0x0");
  EXPECT_THAT(std::string(CheckUsable(Read()[0]).message()), HasSubstr("subnet manager"));
}

TEST_F(Discovery, NonsenseIsNoPort) {
  AddPort("mlx5_0", 1);
  Write(Port("mlx5_0", 1) + "rate", "fast");
  Write(Port("mlx5_0", 1) + "state", "");
  Write("ib/mlx5_0/ports/x/state", "4: ACTIVE");
  Write("ib/mlx5_0/ports/0/state", "4: ACTIVE");
  AddGid("mlx5_0", 1, 0, "not a gid", "RoCE v2");
  const std::vector<RdmaPort> ports = Read();
  ASSERT_EQ(ports.size(), 1u);
  EXPECT_EQ(ports[0].speed_bytes_per_s, 0u);
  EXPECT_EQ(ports[0].state, PortState::kUnknown);
  EXPECT_TRUE(ports[0].gids.empty());
}

TEST(PortName, WithAndWithoutPort) {
  EXPECT_EQ(ParsePortName("mlx5_0")->port, 1);
  EXPECT_EQ(ParsePortName("mlx5_0/2")->port, 2);
  EXPECT_EQ(ParsePortName("mlx5_0/2")->device, "mlx5_0");
  for (const char* wrong : {"", "/1", "mlx5_0/", "mlx5_0/0", "mlx5_0/256", "mlx5_0/x", "mlx5_0/-1"}) {
    EXPECT_FALSE(ParsePortName(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace railsd::verbs
