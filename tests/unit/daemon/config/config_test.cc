#include "daemon/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kRail[] = "rails: [{address: 127.1.0.1, speed: 200mbit}]\n";

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<Config> config = ParseConfig(text, "f");
  return config.ok() ? "accepted" : std::string(config.status().message());
}

struct BadCase {
  std::string text, error;
};
void ExpectErrors(const std::vector<BadCase>& cases) {
  for (const BadCase& bad : cases) EXPECT_EQ(ErrorOf(bad.text), bad.error);
}

// Printed, it reads back the same.
Config Read(const std::string& text) {
  const absl::StatusOr<Config> config = ParseConfig(text, "f");
  EXPECT_TRUE(config.ok()) << config.status();
  const absl::StatusOr<Config> again = ParseConfig(PrintConfig(*config), "printed");
  EXPECT_TRUE(again.ok()) << again.status() << "\n" << PrintConfig(*config);
  EXPECT_EQ(PrintConfig(*again), PrintConfig(*config));
  EXPECT_EQ(ConfigHash(*again), ConfigHash(*config));
  EXPECT_TRUE(again->verbs == config->verbs && again->connections == config->connections);
  return *config;
}

TEST(ConfigTest, ReadsEveryKeyOfTheExample) {
  const absl::StatusOr<Config> config = LoadConfig(RAILSD_EXAMPLE_CONFIG);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->node, "n0");
  EXPECT_EQ(config->socket_dir, "/run/railsd");
  EXPECT_EQ(config->socket_mode, 0666u);
  EXPECT_EQ(config->operator_mode, 0600u);
  EXPECT_EQ(config->control_listen, "127.0.1.1:7471");
  ASSERT_EQ(config->rails.size(), 2u);
  EXPECT_EQ(config->rails[1].name, "rail1");
  EXPECT_EQ(config->rails[1].address, "127.1.1.1");
  EXPECT_EQ(config->rails[1].speed_bytes_per_s, 25'000'000u);
  ASSERT_EQ(config->static_peers.size(), 1u);
  EXPECT_EQ(config->static_peers[0].name, "n1");
  EXPECT_THAT(config->static_peers[0].rails, ElementsAre("127.1.0.2", "127.1.1.2"));
  EXPECT_EQ(config->metrics_listen, "127.0.1.1:9471");
  EXPECT_EQ(config->plan.policy, Policy::kLpt);
  EXPECT_EQ(config->max_message_bytes, 16u << 20);
}

// The example claims to show the defaults: reading it changes nothing but what a node must say of itself.
TEST(ConfigTest, TheExampleShowsTheDefaults) {
  absl::StatusOr<Config> example = LoadConfig(RAILSD_EXAMPLE_CONFIG);
  ASSERT_TRUE(example.ok());
  Config defaults;
  defaults.node = example->node;
  defaults.control_listen = example->control_listen;
  defaults.tls.mode = TlsMode::kPlainText;
  defaults.metrics_listen = example->metrics_listen;
  defaults.rails = example->rails;
  defaults.static_peers = example->static_peers;
  EXPECT_EQ(PrintConfig(*example), PrintConfig(defaults));
}

