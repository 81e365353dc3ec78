// The output for people and for scripts, letter by letter.
#include "client/railsctl/inspect/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/railsctl/printable.h"
#include "client/railsctl/table.h"
#include "common/json/json.h"
#include "common/json/names.h"
#include "tests/unit/client/railsctl/set_counter.h"

namespace rails::ctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TableTest, AlignsAndLeavesNoTrailingBlanks) {
  Table table({{"NAME"}, {"SIZE", Table::Align::kRight}, {"WHY"}});
  table.AddRow({"a", "7", ""});
  table.AddRow({"longer", "1234567", "because"});
  table.AddRow({"é█", "1"});
  EXPECT_EQ(table.Render(false),
            "NAME       SIZE  WHY\n"
            "a             7\n"
            "longer  1234567  because\n"
            "é█            1\n");
}

TEST(TableTest, ColoursDoNotShiftColumns) {
  Table table({{"A"}, {"B"}});
  table.AddRow({Cell("bad", Mark::kBad), "x"});
  EXPECT_EQ(table.Render(true), "A    B\n\033[1;31mbad\033[0m  x\n");
}

TEST(BarTest, ShowsAnythingAboveZeroAndKeepsItsWidth) {
  EXPECT_EQ(Bar(0, 10, 4), "    ");
  EXPECT_EQ(Bar(1, 1e9, 4), "▏   ");
  EXPECT_EQ(Bar(10, 10, 4), "████");
  EXPECT_EQ(Bar(20, 10, 4), "████");
  EXPECT_EQ(Bar(5, 10, 4), "██  ");
  EXPECT_EQ(Bar(1, 0, 4), "    ");
  EXPECT_EQ(DisplayWidth(Bar(3.3, 10, 7)), 7u);
}

TEST(RenderTenantsTest, ShowsUseQuotasAndWhatWasRefused) {
  v1::GetStatusResponse status;
  v1::TenantStatus* tenant = status.add_tenants();
  tenant->set_name("llm");
  const auto add = [&tenant](const char* name, uint64_t value, uint64_t in_use, uint64_t refused) {
    v1::TenantQuota* quota = tenant->add_quotas();
    quota->set_name(name);
    quota->set_value(value);
    quota->set_in_use(in_use);
    quota->set_refused(refused);
  };
  add("sessions", 2, 2, 5);
  add("segments", 0, 4, 0);
  add("segment_bytes", 8 << 20, 1 << 20, 0);
  add("jobs", 0, 3, 0);
  add("jobs_per_second", 0, 0, 1);
  tenant->set_jobs_done(7);
  tenant->set_bytes_sent(1 << 20);
  tenant->set_weight(3);
  tenant->set_priority(1);
  tenant->add_rail_sent_bytes(4096);
  const std::string text = RenderTenants(status, false);
  EXPECT_THAT(text, HasSubstr("llm          3         1    2 of 2"));
  EXPECT_THAT(text, HasSubstr("  sessions 5, jobs_per_second 1\n"));
  const nlohmann::json json = MessageJson(status);
  EXPECT_EQ(json["tenants"][0]["name"], "llm");
  EXPECT_EQ(json["tenants"][0]["quotas"][2]["value"], 8 << 20);
  EXPECT_EQ(json["tenants"][0]["quotas"][0]["refused"], 5);
  EXPECT_EQ(json["tenants"][0]["jobs_done"], 7);
  EXPECT_EQ(json["tenants"][0]["weight"], 3);
  EXPECT_EQ(json["tenants"][0]["priority"], 1);
  EXPECT_EQ(json["tenants"][0]["rail_sent_bytes"], nlohmann::json::array({4096}));
}

v1::ListRailsResponse TwoRails() {
  v1::ListRailsResponse rails;
  v1::RailStatus* rail = rails.add_rails();
  rail->set_name("rail0");
  rail->set_address("127.1.0.1:7000");
  rail->set_speed_bytes_per_second(25'000'000);
  rail->set_peers_up(3);
  rail->set_peers_known(3);
  SetCounter(rail, "tx_payload_bytes", 16 << 20);
  SetCounter(rail, "rx_payload_bytes", 1536);
  rail = rails.add_rails();
  rail->set_index(1);
  rail->set_name("rail1");
  rail->set_address("127.1.1.1:7000");
  rail->set_interface("eth1");
  rail->set_speed_bytes_per_second(25'000'000);
  rail->set_peers_up(2);
  rail->set_peers_known(3);
  SetCounter(rail, "protocol_errors", 1);
  SetCounter(rail, "disconnects", 4);
  SetCounter(rail, "refused_connections", 2);
  SetCounter(rail, "connect_failures", 5);
  return rails;
}

