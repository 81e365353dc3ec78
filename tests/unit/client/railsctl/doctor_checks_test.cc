#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/rails.h"
#include "client/railsctl/doctor/render.h"

namespace rails::ctl::doctor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A finding of this level whose text holds this.
auto Is(Level level, const std::string& found) {
  return AllOf(Field("level", &Finding::level, level), Field("found", &Finding::found, HasSubstr(found)));
}

Interface MakeInterface(const std::string& name, const std::string& address) {
  Interface interface;
  interface.name = name;
  interface.state = "up";
  interface.mtu_bytes = 9000;
  interface.speed_bytes_per_s = 12'500'000'000;
  interface.addresses = {address};
  return interface;
}

RdmaPort MakePort(const std::string& device, const std::string& interface, const std::string& address) {
  RdmaPort port;
  port.device = device;
  port.state = "ACTIVE";
  port.physical_state = "LinkUp";
  port.speed_bytes_per_s = 12'500'000'000;
  port.gids = {{0, "fe80::1", "RoCE v1", interface},
               {1, "fe80::1", "RoCE v2", interface},
               {3, "::ffff:" + address, "RoCE v2", interface}};
  port.pci = {absl::StrCat("0000:", device.substr(device.size() - 1), "0:00.0"), 16, 16, 16, 16, 0};
  return port;
}