TEST(ConfigTest, PrintedConfigurationReadsBackTheSame) {
  const std::string text =
      "node: n7\nsocket_dir: /tmp/x\nsocket_mode: \"0660\"\noperator_group: \"no\"\nsocket_group: \"27\"\ncontrol: "
      "{listen: \"[::1]:0\"}\n"
      "tls: {certificate: /a/b.pem, key: \"/a/b c.key\", ca: /a/ca.pem, refresh: 1s, data: kernel}\n"
      "rails:\n  - {address: \"[fd00::1]:7000\", interface: eth1, speed: 2.5gbit}\n  - {address: 10.0.0.1}\n"
      "peers:\n  static: [{name: n1, control: \"host.example:1\", rails: [\"10.0.0.2\"]}]\n"
      "  dns: {name: a.b, port: 99, refresh: 250ms}\n"
      "plan: {policy: round_robin, chunk: 2MiB, min_chunk: 1}\n"
      "data: {frame: 128KiB, window: 3MB, copy_threads: 3, spin: 50us}\n"
      "tenants: [{name: no, users: [\"007\", root], groups: [staff], quota: {sessions: 2, segment_bytes: 64GiB}},\n"
      "  {name: b, socket_group: \"27\", share: {weight: 3, priority: 7}}]\nlimits: {max_sessions: 3, max_message: "
      "65536}\ntimeouts: {job: 1h30m, "
      "peer_lost: 200ms, heartbeat: 50ms}\n"
      "health: {first_hold: 50ms, max_hold: 7s, half_life: 2m}\n"
      "log: {level: debug, file: \"/tmp/a \\\"b\\\"\", format: json}\n";
  const absl::StatusOr<Config> config = ParseConfig(text, "f");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string printed = PrintConfig(*config);
  const absl::StatusOr<Config> again = ParseConfig(printed, "printed");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << printed;
  EXPECT_EQ(PrintConfig(*again), printed);
  EXPECT_EQ(ConfigHash(*again), ConfigHash(*config));
  EXPECT_EQ(again->rails[0].speed_bytes_per_s, 312'500'000u);
  EXPECT_EQ(again->rails[1].speed_bytes_per_s, 0u);
  EXPECT_EQ(again->rails[1].name, "rail1");
  EXPECT_EQ(again->timeouts.job, absl::Minutes(90));
  EXPECT_EQ(again->tls.mode, TlsMode::kMutual);  // said by the files
  EXPECT_EQ(again->tls.key, "/a/b c.key");
  EXPECT_EQ(again->tls.data, TlsData::kKernel);
  EXPECT_TRUE(again->tls == config->tls);
  EXPECT_EQ(again->log.file, "/tmp/a \"b\"");
  EXPECT_EQ(again->health.first_hold, absl::Milliseconds(50));
  EXPECT_TRUE(again->health == config->health);
  EXPECT_TRUE(again->dns == config->dns);
  EXPECT_TRUE(again->tenants == config->tenants);
  ASSERT_EQ(again->tenants.size(), 2u);
  EXPECT_THAT(again->tenants[0].users, ElementsAre("007", "root"));
  EXPECT_EQ(again->tenants[0].quota[QuotaKind::kSegmentBytes], uint64_t{64} << 30);
  EXPECT_EQ(again->tenants[0].share, TenantShare{});
  EXPECT_EQ(again->tenants[1].share, (TenantShare{.weight = 3, .priority = 7}));
}

TEST(ConfigTest, TheSharedHashIgnoresWhatNamesOneNode) {
  const absl::StatusOr<Config> one = ParseConfig(
      "node: n0\ncontrol: {listen: \"10.0.0.1:7471\"}\ntls: {certificate: /a, key: /b, ca: /c}\n"
      "rails: [{address: 10.1.0.1}]\npeers: {static: [{name: n1, control: \"10.0.0.2:7471\"}]}\n",
      "f");
  ASSERT_TRUE(one.ok()) << one.status();
  const absl::StatusOr<Config> other = ParseConfig(
      "node: n1\ncontrol: {listen: \"10.0.0.2:7471\"}\ntls: {certificate: /d, key: /e, ca: /c}\n"
      "rails: [{address: 10.1.0.2}]\npeers: {static: [{name: n0, control: \"10.0.0.1:7471\"}]}\n"
      "metrics: {listen: \"10.0.0.2:9471\"}\nlog: {file: /tmp/n1}\n",
      "f");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(ConfigHash(*one), ConfigHash(*other));
  EXPECT_EQ(SharedConfigHash(*one), SharedConfigHash(*other));
  const absl::StatusOr<Config> found =
      ParseConfig("rails: auto\nauto_rails: {count: 8}\ntls: {certificate: /a, key: /b, ca: /c}\n", "f");
  const absl::StatusOr<Config> named =
      ParseConfig("rails: [{device: mlx5_0}]\ntls: {certificate: /a, key: /b, ca: /c}\n", "f");
  ASSERT_TRUE(found.ok() && named.ok()) << found.status() << named.status();
  EXPECT_EQ(SharedConfigHash(*found), SharedConfigHash(*named));
  Config changed = *one;
  changed.timeouts.job += absl::Seconds(1);
  EXPECT_NE(SharedConfigHash(*one), SharedConfigHash(changed));
}