TEST(RenderRails, Golden) {
  EXPECT_EQ(RenderRails(TwoRails(), false),
            "RAIL  NAME   STATE     PEERS  ADDRESS                   SPEED  MEASURED  QUEUED  IN FLIGHT      SENT  "
            "RECEIVED  ERRORS  DISCONNECTS  FAILED CONNECTS  FLAPS  WHY\n"
            "   0  rail0  up          3/3  127.1.0.1:7000       200 Mbit/s         -     0 B        0 B  16.0 MiB  "
            "1.50 KiB       0            0                0      0\n"
            "   1  rail1  DEGRADED    2/3  127.1.1.1:7000%eth1  200 Mbit/s         -     0 B        0 B       0 B  "
            "     0 B       1            4                7      0\n");
  EXPECT_EQ(RenderRails({}, false), "no rails\n");
}

TEST(RenderRails, StatesAndWhy) {
  v1::ListRailsResponse rails = TwoRails();
  v1::RailHealth* health = rails.mutable_rails(0)->mutable_health();
  health->set_state(v1::RAIL_STATE_PROBING);
  health->set_why("held back for 150ms more after failures");
  health->set_flaps(3);
  health->set_held_seconds(0.15);
  const std::string text = RenderRails(rails, false);
  EXPECT_THAT(text, HasSubstr("rail0  PROBING"));
  EXPECT_THAT(text, HasSubstr("3  held back for 150ms more after failures\n"));
  EXPECT_THAT(
      MessageJson(rails).dump(),
      HasSubstr(R"("health":{"state":"probing","drained":false,)"
                R"("why":"held back for 150ms more after failures","flaps":3,"drains":0,"held_seconds":0.15})"));
  health->set_state(v1::RAIL_STATE_DOWN);
  EXPECT_THAT(RenderRails(rails, false), HasSubstr("rail0  DOWN"));
  health->set_drained(true);
  EXPECT_THAT(RenderRails(rails, false), HasSubstr("rail0  DRAINED"));
  rails.mutable_rails(0)->set_in_flight_bytes(1536);
  EXPECT_EQ(RenderDrain(rails.rails(0), false), "rail0 is DRAINED; 1.50 KiB of this node are still on it.\n");
  EXPECT_EQ(RenderDrain(rails.rails(1), false), "rail1 is not drained.\n");
}

TEST(RenderRails, PeersThatHaveDrainedTheirEndAreNotMissing) {
  v1::ListRailsResponse rails = TwoRails();
  rails.mutable_rails(1)->set_peers_drained(1);
  EXPECT_THAT(RenderRails(rails, false), HasSubstr("rail1  up       2/2  "));
  rails.mutable_rails(1)->mutable_health()->set_state(v1::RAIL_STATE_DRAINED_BY_PEER);
  EXPECT_THAT(RenderRails(rails, false), HasSubstr("rail1  DRAINED BY PEER  "));
}

TEST(RenderRails, FailedConnectsAreTroubleOnlyWhileAPeerIsMissing) {
  v1::ListRailsResponse rails;
  v1::RailStatus* rail = rails.add_rails();
  SetCounter(rail, "connect_failures", 5);
  rail->set_peers_known(3);
  rail->set_peers_up(3);
  EXPECT_THAT(RenderRails(rails, true), Not(HasSubstr("5\033")));
  rail->set_peers_up(2);
  EXPECT_THAT(RenderRails(rails, true), HasSubstr("5\033"));
}

