#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/collect.h"
#include "tests/support/temporary_folder.h"

namespace rails::ctl::doctor {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A tree of sysfs and procfs.
class DoctorCollectTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) { folder_.Write(path, text + "\n"); }
  void WritePci(const std::string& folder, const std::string& lanes) {
    Write(folder + "/numa_node", "1");
    Write(folder + "/current_link_speed", "16.0 GT/s PCIe");
    Write(folder + "/max_link_speed", "32.0 GT/s PCIe");
    Write(folder + "/current_link_width", lanes);
    Write(folder + "/max_link_width", "16");
  }
  std::string root() const { return root_.string(); }

  const railsd::testing::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(DoctorCollectTest, ReadsInterfaces) {
  Write("sys/class/net/bonding_masters", "");
  Write("sys/class/net/eth1/operstate", "up");
  Write("sys/class/net/eth1/speed", "100000");
  Write("sys/class/net/eth1/mtu", "9000");
  Write("sys/class/net/eth2/operstate", "down");
  Write("sys/class/net/eth2/speed", "-1");
  Write("proc/sys/net/ipv4/conf/all/rp_filter", "1");
  Write("proc/sys/net/ipv4/conf/all/arp_ignore", "0");
  Write("proc/sys/net/ipv4/conf/eth1/arp_ignore", "2");
  WritePci("sys/devices/pci/0000:3b:00.0", "8");
  fs::create_symlink(root_ / "sys/devices/pci/0000:3b:00.0", root_ / "sys/class/net/eth1/device");
  const std::vector<Interface> interfaces = ReadInterfaces(root(), {{"eth1", {"10.1.0.1/24"}}});
  ASSERT_EQ(interfaces.size(), 2u);
  EXPECT_EQ(interfaces[0].name, "eth1");
  EXPECT_EQ(interfaces[0].state, "up");
  EXPECT_EQ(interfaces[0].speed_bytes_per_s, 12'500'000'000u);
  EXPECT_EQ(interfaces[0].mtu_bytes, 9000u);
  EXPECT_THAT(interfaces[0].addresses, ElementsAre("10.1.0.1/24"));
  EXPECT_EQ(interfaces[0].rp_filter, 1);
  EXPECT_EQ(interfaces[0].arp_ignore, 2);
  EXPECT_EQ(interfaces[0].arp_announce, 0);
  EXPECT_EQ(interfaces[0].pci.address, "0000:3b:00.0");
  EXPECT_EQ(interfaces[0].pci.lanes, 8u);
  EXPECT_EQ(interfaces[0].pci.max_lanes, 16u);
  EXPECT_EQ(interfaces[0].pci.transfers, 16);
  EXPECT_EQ(interfaces[0].pci.max_transfers, 32);
  EXPECT_EQ(interfaces[0].pci.numa_node, 1);
  EXPECT_EQ(interfaces[1].speed_bytes_per_s, 0u);
  EXPECT_EQ(interfaces[1].pci.lanes, 0u);
}

TEST_F(DoctorCollectTest, ReadsRdmaPortsInTheDaemonsOrder) {
  for (const std::string device : {"rxe0", "mlx5_9", "mlx5_0"}) {
    const std::string port = absl::StrCat("sys/class/infiniband/", device, "/ports/1/");
    Write(port + "state", "4: ACTIVE");
    Write(port + "phys_state", "5: LinkUp");
    Write(port + "rate", "400 Gb/sec (4X NDR)");
    Write(port + "link_layer", "Ethernet");
    Write(port + "lid", "0x1f");
    Write(port + "gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001");
    Write(port + "gids/1", "0000:0000:0000:0000:0000:0000:0000:0000");
    Write(port + "gids/3", "0000:0000:0000:0000:0000:ffff:0a01:0001");
    Write(port + "gid_attrs/types/3", "RoCE v2");
    Write(port + "gid_attrs/ndevs/3", "eth1");
    if (device == "rxe0") continue;
    const std::string slot = device == "mlx5_9" ? "0000:1a:00.0" : "0000:3b:00.0";
    WritePci("sys/devices/pci/" + slot, "16");
    fs::create_symlink(root_ / "sys/devices/pci" / slot, root_ / "sys/class/infiniband" / device / "device");
  }
  const std::vector<RdmaPort> ports = ReadRdmaPorts(root());
  ASSERT_EQ(ports.size(), 3u);
  EXPECT_EQ(ports[0].Name(), "mlx5_9/1");
  EXPECT_EQ(ports[1].Name(), "mlx5_0/1");
  EXPECT_EQ(ports[2].Name(), "rxe0/1");
  EXPECT_EQ(ports[0].state, "ACTIVE");
  EXPECT_EQ(ports[0].physical_state, "LinkUp");
  EXPECT_EQ(ports[0].speed_bytes_per_s, 50'000'000'000u);
  EXPECT_EQ(ports[0].lid, 31u);
  ASSERT_EQ(ports[0].gids.size(), 2u) << "those that are in use";
  EXPECT_EQ(ports[0].gids[1].index, 3u);
  EXPECT_EQ(ports[0].gids[1].text, "::ffff:10.1.0.1");
  EXPECT_EQ(ports[0].gids[1].type, "RoCE v2");
  EXPECT_EQ(ports[0].gids[1].interface, "eth1");
}

TEST_F(DoctorCollectTest, ReadsTheMachine) {
  Write("proc/meminfo",
        "MemTotal:       1024 kB\nHugePages_Total:      12\nHugePages_Free:        5\nHugepagesize:       2048 kB");
  Write("dev/infiniband/uverbs0", "");
  chmod((root_ / "dev/infiniband/uverbs0").c_str(), 0640);
  Write("sys/module/ib_uverbs/refcnt", "0");
  Write("sys/devices/system/node/node0/cpulist", "0");
  Write("sys/devices/system/node/node1/cpulist", "1");
  Write("sys/devices/system/node/possible", "0-1");
  Write("sys/bus/pci/devices/0000:1a:00.0/vendor", "0x15b3");
  Write("sys/bus/pci/devices/0000:1a:00.0/class", "0x020000");
  Write("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x15b3");
  Write("sys/bus/pci/devices/0000:3b:00.0/class", "0x020700");
  Write("sys/bus/pci/devices/0000:3b:00.0/infiniband/mlx5_0/node_guid", "");
  Write("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086");
  Write("sys/bus/pci/devices/0000:00:01.0/class", "0x020000");
  const Machine machine = ReadMachine(root(), {});
  EXPECT_EQ(machine.memory_bytes, 1u << 20);
  EXPECT_EQ(machine.huge_page_bytes, 2u << 20);
  EXPECT_EQ(machine.huge_pages, 12u);
  EXPECT_EQ(machine.huge_pages_free, 5u);
  EXPECT_EQ(machine.numa_nodes, 2);
  EXPECT_TRUE(machine.uverbs_module);
  EXPECT_THAT(machine.nics_without_rdma, ElementsAre("0000:1a:00.0"));
  ASSERT_EQ(machine.device_files.size(), 1u);
  EXPECT_EQ(machine.device_files[0].path, "/dev/infiniband/uverbs0");
  EXPECT_EQ(machine.device_files[0].mode & 07777, 0640u);
}

TEST_F(DoctorCollectTest, OfAnEmptyMachineThereIsNothing) {
  const Machine machine = ReadMachine(root(), {});
  EXPECT_THAT(machine.interfaces, IsEmpty());
  EXPECT_THAT(machine.ports, IsEmpty());
  EXPECT_FALSE(machine.uverbs_module);
  EXPECT_EQ(machine.numa_nodes, 1);
  EXPECT_EQ(ReadProcess(root(), 42).pid, 0);
}

TEST_F(DoctorCollectTest, ReadsAProcess) {
  Write("proc/42/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max locked memory         8388608              unlimited            bytes\n"
        "Max open files            unlimited            unlimited            files");
  Write(
      "proc/42/status",
      "Name:\trailsd\nUid:\t7471\t7471\t7471\t7471\nGid:\t7472\t0\t0\t0\nGroups:\t7473 100\nCapEff:\t0000000000004000");
  std::ofstream(root_ / "proc/42/cmdline") << std::string("railsd\0--node\0n1\0--config\0/etc/x.yaml\0", 38);
  fs::create_directories(root_ / "proc/42/ns");
  fs::create_directories(root_ / "proc/self/ns");
  fs::create_symlink("net:[1]", root_ / "proc/42/ns/net");
  fs::create_symlink("net:[2]", root_ / "proc/self/ns/net");
  const DaemonProcess process = ReadProcess(root(), 42);
  EXPECT_EQ(process.pid, 42);
  EXPECT_EQ(process.memlock_bytes, 8u << 20);
  EXPECT_EQ(process.open_files, kUnlimited);
  EXPECT_EQ(process.uid, 7471u);
  EXPECT_THAT(process.groups, ElementsAre(7472u, 7473u, 100u));
  EXPECT_TRUE(process.may_lock_memory);
  EXPECT_EQ(process.config_path, "/etc/x.yaml");
  EXPECT_THAT(process.options, ElementsAre("--node", "n1"));
  EXPECT_EQ(process.same_network, false);
}

TEST(DoctorConfigurationTest, UnderstandsWhatTheDaemonPrints) {
  Configuration config;
  ParseConfiguration(R"(node: "n0"
socket_dir: "/run/railsd"
control:
  listen: "127.0.1.1:7471"
rails:
  - {name: "rail0", transport: "tcp", address: "127.1.0.1", interface: "", speed: 200mbit}
  - {transport: "verbs", device: "mlx5_[0-3]"}
peers:
  static:
    - {name: "n1", control: "127.0.1.2:7471", rails: ["127.1.0.2"]}
  dns: {name: "railsd.default.svc", port: 7471, refresh: 10s}
tls:
  data: "kernel"
)",
                     &config);
  ASSERT_TRUE(config.verdict.ok()) << config.verdict;
  EXPECT_EQ(config.node, "n0");
  EXPECT_TRUE(config.tls_data);
  EXPECT_EQ(config.socket_dir, "/run/railsd");
  EXPECT_EQ(config.control_listen, "127.0.1.1:7471");
  ASSERT_EQ(config.rails.size(), 2u);
  EXPECT_EQ(config.rails[0].address, "127.1.0.1");
  EXPECT_EQ(config.rails[0].speed, "200mbit");
  EXPECT_EQ(config.rails[1].device, "mlx5_[0-3]");
  ASSERT_EQ(config.peers.size(), 1u);
  EXPECT_EQ(config.peers[0].control, "127.0.1.2:7471");
  EXPECT_EQ(config.dns_name, "railsd.default.svc");
  Configuration automatic;
  ParseConfiguration("rails: auto\npeers:\n  static: []\n", &automatic);
  EXPECT_TRUE(automatic.auto_rails);
  Configuration broken;
  ParseConfiguration("rails: [", &broken);
  EXPECT_FALSE(broken.verdict.ok());
}

}  // namespace
}  // namespace rails::ctl::doctor