const BadCase kMistakes[] = {
    // after kRail
    {"nodee: x\n",
     "f:2: nodee: unknown key; known here: auto_rails, control, data, health, limits, log, metrics, node, "
     "operator_group, "
     "operator_mode, peers, plan, rails, socket_dir, socket_group, socket_mode, tenants, timeouts, tls, verbs"},
    {"node: a\nnode: b\n", "f:3: node: given twice"},
    {"node: \"a b\"\n", "f:2: node: 'a b': not a name: 1 to 253 of letters, digits, '.', '_' and '-'"},
    {"node: [a]\n", "f:2: node: expected one value"},
    {"socket_dir: run\n", "f:2: socket_dir: 'run': not an absolute path"},
    {"socket_mode: \"0999\"\n", "f:2: socket_mode: '0999': not a file mode; write four octal digits, as in \"0660\""},
    {"metrics: {listen: \"[::1]:9471\"}\n",
     "f:2: metrics.listen: '[::1]:9471': the HTTP library has no IPv6; give an IPv4 address"},
    {"control: {listen: \"127.0.0.1\"}\n",
     "f:2: control.listen: '127.0.0.1': the port is missing; write host and port, as in 10.0.0.1:7471 or "
     "[fd00::1]:7471"},
    {"control: {listen: \"127.0.0.1:70000\"}\n",
     "f:2: control.listen: '127.0.0.1:70000': the port is not a number from 0 to 65535; write host and port, as in "
     "10.0.0.1:7471 or [fd00::1]:7471"},
    {"control: 5\n", "f:2: control: '5': expected a mapping of keys to values"},
    {"socket_dir: /r\xbe\n", "f:2: socket_dir: '/r\\276': holds bytes that are not ASCII"},
    {"plan: {late_binding: maybe}\n", "f:2: plan.late_binding: 'maybe': give true or false"},
    {"plan: {chunk: 1MiB, min_chunk: 2MiB}\n", "f:2: plan: min_chunk 2MiB is more than chunk 1MiB"},
    {"plan: {chunk: 1.5MiB}\n",
     "f:2: plan.chunk: '1.5MiB': not a size; write a whole number of bytes, as in 65536, 64KiB or 1MB"},
    {"plan: {chunk: -1MiB}\n",
     "f:2: plan.chunk: '-1MiB': not a size; write a whole number of bytes, as in 65536, 64KiB or 1MB"},
    {"plan: {chunk: 1mib}\n",
     "f:2: plan.chunk: '1mib': unknown unit 'mib'; units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"},
    {"plan: {chunk: 99999999999TiB}\n", "f:2: plan.chunk: '99999999999TiB': too large for 64 bits"},
    {"limits: {max_sessions: 0}\n", "f:2: limits.max_sessions: '0': outside 1 to 65536"},
    {"limits: {max_sessions: -1}\n", "f:2: limits.max_sessions: '-1': not a whole number"},
    {"timeouts: {job: 5}\n",
     "f:2: timeouts.job: '5': not a time; write a number and a unit, as in 500ms, 10s, 5m or 1h30m"},
    {"timeouts: {job: -5s}\n", "f:2: timeouts.job: '-5s': negative"},
    {"timeouts: {job: inf}\n", "f:2: timeouts.job: 'inf': must be finite"},
    {"health: {max_hold: 10ms}\n", "f:2: health: max_hold 10ms is less than first_hold 200ms"},
    {"timeouts: {peer_lost: 800ms}\n", "f:2: timeouts: peer_lost 800ms is less than two heartbeats of 500ms"},
    {"log: {level: loud}\n", "f:2: log.level: 'loud': not one of trace, debug, info, warning, error"},
    {"log: {format: xml}\n", "f:2: log.format: 'xml': not one of text, json"},
    {"tls: {cert: x}\n", "f:2: tls.cert: unknown key; known here: ca, certificate, data, key, mode, refresh"},
    {"tls: {mode: off}\n", "f:2: tls.mode: 'off': not one of mutual, plain_text"},
    {"tls: {mode: mutual, certificate: a.pem, key: /k, ca: /c}\n",
     "f:2: tls.certificate: 'a.pem': not an absolute path"},
    {"tls: {mode: mutual}\n",
     "f:2: tls.certificate: missing; mutual TLS needs certificate, key and ca\n"
     "f:2: tls.key: missing; mutual TLS needs certificate, key and ca\n"
     "f:2: tls.ca: missing; mutual TLS needs certificate, key and ca"},
    {"tls: {certificate: /a, ca: /c}\n", "f:2: tls.key: missing; mutual TLS needs certificate, key and ca"},
    {"tls: {mode: plain_text, ca: /c}\n",
     "f:2: tls: mode plain_text uses no certificate, key or ca; remove them, or write mode: mutual"},
    {"tls: {data: on}\n", "f:2: tls.data: 'on': not one of off, kernel"},
    {"tls: {mode: plain_text, data: kernel}\n",
     "f:2: tls: data: kernel needs mode: mutual, because the keys of data connections travel over the links"},
    {"tls: {refresh: 1ms}\n", "f:2: tls.refresh: '1ms': outside 100ms to 1h"},
    {"control: {listen: \"127.0.0.1:1\"}\n",
     "f: tls: missing; control.listen is set, so give certificate, key and ca for mutual TLS between nodes, or ask "
     "for plain text with mode: plain_text"},
    {"peers: {static: [{name: n1, control: \"h:1\"}]}\n",
     "f: control.listen: missing; peers must be able to dial this node"},
    {"peers: {static: [{name: n1}]}\n", "f:2: peers.static[0].control: missing"},
    {"peers:\n  static:\n    - {name: n1, control: \"h:1\"}\n    - {name: n1, control: \"h:2\"}\n",
     "f:5: peers.static[1].name: 'n1': another peer has this name"},
    {"peers:\n  static:\n    - {name: n1, control: \"h:1\"}\n    - {name: n2, control: \"h:1\"}\n",
     "f:5: peers.static[1].control: 'h:1': another peer has this address"},
    {"peers: {static: [{name: n1, control: \"[::1]:0\"}]}\n",
     "f:2: peers.static[0].control: '[::1]:0': port 0 cannot be dialled; give the port of the peer's control.listen"},
    {"peers: {dns: {port: 1}}\n", "f:2: peers.dns.name: missing"},
    {"tenants: [{users: [a]}]\n", "f:2: tenants[0].name: missing"},
    {"tenants: [{name: A}]\n", "f:2: tenants[0].name: 'A': not a tenant's name: 1 to 32 of a-z, 0-9 and '-'"},
    {"tenants: [{name: ../a}]\n", "f:2: tenants[0].name: '../a': not a tenant's name: 1 to 32 of a-z, 0-9 and '-'"},
    {"tenants: [{name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}]\n",
     "f:2: tenants[0].name: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa': not a tenant's name: 1 to 32 of a-z, 0-9 and '-'"},
    {"tenants: [{name: \"\"}]\n", "f:2: tenants[0].name: empty"},
    {"tenants:\n  - {name: a}\n  - {name: a}\n", "f:4: tenants[1].name: 'a': another tenant has this name"},
    {"tenants: [{name: a, users: [\"\"]}]\n", "f:2: tenants[0].users[0]: empty"},
    {"tenants: [{name: a, groups: b}]\n", "f:2: tenants[0].groups: 'b': expected a list"},
    {"tenants: [{name: a, uid: 1}]\n",
     "f:2: tenants[0].uid: unknown key; known here: groups, name, quota, share, socket_group, users"},
    {"tenants: [{name: a, share: {weight: 0}}]\n", "f:2: tenants[0].share.weight: '0': outside 1 to 1000"},
    {"tenants: [{name: a, share: {priority: 8}}]\n", "f:2: tenants[0].share.priority: '8': outside 0 to 7"},
    {"tenants: [{name: a, quota: {session: 1}}]\n",
     "f:2: tenants[0].quota.session: unknown key; known here: jobs, jobs_per_second, segment_bytes, segments, "
     "sessions"},
    {"tenants: [{name: a, quota: {jobs: -1}}]\n", "f:2: tenants[0].quota.jobs: '-1': not a whole number"},
    {"tenants: [{name: a, quota: {jobs_per_second: 1000001}}]\n",
     "f:2: tenants[0].quota.jobs_per_second: '1000001': outside 0 to 1000000"},
    {"tenants: [{name: a, quota: {segment_bytes: 1gib}}]\n",
     "f:2: tenants[0].quota.segment_bytes: '1gib': unknown unit 'gib'; units are B, KB, MB, GB, TB, KiB, MiB, GiB, "
     "TiB"},
    {"socket_dir: /0123456789012345678901234567890123456789012345678901234567890123456789\n"
     "tenants: [{name: 0123456789abcdef}]\n",
     "f: socket_dir: '/0123456789012345678901234567890123456789012345678901234567890123456789': too long for the "
     "sockets of tenant 0123456789abcdef: "
     "/0123456789012345678901234567890123456789012345678901234567890123456789/tenants/0123456789abcdef/"
     "descriptors.sock has 113 bytes, a socket's path 107 at most"},
    {"node: !!binary aGVsbG8=\n", "f:2: tags are not supported: tag:yaml.org,2002:binary"},
    {"verbs: {retry_count: 7}\n",
     "f:2: verbs.retry_count: '7': with 7 some devices retry for ever and never report a dead peer"},
    {"verbs: {retry_count: 8}\n", "f:2: verbs.retry_count: '8': outside 0 to 6"},
    {"verbs: {timeout: 0}\n", "f:2: verbs.timeout: '0': outside 1 to 22"},
    {"verbs: {send_queue_depth: 0}\n", "f:2: verbs.send_queue_depth: '0': outside 1 to 32768"},
    {"verbs: {queue_pairs_per_peer: 17}\n", "f:2: verbs.queue_pairs_per_peer: '17': outside 1 to 16"},
    {"verbs: {gid_index: first}\n", "f:2: verbs.gid_index: 'first': not a whole number"},
    {"verbs: {path_mtu: 1500}\n", "f:2: verbs.path_mtu: '1500': not one of auto, 256, 512, 1024, 2048, 4096"},
    {"verbs: {path_mtu: 8192}\n", "f:2: verbs.path_mtu: '8192': outside 256 to 4KiB"},
    {"verbs: {service_level: 16}\n", "f:2: verbs.service_level: '16': outside 0 to 15"},
    {"verbs: {inline: 5}\n",
     "f:2: verbs.inline: unknown key; known here: busy_poll, completion_queue_depth, fence_queue_depth, gid_index, "
     "inline_bytes, max_windows, path_mtu, queue_pairs_per_peer, retry_count, send_queue_depth, service_level, "
     "timeout, traffic_class"},
    {"log: &a {}\ndata: *a\n", "f:2: anchors are not supported"},
    {"---\nnode: a\n", "f: holds more than one YAML document"},
};
TEST(ConfigTest, MistakesAreToldByFileLineKeyValueAndReason) {
  for (const BadCase& bad : kMistakes) EXPECT_EQ(ErrorOf(kRail + bad.text), bad.error);
}