TEST(RenderRails, DevicesOfRailsOverVerbs) {
  v1::ListRailsResponse rails = TwoRails();
  for (int i = 0; i < 2; ++i) {
    v1::RailDevice* device = rails.mutable_rails(i)->mutable_device();
    device->set_name("mlx5_" + std::to_string(i));
    device->set_port(1);
    device->set_state(i == 0 ? "active" : "down");
    device->set_link_layer("Ethernet");
    device->set_gid(i == 0 ? "::ffff:10.0.0.1" : "fe80::1");
    device->set_gid_index(i == 0 ? 3 : 0);
    device->set_mtu_bytes(4096);
    device->set_windows(i == 0);
    device->set_queue_pairs(6);
    device->set_dma_bufs(i == 0);
    const auto rail = rails.mutable_rails(i);
    SetCounter(rail, "work_requests", 123456);
    SetCounter(rail, "completions", 1000);
    SetCounter(rail, "tx_fences", 12);
    SetCounter(rail, "rx_fences", 345);
    SetCounter(rail, "weak_zones", i);
  }
  EXPECT_THAT(RenderRails(rails, false),
              HasSubstr("           7      0\n\n"
                        "RAIL  DEVICE    PORT    LINK      GID                  MTU  QUEUE PAIRS  WORK REQUESTS  "
                        "COMPLETIONS  FENCES SENT  RECEIVED  ZONE KEYS  WEAK ZONES  ENDPOINT ERRORS\n"
                        "   0  mlx5_0/1  active  Ethernet  3: ::ffff:10.0.0.1  4096            6         123456  "
                        "       1000           12       345  windows             0                0\n"
                        "   1  mlx5_1/1  down    Ethernet  0: fe80::1          4096            6         123456  "
                        "       1000           12       345  weak                1                0\n"));
  const std::string json = MessageJson(rails).dump();
  EXPECT_THAT(
      json,
      HasSubstr(R"("device":{"name":"mlx5_1","port":1,"state":"down","link_layer":"Ethernet",)"
                R"("gid":"fe80::1","gid_index":0,"mtu_bytes":4096,"windows":false,"queue_pairs":6,"dma_bufs":false})"));
  EXPECT_THAT(
      json,
      HasSubstr(
          R"("counters":{"protocol_errors":1,"disconnects":4,"refused_connections":2,"connect_failures":5,"work_requests":)"));
  EXPECT_THAT(MessageJson(TwoRails()).dump(), HasSubstr(R"("device":null)"));
}

TEST(RenderRails, RatesSurviveARestartedDaemon) {
  v1::ListRailsResponse before = TwoRails(), after = TwoRails();
  SetCounter(after.mutable_rails(0), "tx_payload_bytes", (16 << 20) + 12'500'000);
  EXPECT_THAT(RenderRailRates(before, after, 0.5, false), HasSubstr("200 Mbit/s  ████████████████"));
  SetCounter(after.mutable_rails(0), "tx_payload_bytes", 5);
  EXPECT_THAT(RenderRailRates(before, after, 0.5, false), Not(HasSubstr("bit/s")));
  EXPECT_THAT(RenderRailRates({}, after, 0.5, false), Not(HasSubstr("bit/s")));
}

TEST(RenderPeers, SaysWhatIsDown) {
  v1::ListPeersResponse peers;
  v1::PeerStatus* peer = peers.add_peers();
  peer->set_node("n1");
  peer->set_boot_id(0xabcdef);
  peer->set_up(true);
  peer->add_rails_up(true);
  peer->add_rails_up(false);
  peer->add_rail_states(v1::RAIL_STATE_UP);
  peer->add_rail_states(v1::RAIL_STATE_PROBING);
  peer->add_rail_addresses("127.1.0.2:7000");
  peer = peers.add_peers();
  peer->set_node("n2");
  peer->set_why("connection refused");
  EXPECT_EQ(RenderPeers(peers, false),
            "NODE  STATE     RAILS        BOOT ID           RAIL ADDRESSES  WHY\n"
            "n1    DEGRADED  0:up 1:DOWN  0000000000abcdef  127.1.0.2:7000\n"
            "n2    DOWN                   -                                 connection refused\n");
  EXPECT_EQ(RenderPeers({}, false), "no peers\n");
  v1::ListPeersResponse shorter = peers;
  shorter.mutable_peers(0)->set_rail_count(1);
  EXPECT_THAT(RenderPeers(shorter, false), HasSubstr("0:up 1:MISSING"));
  v1::ListPeersResponse drained;
  *drained.add_peers() = peers.peers(0);
  drained.mutable_peers(0)->set_rail_states(1, v1::RAIL_STATE_DRAINED_BY_PEER);
  for (const bool connected : {true, false}) {
    drained.mutable_peers(0)->set_rails_up(1, connected);
    EXPECT_THAT(RenderPeers(drained, false), HasSubstr("\nn1    up     0:up 1:DRAINED BY PEER  "));
    EXPECT_THAT(MessageJson(drained).dump(), HasSubstr(R"("rail_states":["up","drained_by_peer"])"));
  }
  EXPECT_EQ(MessageJson(peers).dump(),
            R"({"peers":[{"node":"n1","boot_id":"0000000000abcdef","up":true,"rails_up":[true,false],)"
            R"("rail_addresses":["127.1.0.2:7000"],"why":"","rail_states":["up","probing"],"rail_tx_bytes":[],)"
            R"("rail_rx_bytes":[],"version":"","connections":0,"dial_failure":"","rail_count":0},)"
            R"({"node":"n2","boot_id":"0000000000000000","up":false,"rails_up":[],"rail_addresses":[],)"
            R"("why":"connection refused","rail_states":[],"rail_tx_bytes":[],"rail_rx_bytes":[],"version":"",)"
            R"("connections":0,"dial_failure":"","rail_count":0}]})");
}

