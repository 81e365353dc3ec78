#include "daemon/lifecycle/rail_speed.h"

#include <spdlog/logger.h>

#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "daemon/config/network.h"
#include "daemon/config/units.h"

namespace railsd {

namespace {

// Empty for a rail over verbs.
std::string InterfaceOfRail(const RailSpec& rail, absl::Span<const LocalAddress> known) {
  return rail.kind == RailKind::kTcp && rail.interface.empty() ? InterfaceOf(rail.address, known) : rail.interface;
}

absl::Status NoAddress(const std::string& interface) {
  return absl::NotFoundError(
      absl::StrCat("interface '", interface, "' is not there or has no address; `ip -brief address` shows what is"));
}

absl::Status FillRailAddress(absl::Span<const LocalAddress> known, RailSpec* rail) {
  if (rail->address.empty()) {
    rail->address = AddressOf(rail->interface, known);
    if (!rail->address.empty()) return absl::OkStatus();
    return NoAddress(rail->interface);
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(rail->address, true);
  if (!address.ok()) return address.status();
  if (!LooksLikeNetwork(address->host)) return absl::OkStatus();
  std::vector<LocalAddress> candidates(known.begin(), known.end());
  if (!rail->interface.empty()) {
    std::erase_if(candidates, [rail](const LocalAddress& own) { return own.interface != rail->interface; });
    if (candidates.empty()) return NoAddress(rail->interface);
  }
  const absl::StatusOr<std::string> host = ResolveHost(address->host, candidates);
  if (!host.ok()) return host.status();
  // Binds the rail to the interface of its address. Otherwise it would also work over another rail's interface, and two
  // swapped cables would go unnoticed.
  const LocalAddress* const own = FindAddress(*host, candidates);
  if (own != nullptr && MayBindTo(*own)) rail->interface = own->interface;
  rail->address = address->port == 0 ? *host : FormatHostPort({*host, address->port});
  return absl::OkStatus();
}

}  // namespace

absl::Status FillRailAddresses(absl::Span<const LocalAddress> known, std::vector<RailSpec>* rails) {
  struct Owner {
    std::string rail;
    bool looked_up = false;
  };
  std::map<std::string, Owner> owners;  // by host
  for (RailSpec& rail : *rails) {
    if (rail.kind != RailKind::kTcp) continue;
    const std::string configured = rail.address;
    if (absl::Status status = FillRailAddress(known, &rail); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("rails: ", rail.name, ": ", status.message()));
    }
    const bool looked_up = rail.address != configured;
    const absl::StatusOr<HostPort> address = ParseHostPort(rail.address, true);
    if (!address.ok()) return address.status();
    const auto [other, added] = owners.emplace(address->host, Owner{rail.name, looked_up});
    // Addresses that are written in the file have been checked when it was read.
    if (!added && (looked_up || other->second.looked_up)) {
      return absl::InvalidArgumentError(absl::StrCat("rails: ", rail.name, ": ", other->second.rail,
                                                     " has its address, ", address->host,
                                                     "; give each rail a network or an interface of its own"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> InterfacesOf(const std::vector<RailSpec>& rails) {
  const std::vector<LocalAddress> known = LocalAddresses();
  std::vector<std::string> interfaces;
  for (const RailSpec& rail : rails) interfaces.push_back(InterfaceOfRail(rail, known));
  return interfaces;
}

uint64_t InterfaceSpeed(const std::string& interface) {
  std::ifstream file(absl::StrCat("/sys/class/net/", interface, "/speed"));
  int64_t megabits = 0;
  return file >> megabits && megabits > 0 ? static_cast<uint64_t>(megabits) * 125'000 : 0;
}

void FillRailSpeeds(absl::Span<const LocalAddress> known, std::vector<RailSpec>* rails, spdlog::logger* log) {
  for (RailSpec& rail : *rails) {
    if (rail.speed_bytes_per_s != 0) continue;
    const bool device = rail.kind == RailKind::kVerbs;
    const std::string interface = device ? rail.device : InterfaceOfRail(rail, known);
    if (!device && !interface.empty()) rail.speed_bytes_per_s = InterfaceSpeed(interface);
    if (rail.speed_bytes_per_s != 0) {
      log->info("rail_speed rail={} interface={} speed={}", rail.name, interface, FormatRate(rail.speed_bytes_per_s));
      continue;
    }
    rail.speed_bytes_per_s = kDefaultRailBytesPerSecond;
    log->warn("rail_speed_unknown rail={} interface={} assumed=10gbit hint=\"set rails[].speed\"", rail.name,
              interface.empty() ? "none" : interface);
  }
}

}  // namespace railsd