TEST(ConfigTest, AnUnknownPolicyIsRefused) {
  EXPECT_THAT(ErrorOf(std::string(kRail) + "plan: {policy: magic}\n"), HasSubstr("f:2: plan.policy: 'magic': "));
}

TEST(ConfigTest, RailsAreChecked) {
  ExpectErrors(
      {{"", "f: rails: missing"},
       {"rails: []\n", "f: rails: empty; a node needs at least one rail"},
       {"rails: [{name: a}]\n",
        "f:1: rails[0].address: missing; a rail has an address or an interface (TCP) or a device (RDMA verbs)"},
       {"rails:\n- {address: 10.0.0.1, speed: 200furlong}\n",
        "f:2: rails[0].speed: '200furlong': unknown unit 'furlong'; units are bit, kbit, mbit, gbit, tbit"},
       {"rails:\n- {address: 10.0.0.1, speed: 200}\n",
        "f:2: rails[0].speed: '200': needs a unit: bit, kbit, mbit, gbit or tbit"},
       {"rails:\n- {address: 10.0.0.1, speed: 0mbit}\n", "f:2: rails[0].speed: '0mbit': outside 8kbit to 10tbit"},
       {"rails:\n- {address: host}\n", "f:2: rails[0].address: 'host': not an IPv4 or IPv6 address"},
       {"rails:\n- {name: a, address: 10.0.0.1:5}\n- {name: a, address: 10.0.0.1:5}\n",
        "f:3: rails[1].name: 'a': another rail has this name\n"
        "f:3: rails[1].address: '10.0.0.1:5': another rail listens on this address and port"}});
}