// A daemon with two rails over TCP and one peer, on a machine without mistakes.
Facts Healthy() {
  Facts facts;
  facts.version = "1.2.0";
  facts.socket_dir = "/run/railsd";
  facts.machine.interfaces = {MakeInterface("eth1", "10.1.0.1/24"), MakeInterface("eth2", "10.2.0.1/24")};
  facts.machine.huge_page_bytes = 2 << 20;
  facts.machine.huge_pages = facts.machine.huge_pages_free = 100;
  facts.clock = {true, true, 1500};
  facts.user.name = "alice";
  for (const char* name : {"client.sock", "descriptors.sock", "operator.sock"}) {
    Socket socket;
    socket.name = name;
    socket.exists = socket.usable = true;
    socket.mode = 0660;
    socket.gid = 7;
    socket.group = "rails";
    facts.sockets.push_back(socket);
  }
  facts.process.pid = 812;
  facts.process.uid = 7471;
  facts.process.groups = {7471};
  facts.process.memlock_bytes = kUnlimited;
  facts.process.open_files = 1 << 20;
  facts.process.same_network = true;
  facts.config.path = "/etc/railsd/railsd.yaml";
  facts.config.exists = true;
  facts.config.program = "/usr/bin/railsd";
  facts.config.program_version = "1.2.0";
  facts.config.node = "n0";
  facts.config.rails = {{"rail0", "tcp", "10.1.0.1", "", "", "100gbit"}, {"rail1", "tcp", "10.2.0.1", "", "", ""}};
  facts.config.peers = {{"n0", "10.0.0.1:7471", "itself"}, {"n1", "10.0.0.2:7471", ""}};
  facts.overview.mutable_status()->set_node("n0");
  facts.overview.mutable_status()->set_version("1.2.0");
  facts.overview.set_time_seconds(1e9);
  facts.overview.mutable_status()->set_tls(true);
  facts.overview.mutable_status()->set_tls_certificate_expiry_seconds(1e9 + 100 * 86400.0);
  for (uint32_t r = 0; r < 2; ++r) {
    auto* rail = facts.overview.add_rails();
    rail->set_index(r);
    rail->set_name(absl::StrCat("rail", r));
    rail->set_address(absl::StrCat("10.", r + 1, ".0.1:7000"));
    rail->set_speed_bytes_per_second(12'500'000'000);
    rail->set_peers_known(1);
    rail->set_peers_up(1);
    rail->mutable_health()->set_state(v1::RAIL_STATE_UP);
  }
  auto* peer = facts.overview.add_peers();
  peer->set_node("n1");
  peer->set_up(true);
  peer->set_version("1.2.0");
  for (int r = 0; r < 2; ++r) {
    peer->add_rails_up(true);
    peer->add_rail_states(v1::RAIL_STATE_UP);
    peer->add_rail_addresses(absl::StrCat("10.", r + 1, ".0.2:7000"));
  }
  return facts;
}

// The same with rails over verbs.
Facts HealthyVerbs() {
  Facts facts = Healthy();
  facts.machine.ports = {MakePort("mlx5_0", "eth1", "10.1.0.1"), MakePort("mlx5_1", "eth2", "10.2.0.1")};
  facts.machine.uverbs_module = true;
  facts.machine.device_files = {{"/dev/infiniband/uverbs0", 0666, 0, 0}, {"/dev/infiniband/rdma_cm", 0600, 0, 0}};
  facts.config.rails = {{"", "verbs", "", "", "mlx5_[0-9]", ""}};
  for (int r = 0; r < 2; ++r) {
    auto* device = facts.overview.mutable_rails(r)->mutable_device();
    device->set_name(absl::StrCat("mlx5_", r));
    device->set_port(1);
    device->set_state("active");
    device->set_mtu_bytes(4096);
  }
  return facts;
}

Facts NotRunning(Facts facts) {
  facts.answered = absl::UnavailableError("/run/railsd/operator.sock: No such file or directory");
  facts.overview.Clear();
  facts.process = {};
  for (Socket& socket : facts.sockets) socket.exists = false;
  return facts;
}

TEST(Doctor, FindsNothingOnAHealthyNode) {
  for (const Facts& facts : {Healthy(), HealthyVerbs()}) {
    const Findings findings = CheckAll(facts);
    for (const Finding& finding : findings) {
      EXPECT_EQ(finding.level, Level::kOk) << finding.check << ": " << finding.found;
    }
    EXPECT_GE(findings.size(), 12u);
    const std::string text = Render(findings, false);
    EXPECT_THAT(text, HasSubstr(absl::StrCat("0 errors, 0 warnings, 0 notes; ", findings.size(), " ok\n")));
  }
}

TEST(Doctor, WhatIsNotOkSaysWhatItMeansAndWhatToDo) {
  Facts facts = NotRunning(HealthyVerbs());
  facts.machine = {};
  facts.config.exists = false;
  facts.config.given = true;
  facts.clock = {};
  for (const Finding& finding : CheckAll(facts)) {
    if (finding.level == Level::kOk) continue;
    EXPECT_NE(finding.means, "") << finding.found;
    EXPECT_NE(finding.fix, "") << finding.found;
  }
}

TEST(DoctorDaemon, TellsASilentDaemonFromNone) {
  Facts facts = NotRunning(Healthy());
  EXPECT_THAT(CheckDaemon(facts), ElementsAre(Is(Level::kWarning, "no daemon runs on /run/railsd")));
  facts.sockets[2].exists = true;
  EXPECT_THAT(CheckDaemon(facts), ElementsAre(Is(Level::kError, "operator.sock")));
  facts.answered = absl::DeadlineExceededError("did not answer within 5s");
  EXPECT_THAT(CheckDaemon(facts)[0].fix, HasSubstr("gdb"));
  facts.answered = absl::PermissionDeniedError("may not open operator.sock");
  EXPECT_THAT(CheckDaemon(facts)[0].fix, HasSubstr("usermod -aG rails-operators alice"));
  facts = Healthy();
  facts.overview.mutable_status()->set_draining(true);
  EXPECT_THAT(CheckDaemon(facts), ElementsAre(Is(Level::kWarning, "node n0 takes no new work"), Is(Level::kOk, "TLS")));
  facts = Healthy();
  facts.serving = false;
  EXPECT_THAT(CheckDaemon(facts)[0].fix, HasSubstr("railsctl undrain --node"));
  facts.live = false;
  EXPECT_THAT(CheckDaemon(facts),
              ElementsAre(Is(Level::kError, "a thread of the daemon hangs"), Is(Level::kOk, "TLS")));
  facts = Healthy();
  facts.health = absl::UnavailableError("no answer");
  facts.overview.mutable_status()->set_tls(false);
  EXPECT_THAT(CheckDaemon(facts), ElementsAre(Is(Level::kError, "no answer"), Is(Level::kNote, "encrypt")));
}

TEST(DoctorDaemon, JudgesTheCertificate) {
  Facts facts = Healthy();
  EXPECT_THAT(CheckDaemon(facts)[1], Is(Level::kOk, "mutual TLS; its certificate expires in 100d"));
  v1::GetStatusResponse* status = facts.overview.mutable_status();
  status->set_tls_certificate_expiry_seconds(1e9 + 13 * 86400.0);
  EXPECT_THAT(CheckDaemon(facts)[1], Is(Level::kWarning, "its certificate expires in 13d"));
  status->set_tls_certificate_expiry_seconds(1e9 - 7200);
  EXPECT_THAT(CheckDaemon(facts)[1], Is(Level::kError, "its certificate expired 2h 00m ago"));
  EXPECT_THAT(CheckDaemon(facts)[1].fix, HasSubstr("the daemon reads it while it runs"));
}

TEST(DoctorRails, JudgesStates) {
  Facts facts = Healthy();
  auto* health = facts.overview.mutable_rails(0)->mutable_health();
  health->set_state(v1::RAIL_STATE_DOWN);
  health->set_why("the link of eth1 is down");
  EXPECT_THAT(CheckRails(facts),
              ElementsAre(Is(Level::kError, "rail0 is DOWN: the link of eth1 is down"), Is(Level::kOk, "rail1")));
  health->set_state(v1::RAIL_STATE_PROBING);
  EXPECT_THAT(CheckRails(facts)[0], Is(Level::kWarning, "PROBING"));
  health->set_drained(true);
  EXPECT_THAT(CheckRails(facts)[0], Is(Level::kWarning, "DRAINED"));
  EXPECT_THAT(CheckRails(facts)[0].fix, HasSubstr("railsctl undrain rail0"));
  facts = Healthy();
  facts.overview.mutable_rails(1)->set_peers_known(3);
  EXPECT_THAT(CheckRails(facts)[1], Is(Level::kError, "rail1 reaches 1 of 3 peers"));
  facts = HealthyVerbs();
  facts.overview.mutable_rails(1)->mutable_device()->set_state("down");
  EXPECT_THAT(CheckRails(facts)[1], Is(Level::kError, "the port is down"));
}

TEST(DoctorPeers, NamesThePathThatIsMissing) {
  Facts facts = Healthy();
  facts.overview.mutable_peers(0)->set_rails_up(1, false);
  EXPECT_THAT(CheckPeers(facts),
              ElementsAre(Is(Level::kError, "node n1 is not reached over rail1 (not connected, 10.2.0.2:7000)")));
  facts = Healthy();
  facts.overview.mutable_peers(0)->set_rail_states(0, v1::RAIL_STATE_SUSPECT);
  EXPECT_THAT(CheckPeers(facts),
              ElementsAre(Is(Level::kWarning, "node n1 is not sent to over rail0 (suspect, 10.1.0.2:7000)")));
  facts.overview.mutable_peers(0)->set_up(false);
  EXPECT_THAT(CheckPeers(facts), IsEmpty()) << "its rails are down because its link is";
  facts = Healthy();
  facts.overview.mutable_peers(0)->set_why("nothing was heard");
  EXPECT_THAT(CheckPeers(facts), ElementsAre(Is(Level::kWarning, "nothing was heard")));
  facts.overview.clear_peers();
  EXPECT_THAT(CheckPeers(facts), ElementsAre(Is(Level::kNote, "no peer")));
}

TEST(DoctorPeers, LooksTheirNameUp) {
  Facts facts = Healthy();
  facts.config.dns_name = "rails.example";
  facts.config.dns_addresses = 2;
  EXPECT_THAT(CheckPeers(facts), ElementsAre(Is(Level::kOk, "1 peer")));
  EXPECT_THAT(CheckPeers(NotRunning(facts)),
              ElementsAre(Is(Level::kOk, "rails.example has 2 addresses"), Is(Level::kOk, "take control connections")));
  facts.config.dns_trouble = "Name or service not known";
  EXPECT_THAT(CheckLinks(facts), ElementsAre(Is(Level::kError, "peers.dns: rails.example: Name or service not known")));
}

TEST(DoctorPeers, WithoutADaemonTriesTheirControlAddresses) {
  Facts facts = NotRunning(Healthy());
  EXPECT_THAT(CheckPeers(facts), ElementsAre(Is(Level::kOk, "take control connections: n1")));
  facts.config.peers[1].trouble = "Connection refused";
  EXPECT_THAT(CheckPeers(facts), ElementsAre(Is(Level::kNote, "n1 does not answer at 10.0.0.2:7471: Connection")));
}

TEST(DoctorVersions, ComparesAllOfThem) {
  Facts facts = Healthy();
  facts.version = "1.3.0";
  EXPECT_THAT(CheckVersions(facts), ElementsAre(Is(Level::kWarning, "the daemon is 1.2.0, railsctl is 1.3.0")));
  facts.config.program_version = "1.3.0";
  facts.overview.mutable_peers(0)->set_version("1.1.0");
  EXPECT_THAT(CheckVersions(facts),
              ElementsAre(Is(Level::kWarning, ""), Is(Level::kWarning, "/usr/bin/railsd is 1.3.0"),
                          Is(Level::kWarning, "its peers differ: n1 1.1.0")));
  EXPECT_THAT(CheckVersions(NotRunning(Healthy())), ElementsAre(Is(Level::kOk, "1.2.0")));
  facts = NotRunning(Healthy());
  facts.version = "1.3.0";
  EXPECT_THAT(CheckVersions(facts), ElementsAre(Is(Level::kWarning, "is 1.2.0, railsctl is 1.3.0")));
}

TEST(DoctorConfiguration, ShowsTheMistakes) {
  Facts facts = Healthy();
  facts.config.verdict =
      absl::InvalidArgumentError("railsd.yaml:3: rails[0].speed: 'fast'\nrailsd.yaml:9: plam: no key");
  EXPECT_THAT(CheckConfiguration(facts), ElementsAre(Is(Level::kError, "'fast'; railsd.yaml:9")));
  facts = Healthy();
  facts.config.node = "n7";
  facts.config.hash = "0123";
  EXPECT_THAT(CheckConfiguration(facts), ElementsAre(Is(Level::kNote, "says node n7, the daemon is node n0")));
  facts.config.node = "n0";
  facts.overview.mutable_status()->set_config_hash("4567");
  EXPECT_THAT(CheckConfiguration(facts),
              ElementsAre(Is(Level::kWarning, "is not what the daemon runs with (0123, in force is 4567)")));
  facts.overview.mutable_status()->set_config_hash("0123");
  EXPECT_THAT(CheckConfiguration(facts), ElementsAre(Is(Level::kOk, "no mistakes")));
  facts.config.here = absl::NotFoundError("control.listen: this machine has no address in 10.1.0.0/16");
  EXPECT_THAT(CheckConfiguration(facts), ElementsAre(Is(Level::kOk, "no mistakes")));
  EXPECT_THAT(CheckConfiguration(NotRunning(facts)), ElementsAre(Is(Level::kError, "no address in 10.1.0.0/16")));
  facts = Healthy();
  facts.config.program = "";
  EXPECT_THAT(CheckConfiguration(facts), ElementsAre(Is(Level::kNote, "no program railsd")));
  facts.config.exists = false;
  EXPECT_THAT(CheckConfiguration(facts), ElementsAre(Is(Level::kNote, "does not exist")));
  EXPECT_THAT(CheckConfiguration(NotRunning(facts)), ElementsAre(Is(Level::kWarning, "does not exist")));
  facts.config.given = true;
  EXPECT_THAT(CheckConfiguration(facts), ElementsAre(Is(Level::kError, "does not exist")));
}

TEST(DoctorSockets, JudgesModesAndThisUsersGroups) {
  Facts facts = Healthy();
  facts.sockets[0].usable = false;
  facts.sockets[2].mode = 0600;
  facts.sockets[2].usable = false;
  const Findings findings = CheckSockets(facts);
  ASSERT_THAT(findings,
              ElementsAre(Is(Level::kWarning, "alice may not use client.sock"),
                          Is(Level::kWarning, "alice may not use operator.sock: operator.sock has mode 0600")));
  EXPECT_THAT(findings[0].fix, HasSubstr("`usermod -aG rails alice`"));
  EXPECT_THAT(findings[1].fix, HasSubstr("operator_group: rails-operators"));
  facts = Healthy();
  facts.sockets[0].mode = facts.sockets[2].mode = 0666;
  facts.sockets[1].exists = false;
  EXPECT_THAT(CheckSockets(facts), ElementsAre(Is(Level::kNote, "client.sock has mode 0666"),
                                               Is(Level::kError, "/run/railsd/descriptors.sock is missing"),
                                               Is(Level::kWarning, "operator.sock has mode 0666")));
  EXPECT_THAT(CheckSockets(NotRunning(Healthy())), IsEmpty());
}

TEST(DoctorDevices, JudgesPortsAndGids) {
  Facts facts = HealthyVerbs();
  facts.machine.ports[0].state = "DOWN";
  facts.machine.ports[0].physical_state = "Disabled";
  facts.machine.ports[1].gids.resize(2);
  EXPECT_THAT(CheckDevices(facts),
              ElementsAre(Is(Level::kError, "mlx5_0/1 (rail0): the port is DOWN, physically Disabled"),
                          Is(Level::kWarning, "mlx5_1/1 (rail1): the only GID of RoCE v2 is link-local")));
  facts.machine.ports[1].gids.resize(1);
  EXPECT_THAT(CheckDevices(facts)[1], Is(Level::kError, "no GID of RoCE v2; it has 0: fe80::1 (RoCE v1)"));
  EXPECT_THAT(CheckDevices(facts)[1].fix, HasSubstr("dev eth2"));
  facts.overview.mutable_rails()->RemoveLast();
  EXPECT_THAT(CheckDevices(facts)[1], Is(Level::kNote, "mlx5_1/1: no GID")) << "no rail uses it";
  facts = HealthyVerbs();
  facts.machine.ports[0].link_layer = "InfiniBand";
  EXPECT_THAT(CheckDevices(facts)[0], Is(Level::kError, "active, InfiniBand, but it has no LID"));
  facts.machine.ports[0].lid = 4;
  EXPECT_THAT(CheckDevices(facts)[0], Is(Level::kOk, "LID 4"));
  Facts without_gid = facts;
  without_gid.machine.ports[0].gids.clear();
  EXPECT_THAT(CheckDevices(without_gid)[0], Is(Level::kError, "active, InfiniBand, but it has no GID"));
  auto* device = facts.overview.mutable_rails(0)->mutable_device();
  for (const auto& [registers, text] : {std::pair(true, "LID 4; registers dma-bufs"), {false, "LID 4; no dma-bufs"}}) {
    device->set_dma_bufs(registers);
    EXPECT_THAT(CheckDevices(facts)[0], Is(Level::kOk, text));
  }
  facts.machine.ports.pop_back();
  EXPECT_THAT(CheckDevices(facts)[1], Is(Level::kError, "rail1: this machine has no RDMA device mlx5_1/1"));
  facts = Healthy();
  EXPECT_THAT(CheckDevices(facts), ElementsAre(Is(Level::kOk, "no rail needs one")));
  facts.machine.nics_without_rdma = {"0000:3b:00.0"};
  EXPECT_THAT(CheckDevices(facts), ElementsAre(Is(Level::kNote, "0000:3b:00.0")));
}

TEST(DoctorDevices, NeedModuleAndPermission) {
  Facts facts = HealthyVerbs();
  facts.machine.uverbs_module = false;
  EXPECT_THAT(CheckDeviceFiles(facts), ElementsAre(Is(Level::kError, "ib_uverbs is not loaded")));
  facts = HealthyVerbs();
  facts.machine.device_files[0].mode = 0660;
  EXPECT_THAT(CheckDeviceFiles(facts), ElementsAre(Is(Level::kError, "uverbs0 has mode 0660, owner 0, group 0")));
  facts.machine.device_files[0].gid = 7471;
  EXPECT_THAT(CheckDeviceFiles(facts), ElementsAre(Is(Level::kOk, "may be opened"))) << "by the daemon's group";
  facts.machine.device_files.clear();
  EXPECT_THAT(CheckDeviceFiles(facts), ElementsAre(Is(Level::kError, "holds no device")));
  EXPECT_THAT(CheckDeviceFiles(Healthy()), IsEmpty());
}

TEST(DoctorDevices, SeeSlotsThatAreSlow) {
  Facts facts = HealthyVerbs();
  facts.machine.ports[0].pci.lanes = 8;
  const Findings findings = CheckPcie(facts);
  ASSERT_THAT(findings,
              ElementsAre(Is(Level::kWarning,
                             "rail0 (0000:00:00.0) has trained to 16 GT/s x8, 126 Gbit/s; it can do 16 GT/s x16")));
  EXPECT_THAT(findings[0].means, HasSubstr("It is enough"));
  facts.machine.ports[0].pci.lanes = 4;
  EXPECT_THAT(CheckPcie(facts)[0].means, HasSubstr("slower than the rail (100 Gbit/s)"));
}

TEST(DoctorDevices, SeeNumaNodes) {
  Facts facts = HealthyVerbs();
  EXPECT_THAT(CheckNuma(facts), IsEmpty()) << "there is one";
  facts.machine.numa_nodes = 2;
  EXPECT_THAT(CheckNuma(facts), ElementsAre(Is(Level::kNote, "rail0 0, rail1 0, of 2")));
  facts.machine.ports[1].pci.numa_node = 1;
  EXPECT_THAT(CheckNuma(facts), ElementsAre(Is(Level::kOk, "rail0 0, rail1 1")));
  facts.machine.ports[1].pci.numa_node = -1;
  EXPECT_THAT(CheckNuma(facts), ElementsAre(Is(Level::kNote, "rail1 -1")));
}

TEST(DoctorNetwork, JudgesInterfaces) {
  Facts facts = Healthy();
  facts.machine.interfaces[0].state = "down";
  facts.machine.interfaces[1].speed_bytes_per_s = 1'250'000'000;
  EXPECT_THAT(
      CheckInterfaces(facts),
      ElementsAre(Is(Level::kError, "rail0 (eth1): the link is down"),
                  Is(Level::kWarning, "rail1 (eth2): the link has 10.0 Gbit/s, the planner counts on 100 Gbit/s")));
  facts = Healthy();
  facts.machine.interfaces[0].addresses = {"10.9.0.1/24"};
  facts.machine.interfaces[1].speed_bytes_per_s = 25'000'000'000;
  EXPECT_THAT(CheckInterfaces(facts),
              ElementsAre(Is(Level::kError, "rail0: no interface of this machine has the address 10.1.0.1"),
                          Is(Level::kNote, "the link has 200 Gbit/s")));
  facts.overview.mutable_rails(0)->set_interface("eth9");
  EXPECT_THAT(CheckInterfaces(facts)[0], Is(Level::kError, "no interface eth9"));
  facts.process.same_network = false;
  EXPECT_THAT(CheckInterfaces(facts), ElementsAre(Is(Level::kNote, "another network namespace")));
  EXPECT_THAT(CheckMtu(facts), IsEmpty());
  EXPECT_THAT(CheckSubnets(facts), IsEmpty());
}

TEST(DoctorNetwork, JudgesPacketSizes) {
  Facts facts = Healthy();
  facts.machine.interfaces[1].mtu_bytes = 1500;
  EXPECT_THAT(CheckMtu(facts), ElementsAre(Is(Level::kWarning, "the rails differ: 1500 on rail1; 9000 on rail0")));
  facts = HealthyVerbs();
  for (Interface& interface : facts.machine.interfaces) interface.mtu_bytes = 1500;
  EXPECT_THAT(CheckMtu(facts), ElementsAre(Is(Level::kWarning, "an MTU of 1500 leaves RDMA packets of 1024 bytes"),
                                           Is(Level::kWarning, "rail1")));
  facts = HealthyVerbs();
  facts.overview.mutable_rails(0)->mutable_device()->set_mtu_bytes(1024);
  EXPECT_THAT(CheckMtu(facts), ElementsAre(Is(Level::kWarning, "active MTU is 1024, though the interface's of 9000")));
}

TEST(DoctorNetwork, SeesRailsThatShareASubnet) {
  Facts facts = Healthy();
  facts.machine.interfaces[1].addresses = {"10.1.0.9/24", "fe80::1/64"};
  facts.overview.mutable_rails(1)->set_address("10.1.0.9:7000");
  facts.machine.interfaces[0].rp_filter = 1;
  EXPECT_THAT(CheckSubnets(facts),
              ElementsAre(Is(Level::kWarning,
                             "eth1, eth2 are all in 10.1.0.0/24, without net.ipv4.conf.all.arp_announce=2, "
                             "net.ipv4.conf.all.arp_ignore=1, net.ipv4.conf.all.rp_filter=2")));
  for (Interface& interface : facts.machine.interfaces) {
    interface.arp_ignore = 1;
    interface.arp_announce = 2;
    interface.rp_filter = 2;
  }
  EXPECT_THAT(CheckSubnets(facts), ElementsAre(Is(Level::kNote, "eth1, eth2 are all in 10.1.0.0/24")));
  facts.machine.interfaces[1].addresses = {"10.1.0.9/32"};
  EXPECT_THAT(CheckSubnets(facts), ElementsAre(Is(Level::kOk, "")));
}

TEST(DoctorLimits, MemlockMattersForVerbs) {
  Facts facts = Healthy();
  facts.process.memlock_bytes = 8 << 20;
  EXPECT_THAT(CheckMemlock(facts), ElementsAre(Is(Level::kNote, "(process 812) may lock 8.00 MiB")));
  facts = HealthyVerbs();
  facts.process.memlock_bytes = 8 << 20;
  EXPECT_THAT(CheckMemlock(facts), ElementsAre(Is(Level::kError, "(process 812) may lock 8.00 MiB")));
  facts.process.may_lock_memory = true;
  EXPECT_THAT(CheckMemlock(facts), ElementsAre(Is(Level::kOk, "CAP_IPC_LOCK")));
  facts = NotRunning(HealthyVerbs());
  facts.own_memlock_bytes = 64 << 10;
  EXPECT_THAT(CheckMemlock(facts), ElementsAre(Is(Level::kNote, "this shell may lock 64.0 KiB")));
}

TEST(DoctorLimits, HugePagesTlsFilesAndClock) {
  Facts facts = Healthy();
  facts.machine.huge_pages_free = 0;
  EXPECT_THAT(CheckHugePages(facts), ElementsAre(Is(Level::kNote, "0 of 100 huge pages")));
  facts.machine.huge_pages = 0;
  EXPECT_THAT(CheckHugePages(facts), ElementsAre(Is(Level::kNote, "no huge pages of 2.00 MiB")));
  EXPECT_THAT(CheckTlsData(facts), IsEmpty());
  facts.config.tls_data = true;
  EXPECT_THAT(CheckTlsData(facts), ElementsAre(Is(Level::kError, "the kernel has no TLS for sockets")));
  facts.machine.tcp_upper_layers = "mptcp tls";
  EXPECT_THAT(CheckTlsData(facts), ElementsAre(Is(Level::kOk, "the kernel encrypts")));
  facts.process.open_files = 256;
  EXPECT_THAT(CheckOpenFiles(facts), ElementsAre(Is(Level::kError, "64 sessions and 256 segments need up to 745")));
  facts.clock.max_error_us = 3'000'000;
  EXPECT_THAT(CheckClock(facts), ElementsAre(Is(Level::kWarning, "wrong by 3.00 s")));
  facts.clock.synchronised = false;
  EXPECT_THAT(CheckClock(facts), ElementsAre(Is(Level::kWarning, "not synchronised")));
  facts.clock.known = false;
  EXPECT_THAT(CheckClock(facts), ElementsAre(Is(Level::kNote, "does not say")));
}

TEST(DoctorRails, OfAConfigurationFollowItsPatterns) {
  Facts facts = NotRunning(HealthyVerbs());
  const std::vector<Rail> rails = RailsOf(facts);
  ASSERT_EQ(rails.size(), 2u);
  EXPECT_EQ(rails[1].name, "rail1");
  EXPECT_EQ(rails[1].device, "mlx5_1/1");
  EXPECT_EQ(rails[1].interface, &facts.machine.interfaces[1]);
  EXPECT_EQ(HostOf("[fd00::1]:7000"), "fd00::1");
  EXPECT_EQ(HostOf("fd00::1"), "fd00::1");
  EXPECT_EQ(HostOf("10.1.0.1:7000"), "10.1.0.1");
}

TEST(DoctorRender, ShowsBadThingsInCapitalsAndCounts) {
  const Findings findings = {{"clock", Level::kOk, "synchronised", "", ""},
                             {"memlock", Level::kError, "8 MiB", "Too little.", "`raise it`."}};
  EXPECT_EQ(Render(findings, false),
            "ok      clock         synchronised\n"
            "ERROR   memlock       8 MiB\n"
            "                      Too little.\n"
            "                      -> `raise it`.\n"
            "\n1 error, 0 warnings, 0 notes; 1 ok\n");
  EXPECT_EQ(ToJson(Healthy(), findings).dump(),
            R"({"node":"n0","running":true,"version":"1.2.0","socket_dir":"/run/railsd",)"
            R"("config":"/etc/railsd/railsd.yaml","errors":1,"warnings":0,"notes":0,"findings":[)"
            R"({"check":"clock","level":"ok","found":"synchronised"},)"
            R"({"check":"memlock","level":"error","found":"8 MiB","means":"Too little.","do":"`raise it`."}]})");
}

}  // namespace
}  // namespace rails::ctl::doctor
