#include "client/railsctl/doctor/rails.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/railsctl/format.h"

namespace rails::ctl::doctor {
namespace {

const Interface* InterfaceNamed(const Facts& facts, const std::string& name) {
  const auto& all = facts.machine.interfaces;
  const auto it = std::find_if(all.begin(), all.end(), [&](const Interface& i) { return i.name == name; });
  return it == all.end() ? nullptr : &*it;
}

// The interface of the port's first GID that has one.
const Interface* InterfaceOf(const Facts& facts, const RdmaPort& port) {
  for (const Gid& gid : port.gids) {
    if (const Interface* interface = InterfaceNamed(facts, gid.interface); interface != nullptr) return interface;
  }
  return nullptr;
}

bool Matches(const std::string& pattern, const RdmaPort& port) {
  return fnmatch(pattern.c_str(), port.device.c_str(), 0) == 0 || fnmatch(pattern.c_str(), port.Name().c_str(), 0) == 0;
}

void FillTcp(const Facts& facts, const std::string& interface, Rail* rail) {
  rail->interface_name = interface;
  rail->interface = interface.empty() ? InterfaceWith(facts, HostOf(rail->address)) : InterfaceNamed(facts, interface);
  if (rail->interface != nullptr) rail->pci = &rail->interface->pci;
}

void FillVerbs(const Facts& facts, const RdmaPort* port, Rail* rail) {
  rail->verbs = true;
  rail->port = port;
  if (port == nullptr) return;
  rail->interface = InterfaceOf(facts, *port);
  rail->pci = &port->pci;
}

const RdmaPort* FirstMatch(const Facts& facts, const std::string& pattern) {
  const auto& ports = facts.machine.ports;
  const auto it = std::find_if(ports.begin(), ports.end(), [&](const RdmaPort& p) { return Matches(pattern, p); });
  return it == ports.end() ? nullptr : &*it;
}

Rail OfDaemon(const Facts& facts, const v1::RailStatus& status) {
  Rail rail;
  rail.name = status.name();
  rail.speed_bytes_per_s = status.speed_bytes_per_second();
  if (status.has_device()) {
    rail.device = absl::StrCat(status.device().name(), "/", status.device().port());
    rail.path_mtu_bytes = status.device().mtu_bytes();
    if (status.device().has_dma_bufs()) rail.dma_bufs = status.device().dma_bufs();
    FillVerbs(facts, FirstMatch(facts, rail.device), &rail);
  } else {
    rail.address = HostOf(status.address());
    FillTcp(facts, status.interface(), &rail);
  }
  return rail;
}

void AddPorts(const Facts& facts, const std::string& name, const std::string& pattern, uint64_t speed,
              std::vector<Rail>* rails) {
  const size_t before = rails->size();
  for (const RdmaPort& port : facts.machine.ports) {
    if (!Matches(pattern, port)) continue;
    Rail rail;
    rail.name = name.empty() ? absl::StrCat("rail", rails->size()) : name;
    rail.device = port.Name();
    rail.speed_bytes_per_s = speed;
    FillVerbs(facts, &port, &rail);
    rails->push_back(rail);
  }
  if (rails->size() > before) return;
  Rail rail;
  rail.name = name.empty() ? absl::StrCat("rail", rails->size()) : name;
  rail.device = pattern;
  FillVerbs(facts, nullptr, &rail);
  rails->push_back(rail);
}

std::vector<Rail> OfConfiguration(const Facts& facts) {
  std::vector<Rail> rails;
  for (const ConfiguredRail& configured : facts.config.rails) {
    const uint64_t speed = ParseRate(configured.speed).value_or(0);
    if (configured.transport == "verbs") {
      AddPorts(facts, configured.name, configured.device, speed, &rails);
      continue;
    }
    Rail rail;
    rail.name = configured.name.empty() ? absl::StrCat("rail", rails.size()) : configured.name;
    rail.address = HostOf(configured.address);
    rail.speed_bytes_per_s = speed;
    FillTcp(facts, configured.interface, &rail);
    rails.push_back(rail);
  }
  return rails;
}

}  // namespace

int CommonRails(const v1::PeerStatus& peer, int own) {
  return peer.rail_count() == 0 ? own : std::min(own, static_cast<int>(peer.rail_count()));
}

std::string HostOf(const std::string& address) {
  if (!address.empty() && address[0] == '[') return address.substr(1, address.find(']') - 1);
  const size_t colon = address.find(':');
  return colon != std::string::npos && address.find(':', colon + 1) == std::string::npos ? address.substr(0, colon)
                                                                                         : address;
}

const Interface* InterfaceWith(const Facts& facts, const std::string& host) {
  for (const Interface& interface : facts.machine.interfaces) {
    for (const std::string& address : interface.addresses) {
      if (absl::StartsWith(address, absl::StrCat(host, "/"))) return &interface;
    }
  }
  // 127.0.0.0/8 belongs to the loopback interface.
  return absl::StartsWith(host, "127.") ? InterfaceNamed(facts, "lo") : nullptr;
}

std::vector<Rail> RailsOf(const Facts& facts) {
  if (!facts.running()) return OfConfiguration(facts);
  std::vector<Rail> rails;
  for (const v1::RailStatus& status : facts.overview.rails()) rails.push_back(OfDaemon(facts, status));
  return rails;
}

}  // namespace rails::ctl::doctor