TEST(RenderStatus, TroubleStandsOut) {
  v1::GetStatusResponse status;
  status.set_node("n0");
  status.set_version("0.1.0");
  status.set_boot_id(7);
  status.set_uptime_seconds(125);
  status.set_draining(true);
  v1::GroupStatus* group = status.add_groups();
  group->set_name("moe");
  group->set_broken(true);
  group->set_why_broken("rank 3 died");
  group->set_world_size(4);
  group->add_local_ranks(0);
  group->add_local_ranks(1);
  v1::SessionStatus* session = status.add_sessions();
  session->set_session_id(5);
  session->set_client_name("train\n.py");
  const std::string text = RenderStatus(status, false);
  EXPECT_THAT(text, HasSubstr("GROUPS  CLIENT\n"));
  EXPECT_THAT(text, HasSubstr("     0  train?.py\n")) << "a name cannot break the table";
  EXPECT_THAT(text, HasSubstr("state     DRAINING: new jobs are refused\n"));
  EXPECT_THAT(text, HasSubstr("uptime    2m 05s\n"));
  EXPECT_THAT(text, HasSubstr("BROKEN: rank 3 died"));
  EXPECT_THAT(text, HasSubstr("0,1"));
  group->set_broken(false);
  group->set_recovery(v1::RECOVERY_POLICY_WAIT);
  group->set_wait_limit_milliseconds(1500);
  EXPECT_THAT(RenderStatus(status, false), HasSubstr("wait 1.5s  whole"));
  group->set_recovery(v1::RECOVERY_POLICY_DEGRADE);
  group->add_lost_nodes("n2");
  EXPECT_THAT(RenderStatus(status, false), HasSubstr("degrade   WITHOUT n2"));
  EXPECT_EQ(MessageJson(status)["groups"][0]["recovery"], "degrade");
  EXPECT_EQ(MessageJson(status)["groups"][0]["lost_nodes"][0], "n2");
  EXPECT_EQ(MessageJson(status)["groups"][0]["why_broken"], "rank 3 died");
  EXPECT_EQ(MessageJson(status)["boot_id"], "0000000000000007");
  v1::FormingGroupStatus* forming = status.add_forming_groups();
  forming->set_name("late");
  forming->set_world_size(4);
  forming->set_joined(2);
  forming->add_local_ranks(1);
  forming->add_missing_ranks(2);
  EXPECT_THAT(RenderStatus(status, false), HasSubstr("forming: 2 joined, waits for ranks 2,..."));
  forming->add_missing_ranks(3);
  EXPECT_THAT(RenderStatus(status, false), HasSubstr("forming: 2 joined, waits for ranks 2,3\n"));
  EXPECT_EQ(MessageJson(status)["forming_groups"][0]["missing_ranks"].dump(), "[2,3]");
}

TEST(RenderJobs, FailedJobsSayWhy) {
  v1::ListJobsResponse jobs;
  EXPECT_EQ(RenderJobs(jobs, false), "no active jobs\n");
  v1::JobReport* job = jobs.add_finished();
  job->set_group("moe");
  job->set_tenant("research");
  job->mutable_job()->set_seq(12);
  job->set_state(v1::JOB_STATE_FAILED);
  job->set_code(14);
  job->set_message("node n2 is lost");
  EXPECT_THAT(RenderJobs(jobs, false), HasSubstr("moe    research"));
  EXPECT_THAT(RenderJobs(jobs, false), HasSubstr("FAILED UNAVAILABLE"));
  EXPECT_THAT(RenderJobs(jobs, false), HasSubstr("node n2 is lost"));
  jobs.mutable_finished(0)->set_replayable(true);
  EXPECT_THAT(RenderJobs(jobs, false), AllOf(HasSubstr("replayable"), Not(HasSubstr("UNAVAILABLE"))));
  EXPECT_EQ(MessageJson(jobs)["finished"][0]["code"], "UNAVAILABLE");
  EXPECT_EQ(CodeName(99), "code 99");
  EXPECT_EQ(FormatId(0xabc), "0000000000000abc");
}

}  // namespace
}  // namespace rails::ctl
