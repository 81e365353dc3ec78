// Checks the rails' network interfaces: addresses, links, packet sizes, and several interfaces in one subnet.
#include <arpa/inet.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/rails.h"
#include "client/railsctl/format.h"

namespace rails::ctl::doctor {
namespace {

// Bytes that the kernel subtracts from an interface's MTU for the headers of a RoCE packet.
constexpr uint32_t kRoceOverhead = 96;

bool OtherNetwork(const Facts& facts) { return facts.process.same_network == false; }

// Returns "10.1.0.0/24" for "10.1.0.1/24"; empty for loopback, IPv6 and texts that are no address.
std::string SubnetOf(const std::string& address) {
  const size_t slash = address.find('/');
  uint32_t bits = 0;
  in_addr parsed{};
  if (slash == std::string::npos || !absl::SimpleAtoi(address.substr(slash + 1), &bits) || bits > 32 ||
      inet_pton(AF_INET, address.substr(0, slash).c_str(), &parsed) != 1 || absl::StartsWith(address, "127.")) {
    return "";
  }
  const uint32_t mask = bits == 0 ? 0 : ~uint32_t{0} << (32 - bits);
  in_addr network{htonl(ntohl(parsed.s_addr) & mask)};
  char text[INET_ADDRSTRLEN];
  return absl::StrCat(inet_ntop(AF_INET, &network, text, sizeof(text)), "/", bits);
}

// The largest RDMA packet that fits an interface.
uint32_t RoceMtu(uint32_t interface_mtu) {
  for (const uint32_t mtu : {4096u, 2048u, 1024u, 512u}) {
    if (interface_mtu >= mtu + kRoceOverhead) return mtu;
  }
  return 256;
}

Findings JudgeInterface(const Rail& rail) {
  const Interface* interface = rail.interface;
  if (interface == nullptr) {
    if (rail.verbs) return {};  // the check of its port reports it, or it is InfiniBand
    if (!rail.interface_name.empty()) {
      return {{"interfaces", Level::kError,
               absl::StrCat(rail.name, ": this machine has no interface ", rail.interface_name),
               "The daemon cannot use it; a rail whose interface is gone is down.",
               "`ip link` shows what there is; correct rails[].interface, or load the driver."}};
    }
    return {{"interfaces", Level::kError,
             absl::StrCat(rail.name, ": no interface of this machine has the address ", rail.address),
             "The daemon cannot listen there; a rail whose address is gone is down.",
             absl::StrCat("`ip addr` shows what there is; `ip addr add ", rail.address,
                          "/24 dev INTERFACE`, or correct rails[].address.")}};
  }
  const std::string who = absl::StrCat(rail.name, " (", interface->name, ")");
  if (interface->state == "down" || interface->state == "lowerlayerdown") {
    return {{"interfaces", Level::kError, absl::StrCat(who, ": the link is down"), "The rail carries nothing.",
             absl::StrCat("`ip link set ", interface->name,
                          " up`; then the cable, the optics, the switch's port (`ethtool ", interface->name, "`).")}};
  }
  const uint64_t link = interface->speed_bytes_per_s, wanted = rail.speed_bytes_per_s;
  const std::string speeds = absl::StrCat(who, ": the link has ", FormatBitRate(static_cast<double>(link)),
                                          ", the planner counts on ", FormatBitRate(static_cast<double>(wanted)));
  if (link > 0 && wanted > link + link / 20) {
    return {{"interfaces", Level::kWarning, speeds, "The rail gets more than it can carry until it has been measured.",
             absl::StrCat("`ethtool ", interface->name,
                          "`: has it trained to a lower speed? Else correct rails[].speed.")}};
  }
  if (link > 0 && wanted > 0 && wanted < link - link / 20) {
    return {{"interfaces", Level::kNote, speeds, "The rail may carry more than it is given.",
             "Leave rails[].speed out, unless you want the rail to be slower."}};
  }
  return {};
}

// Judges rails that share an interface, or an address of the loopback interface.
Findings JudgeShared(const std::vector<Rail>& rails) {
  std::map<std::string, std::vector<std::string>> names_by_link;
  for (const Rail& rail : rails) {
    if (rail.interface == nullptr || rail.verbs) continue;
    const bool loopback = rail.interface->name == "lo";
    names_by_link[loopback ? rail.address : rail.interface->name].push_back(rail.name);
  }
  Findings findings;
  for (const auto& [link, names] : names_by_link) {
    if (names.size() < 2) continue;
    findings.push_back({"interfaces", Level::kWarning, absl::StrCat(absl::StrJoin(names, ", "), " share ", link),
                        "They share its bandwidth; the planner counts on the sum of their speeds.",
                        "Give each rail a NIC of its own, or name one rail."});
  }
  return findings;
}

}  // namespace

Findings CheckInterfaces(const Facts& facts) {
  const std::vector<Rail> rails = RailsOf(facts);
  if (rails.empty()) return {};
  if (OtherNetwork(facts)) {
    return {{"interfaces", Level::kNote, "the daemon runs in another network namespace than this shell",
             "Interfaces, packet sizes and subnets here are not those of the daemon, so doctor does not check them.",
             absl::StrCat("Run doctor in its namespace: `nsenter -t ", facts.process.pid,
                          " -n railsctl doctor`, or `docker exec`.")}};
  }
  Findings findings = JudgeShared(rails);
  std::vector<std::string> good;
  for (const Rail& rail : rails) {
    const Findings found = JudgeInterface(rail);
    findings.insert(findings.end(), found.begin(), found.end());
    if (found.empty() && rail.interface != nullptr) good.push_back(absl::StrCat(rail.name, " ", rail.interface->name));
  }
  if (findings.empty() && !good.empty()) {
    findings.push_back({"interfaces", Level::kOk, absl::StrCat("up: ", absl::StrJoin(good, ", ")), "", ""});
  }
  return findings;
}

Findings CheckMtu(const Facts& facts) {
  if (OtherNetwork(facts)) return {};
  Findings findings;
  std::map<uint32_t, std::vector<std::string>> rails_by_mtu;
  for (const Rail& rail : RailsOf(facts)) {
    if (rail.interface == nullptr || rail.interface->mtu_bytes == 0) continue;
    const uint32_t mtu = rail.interface->mtu_bytes;
    const std::string& name = rail.interface->name;
    rails_by_mtu[mtu].push_back(rail.name);
    const std::string larger = absl::StrCat("`ip link set ", name, " mtu 9000`, at every node and switch of the rail.");
    if (rail.verbs && RoceMtu(mtu) < 4096) {
      findings.push_back(
          {"mtu", Level::kWarning,
           absl::StrCat(rail.name, " (", name, "): an MTU of ", mtu, " leaves RDMA packets of ", RoceMtu(mtu),
                        " bytes"),
           "Packets of 4096 bytes need 4192 or more; smaller packets cost more processor time and bandwidth.", larger});
    } else if (rail.verbs && rail.path_mtu_bytes != 0 && rail.path_mtu_bytes < RoceMtu(mtu)) {
      findings.push_back(
          {"mtu", Level::kWarning,
           absl::StrCat(rail.name, " (", name, "): the port's active MTU is ", rail.path_mtu_bytes,
                        ", though the interface's of ", mtu, " has room for ", RoceMtu(mtu)),
           "The MTU was raised after the device had come up, or verbs.path_mtu is set.",
           "`railsctl rails` and `ibv_devinfo` show both; restart the daemon, or leave verbs.path_mtu out."});
    }
  }
  if (rails_by_mtu.size() > 1) {
    std::vector<std::string> texts;
    texts.reserve(rails_by_mtu.size());
    for (const auto& [mtu, names] : rails_by_mtu)
      texts.push_back(absl::StrCat(mtu, " on ", absl::StrJoin(names, ", ")));
    findings.push_back({"mtu", Level::kWarning, absl::StrCat("the rails differ: ", absl::StrJoin(texts, "; ")),
                        "Rails of one speed then differ in cost. Where peers differ, large packets are lost.",
                        "Set one MTU for all rails, at every node and switch."});
  }
  if (findings.empty() && !rails_by_mtu.empty()) {
    findings.push_back({"mtu", Level::kOk, absl::StrCat(rails_by_mtu.begin()->first, " on all rails"), "", ""});
  }
  return findings;
}

Findings CheckSubnets(const Facts& facts) {
  if (OtherNetwork(facts)) return {};
  std::map<std::string, std::set<const Interface*>> by_subnet;
  for (const Rail& rail : RailsOf(facts)) {
    if (rail.interface == nullptr) continue;
    for (const std::string& address : rail.interface->addresses) {
      if (const std::string subnet = SubnetOf(address); !subnet.empty()) by_subnet[subnet].insert(rail.interface);
    }
  }
  Findings findings;
  for (const auto& [subnet, interfaces] : by_subnet) {
    if (interfaces.size() < 2) continue;
    std::set<std::string> names, settings;
    for (const Interface* interface : interfaces) {
      names.insert(interface->name);
      if (interface->arp_ignore < 1) settings.insert("net.ipv4.conf.all.arp_ignore=1");
      if (interface->arp_announce < 2) settings.insert("net.ipv4.conf.all.arp_announce=2");
      if (interface->rp_filter == 1) settings.insert("net.ipv4.conf.all.rp_filter=2");
    }
    const std::string found = absl::StrCat(absl::StrJoin(names, ", "), " are all in ", subnet);
    if (settings.empty()) {
      findings.push_back({"subnets", Level::kNote, found,
                          "The kernel settings for one subnet are right (arp_ignore, arp_announce, rp_filter).",
                          "Routes by source address, or one subnet for each rail, keep each rail on its own switch."});
      continue;
    }
    findings.push_back(
        {"subnets", Level::kWarning, absl::StrCat(found, ", without ", absl::StrJoin(settings, ", ")),
         "Any of these interfaces answers for the addresses of all: rails share a link, or packets are dropped.",
         absl::StrCat("`sysctl -w ", absl::StrJoin(settings, " "),
                      "` and into /etc/sysctl.d/railsd.conf; better one subnet for each rail.")});
  }
  if (findings.empty() && !by_subnet.empty()) {
    findings.push_back({"subnets", Level::kOk, "each rail has a subnet of its own", "", ""});
  }
  return findings;
}

}  // namespace rails::ctl::doctor