TEST(ConfigTest, NoTwoRailsShareAnAddress) {
  const std::string shared = "another rail has this address; rails that share an address (for tests) need a port each";
  ExpectErrors(
      {{"rails: [{address: 10.0.0.1}, {address: 10.0.0.1}]\n", "f:1: rails[1].address: '10.0.0.1': " + shared},
       {"rails: [{address: \"10.0.0.1:5\"}, {address: 10.0.0.1}]\n", "f:1: rails[1].address: '10.0.0.1': " + shared},
       {"rails: [{interface: eth1}, {interface: eth1}]\n",
        "f:1: rails[1]: another rail has interface eth1; give each an address of its own"},
       {"rails: [{address: \"10.0.0.1:5\"}, {address: \"10.0.0.1:6\"}]\n", "accepted"},
       {"rails: [{address: \"::1\"}, {address: \"[::1]:0\"}]\n", "accepted"},
       {"rails: [{interface: eth1, address: 10.0.0.1}, {interface: eth1, address: 10.0.0.2}]\n", "accepted"}});
}

TEST(ConfigTest, NoTwoRailsOfPeersShareAnAddress) {
  const std::string own =
      "node: n0\ncontrol: {listen: \"10.0.0.1:7471\"}\ntls: {mode: plain_text}\nrails: [{address: 10.1.0.1}]\n";
  const auto error_of = [&own](const std::string& first, const std::string& second) {
    return ErrorOf(absl::StrCat(own, "peers:\n  static:\n  - {name: n1, control: \"a:1\", rails: [", first,
                                "]}\n  - {name: n2, control: \"b:1\", rails: [", second, "]}\n"));
  };
  const std::string shared = "another rail has this address; rails that share an address (for tests) need a port each";
  EXPECT_EQ(error_of("10.1.0.2, 10.1.0.2", ""), "f:7: peers.static[0].rails[1]: '10.1.0.2': " + shared);
  EXPECT_EQ(error_of("10.1.0.2, 10.2.0.2", "10.1.0.3, \"10.2.0.2:5\""),
            "f:8: peers.static[1].rails[1]: '10.2.0.2:5': " + shared);
  EXPECT_EQ(error_of("\"10.1.0.2:5\"", "\"10.1.0.2:5\""),
            "f:8: peers.static[1].rails[0]: '10.1.0.2:5': another rail listens on this address and port");
  EXPECT_EQ(error_of("\"10.1.0.2:5\", \"10.1.0.2:6\"", "\"10.1.0.2:7\", 127.0.0.1, 127.0.0.1"), "accepted");
  EXPECT_EQ(error_of("\"verbs:mlx5_0/1\", \"verbs:mlx5_0/1\"", ""),
            "f:7: peers.static[0].rails[1]: 'verbs:mlx5_0/1': another rail of this peer has this device");
  EXPECT_EQ(error_of("\"verbs:mlx5_0/1\"", "\"verbs:mlx5_0/1\""), "accepted") << "devices of two nodes";
}

TEST(ConfigTest, PeersAreElsewhere) {
  const std::string own =
      "node: n0\ncontrol: {listen: \"10.0.0.1:7471\"}\ntls: {mode: plain_text}\nrails: [{address: 10.1.0.1}]\n";
  ExpectErrors({{own + "peers: {static: [{name: n1, control: \"10.0.0.1:7471\"}]}\n",
                 "f: peers.static[0].control: '10.0.0.1:7471': the address of this node, n0 (control.listen)"},
                {own + "peers: {static: [{name: n1, control: \"10.0.0.2:7471\", rails: [10.1.0.1]}]}\n",
                 "f: peers.static[0].rails[0]: '10.1.0.1': the address of rail0 of this node, n0"}});
  EXPECT_EQ(ErrorOf(own + "peers: {static: [{name: n0, control: \"10.0.0.1:7471\", rails: [10.1.0.1]}]}\n"), "accepted")
      << "one file for all nodes";
}

TEST(ConfigTest, ARailMayNameItsInterfaceOnly) {
  const Config config = Read("rails: [{interface: eth1}, {interface: eth2}]\n");
  EXPECT_EQ(config.rails[1].interface, "eth2");
  EXPECT_EQ(config.rails[1].address, "");
}

TEST(ConfigTest, RailsOverVerbs) {
  const Config config = Read(
      "rails:\n- {device: mlx5_0, speed: 400gbit}\n- {name: x, transport: verbs, device: mlx5_1/2}\n"
      "- {device: \"mlx5_[2-5]/1\"}\n- {device: rxe_0}\n"
      "verbs: {gid_index: 3, path_mtu: 1024, retry_count: 6, inline_bytes: 0, max_windows: 0, traffic_class: 106, "
      "busy_poll: 50us}\n");
  ASSERT_EQ(config.rails.size(), 4u);
  for (const RailSpec& rail : config.rails) EXPECT_EQ(rail.kind, RailKind::kVerbs);
  EXPECT_EQ(config.rails[0].name, "rail0");
  EXPECT_EQ(config.rails[0].device, "mlx5_0");
  EXPECT_EQ(config.rails[0].speed_bytes_per_s, 50'000'000'000u);
  EXPECT_EQ(config.rails[1].name, "x");
  EXPECT_EQ(config.rails[1].device, "mlx5_1/2");
  // How many rails a pattern gives is known when the devices are.
  EXPECT_EQ(config.rails[2].name, "");
  EXPECT_EQ(config.rails[3].name, "");
  EXPECT_EQ(config.verbs.gid_index, 3);
  EXPECT_EQ(config.verbs.path_mtu_bytes, 1024u);
  EXPECT_EQ(config.verbs.retry_count, 6u);
  EXPECT_EQ(config.verbs.inline_bytes, 0u);
  EXPECT_EQ(config.verbs.max_windows, 0u);
  EXPECT_EQ(config.verbs.busy_poll, absl::Microseconds(50));
  EXPECT_EQ(config.verbs.traffic_class, 106u);
  const Config every = Read("rails: auto\nauto_rails: {take: [\"network:10.16.0.0/12\", numa:0], count: 8}\n");
  EXPECT_TRUE(every.auto_rails);
  EXPECT_EQ(every.auto_rails_choice.take.size(), 2u);
  EXPECT_EQ(ParseConfig(PrintConfig(every), "printed")->auto_rails_choice, every.auto_rails_choice);
  EXPECT_TRUE(every.rails.empty());
  EXPECT_TRUE(ParseConfig(PrintConfig(every), "printed")->auto_rails);
}

TEST(ConfigTest, OneFileForAllNodes) {
  const Config config = Read(
      "control: {listen: \"10.20.0.0/16:7471\"}\ntls: {mode: plain_text}\nmetrics: {listen: \"eth0:9471\"}\n"
      "rails: [{address: 10.1.0.0/16}, {address: \"fd00:2::/64\"}, {address: \"[fd00:3::/64]:7000\"}]\n");
  EXPECT_EQ(config.control_listen, "10.20.0.0/16:7471");
  EXPECT_EQ(config.metrics_listen, "eth0:9471");
  EXPECT_EQ(PrintConfig(*ParseConfig(PrintConfig(config), "printed")), PrintConfig(config));
  const std::string network = "not a network; write an address and the length of its prefix, as in 10.16.0.0/12";
  const std::string rail = "rails: [{address: 10.0.0.1}]\n";
  ExpectErrors({
      {rail + "control: {listen: \"10.20.0.0/33:7471\"}\n", "f:2: control.listen: '10.20.0.0/33:7471': " + network},
      {rail + "peers: {static: [{name: b, control: \"10.20.0.0/16:7471\"}]}\n",
       "f:2: peers.static[0].control: '10.20.0.0/16:7471': not a host name or an address"},
      {rail + "peers: {static: [{name: b, control: \"b:7471\", rails: [10.1.0.0/16]}]}\n",
       "f:2: peers.static[0].rails[0]: '10.1.0.0/16': not an IPv4 or IPv6 address"},
      {rail + "auto_rails: {count: 8}\n", "f:2: auto_rails: only `rails: auto` uses it"},
      {"rails: [{address: 10.1.0.0/40}]\n", "f:1: rails[0].address: '10.1.0.0/40': " + network},
      {"rails: auto\nauto_rails: {take: [mlx5_0]}\n",
       "f:2: auto_rails.take[0]: 'mlx5_0': not a rule; write device:, interface:, pci:, network: or numa: and a value, "
       "as "
       "in device:mlx5_[0-7] or network:10.16.0.0/12"},
      {"rails: auto\nauto_rails: {take: [\"numa:a\"]}\n",
       "f:2: auto_rails.take[0]: 'numa:a': not the number of a NUMA node"},
      {"rails: [{device: \"mlx5_[0-7\"}]\n", "f:1: rails[0].device: 'mlx5_[0-7': '[' without its ']'"},
      {"rails: auto\nauto_rails: {take: [\"device:mlx5_[0-7\"]}\n",
       "f:2: auto_rails.take[0]: 'device:mlx5_[0-7': '[' without its ']'"},
      {"rails: auto\nauto_rails: {leave: [\"network:10.0.0.0\"]}\n",
       "f:2: auto_rails.leave[0]: 'network:10.0.0.0': " + network},
  });
}

TEST(ConfigTest, RailsOverVerbsAreChecked) {
  ExpectErrors(
      {{"rails: [{transport: verbs}]\n", "f:1: rails[0]: a verbs rail needs a device, as in mlx5_0/1"},
       {"rails: [{transport: tcp}]\n", "f:1: rails[0].address: missing"},
       {"rails: [{transport: ib, device: a}]\n", "f:1: rails[0].transport: 'ib': not one of tcp, verbs"},
       {"rails: [{transport: tcp, device: a, address: 10.0.0.1}]\n",
        "f:1: rails[0]: a tcp rail has an address and no device"},
       {"rails: [{device: a, address: 10.0.0.1}]\n",
        "f:1: rails[0]: a verbs rail has a device and neither address nor interface"},
       {"rails: [{device: \"a*\", name: x}]\n",
        "f:1: rails[0]: a pattern may give several rails, so its entry has no name"},
       {"rails:\n- {device: a/0}\n- {device: a/256}\n- {device: a/}\n- {device: a/1/1}\n",
        "f:2: rails[0].device: 'a/0': the port is not a number from 1 to 255\n"
        "f:3: rails[1].device: 'a/256': the port is not a number from 1 to 255\n"
        "f:4: rails[2].device: 'a/': the port is not a number from 1 to 255\n"
        "f:5: rails[3].device: 'a/1/1': the port is not a number from 1 to 255"},
       {"rails: [{device: \"a b\"}]\n",
        "f:1: rails[0].device: 'a b': not a device; write its name, as in mlx5_0, mlx5_0/1 or mlx5_*"},
       {"rails: [{device: a/1}, {device: a/1}]\n", "f:1: rails[1].device: 'a/1': another rail has this device"},
       {"rails: [{device: a}, {address: 10.0.0.1}]\n",
        "f:1: rails: rails over tcp and over verbs in one node; all rails of a cluster have one transport"},
       {"rails: all\n", "f:1: rails: 'all': expected a list, or auto"}});
}

TEST(ConfigTest, LimitsOfWhatListens) {
  const Config config = Read(
      "rails: [{address: 10.0.0.1}]\n"
      "limits: {max_control_connections: 100, max_control_connections_per_address: 2, "
      "max_calls_per_client_connection: 30, max_watches_per_session: 6, max_headers: 4KiB, max_half_open: 5, "
      "max_grpc_memory: 64MiB, max_http_request: 2KiB}\n"
      "timeouts: {handshake: 2s, rail_handshake: 1s, idle: 3s, http: 4s}\n");
  EXPECT_TRUE(config.connections == (ConnectionLimits{100, 2, 30, 6, 4096, uint64_t{64} << 20, 2048}));
  EXPECT_EQ(config.limits.max_half_open, 5u);
  EXPECT_EQ(config.timeouts.handshake, absl::Seconds(2));
  EXPECT_EQ(config.timeouts.rail_handshake, absl::Seconds(1));
  EXPECT_EQ(config.timeouts.idle, absl::Seconds(3));
  EXPECT_EQ(config.timeouts.http, absl::Seconds(4));
  ExpectErrors({{"rails: [{address: 10.0.0.1}]\nlimits: {max_message: 1MiB, max_grpc_memory: 2MiB}\n",
                 "f: limits.max_grpc_memory: '2MiB': less than four messages of limits.max_message 1MiB"},
                {"rails: [{address: 10.0.0.1}]\nlimits: {max_half_open: 0, max_headers: 1KiB}\n",
                 "f:2: limits.max_half_open: '0': outside 1 to 65536\n"
                 "f:2: limits.max_headers: '1KiB': outside 4KiB to 1MiB"}});
}

TEST(ConfigTest, ReportsAllMistakesAtOnce) {
  EXPECT_EQ(ErrorOf("rails: [{address: x}]\nlog: {level: loud}\ntimeouts: {drain: never}\n"),
            "f:1: rails[0].address: 'x': not an IPv4 or IPv6 address\n"
            "f:2: log.level: 'loud': not one of trace, debug, info, warning, error\n"
            "f:3: timeouts.drain: 'never': not a time; write a number and a unit, as in 500ms, 10s, 5m or 1h30m");
}

TEST(ConfigTest, HostileFilesAreRefused) {
  EXPECT_THAT(ErrorOf(std::string(100'000, '[')), HasSubstr("nested deeper than 16"));
  EXPECT_THAT(ErrorOf(std::string(200'000, '{')), HasSubstr("nested deeper than 16"));
  std::string dashes;
  for (int i = 0; i < 50'000; ++i) dashes += "- ";
  EXPECT_THAT(ErrorOf(dashes), HasSubstr("nested deeper than 16"));
  ExpectErrors({{std::string(kMaxConfigBytes + 1, ' '), "f: larger than 1MiB"},
                {std::string("rails:\0", 7), "f: holds a zero byte: not a text file"}});
  EXPECT_THAT(ErrorOf("rails: [\n"), ::testing::StartsWith("f:2: not YAML"));
  EXPECT_THAT(ErrorOf("\t\x01\xff\xfe%$@"), ::testing::Not("accepted"));
  EXPECT_THAT(ErrorOf("? [a, b]\n: c\n"), HasSubstr("a key must be plain text"));
  std::string many = kRail;
  for (int i = 0; i < 1000; ++i) many += "k" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(ErrorOf(many), HasSubstr("f: and 900 more"));
}

TEST(ConfigTest, AMissingFileIsSaid) {
  const absl::StatusOr<Config> config = LoadConfig("/nonexistent/railsd.yaml");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("/nonexistent/railsd.yaml: cannot open"));
}

TEST(UnitsTest, FormatsWhatItParses) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 10, uint64_t{1000}, uint64_t{5} << 30}) {
    EXPECT_EQ(ParseBytes(FormatBytes(bytes)).value(), bytes);
  }
  for (const char* rate : {"200mbit", "25gbit", "2500mbit", "8kbit", "10tbit"}) {
    EXPECT_EQ(FormatRate(ParseRate(rate).value()), rate);
  }
  EXPECT_EQ(FormatHostPort(ParseHostPort("[fd00::1]:7", false).value()), "[fd00::1]:7");
  EXPECT_EQ(ParseHostPort("fd00::1", true)->host, "fd00::1");
  EXPECT_FALSE(ParseHostPort("a:b:c", true).ok());
  EXPECT_FALSE(ParseHostPort(":5", true).ok());
  EXPECT_FALSE(ParseHostPort("[::1", true).ok());
  EXPECT_FALSE(ParseHostPort("h:+5", true).ok());
}

}  // namespace
}  // namespace railsd
