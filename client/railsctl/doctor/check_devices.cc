// Checks RDMA ports, the kernel's support for them, and their PCIe slots.
#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/rails.h"
#include "client/railsctl/format.h"

namespace rails::ctl::doctor {
namespace {

bool AnyVerbs(const std::vector<Rail>& rails) {
  return std::any_of(rails.begin(), rails.end(), [](const Rail& rail) { return rail.verbs; });
}

const Rail* RailOn(const std::vector<Rail>& rails, const RdmaPort& port) {
  const auto it = std::find_if(rails.begin(), rails.end(), [&](const Rail& rail) { return rail.port == &port; });
  return it == rails.end() ? nullptr : &*it;
}

const Gid* BestGid(const RdmaPort& port) {
  const Gid* best = nullptr;
  for (const Gid& gid : port.gids) {
    if (gid.type != "RoCE v2") continue;
    if (best == nullptr || (absl::StartsWith(best->text, "fe80:") && !absl::StartsWith(gid.text, "fe80:")) ||
        (absl::StrContains(gid.text, '.') && !absl::StrContains(best->text, '.'))) {
      best = &gid;
    }
  }
  return best;
}

std::string GidList(const RdmaPort& port) {
  std::vector<std::string> texts;
  for (const Gid& gid : port.gids) texts.push_back(absl::StrCat(gid.index, ": ", gid.text, " (", gid.type, ")"));
  return texts.empty() ? "no GID" : absl::StrJoin(texts, ", ");
}

// Tells whether memory of other devices can be a segment on the rail; empty if that is not known.
std::string DmaBufs(const Rail* rail) {
  if (rail == nullptr || !rail->dma_bufs.has_value()) return "";
  return *rail->dma_bufs ? "; registers dma-bufs" : "; no dma-bufs";
}

// Judges one port. `rail`: the rail on this port, or null.
Finding JudgePort(const RdmaPort& port, const Rail* rail) {
  const std::string who = rail == nullptr ? port.Name() : absl::StrCat(port.Name(), " (", rail->name, ")");
  const Level bad = rail == nullptr ? Level::kNote : Level::kError;
  const std::string interface =
      port.gids.empty() || port.gids[0].interface.empty() ? "INTERFACE" : port.gids[0].interface;
  if (port.state != "ACTIVE") {
    return {"devices", bad, absl::StrCat(who, ": the port is ", port.state, ", physically ", port.physical_state),
            rail == nullptr ? "No rail uses it." : "The rail carries nothing.",
            absl::StrCat("Look at the cable, the optics and the switch's port; `ip link set ", interface,
                         " up`, `ibstat ", port.device, "`.")};
  }
  if (port.link_layer == "InfiniBand") {
    if (port.lid != 0 && !port.gids.empty())
      return {"devices", Level::kOk, absl::StrCat(who, ": active, InfiniBand, LID ", port.lid, DmaBufs(rail)), "", ""};
    return {"devices", bad, absl::StrCat(who, ": active, InfiniBand, but it has no ", port.lid == 0 ? "LID" : "GID"),
            "No peer can address the port.",
            "Start a subnet manager in the fabric (`systemctl start opensm` on one node, or the switch's own)."};
  }
  const Gid* gid = BestGid(port);
  if (gid == nullptr) {
    return {"devices", bad, absl::StrCat(who, ": no GID of RoCE v2; it has ", GidList(port)),
            "Only RoCE v2 is routed, and railsd uses nothing else on Ethernet.",
            absl::StrCat("Give its interface an IPv4 address: `ip addr add ADDRESS/24 dev ", interface, "`.")};
  }
  if (absl::StartsWith(gid->text, "fe80:")) {
    return {"devices", rail == nullptr ? Level::kNote : Level::kWarning,
            absl::StrCat(who, ": the only GID of RoCE v2 is link-local, ", gid->index, ": ", gid->text),
            "It reaches nodes on the same link only.",
            absl::StrCat("Give its interface an IPv4 address: `ip addr add ADDRESS/24 dev ", interface, "`.")};
  }
  return {"devices", Level::kOk,
          absl::StrCat(who, ": active, ", FormatBitRate(static_cast<double>(port.speed_bytes_per_s)), ", RoCE v2 GID ",
                       gid->index, ": ", gid->text, DmaBufs(rail)),
          "", ""};
}

// Capacity of the slot in Gbit/s, without the line code.
double Gigabits(double transfers, uint32_t lanes) { return transfers * lanes * (transfers < 8 ? 0.8 : 128.0 / 130.0); }

std::string LinkText(double transfers, uint32_t lanes) { return absl::StrFormat("%g GT/s x%d", transfers, lanes); }

}  // namespace

Findings CheckDevices(const Facts& facts) {
  const std::vector<Rail> rails = RailsOf(facts);
  Findings findings;
  for (const RdmaPort& port : facts.machine.ports) findings.push_back(JudgePort(port, RailOn(rails, port)));
  for (const Rail& rail : rails) {
    if (!rail.verbs || rail.port != nullptr) continue;
    findings.push_back({"devices", Level::kError,
                        absl::StrCat(rail.name, ": this machine has no RDMA device ", rail.device),
                        "The daemon does not start without it.",
                        "Compare with `railsd --list-devices`; is the driver loaded (`rdma link`, `dmesg`)?"});
  }
  for (const std::string& pci : facts.machine.nics_without_rdma) {
    findings.push_back({"devices", AnyVerbs(rails) ? Level::kWarning : Level::kNote,
                        absl::StrCat("the NIC at ", pci, " can do RDMA and has no RDMA device"),
                        "Its driver for RDMA is not loaded, or RDMA is off in its firmware.",
                        "`modprobe mlx5_ib`, then `rdma link`."});
  }
  if (!findings.empty() || (!facts.running() && !facts.config.here.ok())) return findings;
  return {{"devices", Level::kOk, "no RDMA device, and no rail needs one", "", ""}};
}

Findings CheckDeviceFiles(const Facts& facts) {
  if (facts.machine.ports.empty() && !AnyVerbs(RailsOf(facts))) return {};
  Findings findings;
  if (!facts.machine.uverbs_module) {
    findings.push_back({"permissions", Level::kError, "the kernel's module ib_uverbs is not loaded",
                        "Without it no program may use RDMA devices.",
                        "`modprobe ib_uverbs`; put it into /etc/modules-load.d/rdma.conf (package rdma-core does)."});
  }
  std::vector<std::string> good;
  for (const DeviceFile& file : facts.machine.device_files) {
    if (!absl::StrContains(file.path, "uverbs")) continue;
    const auto& groups = facts.process.groups;
    const bool mine = facts.process.pid != 0 &&
                      (facts.process.uid == 0 || (file.uid == facts.process.uid && (file.mode & 0600) == 0600) ||
                       (std::count(groups.begin(), groups.end(), file.gid) > 0 && (file.mode & 0060) == 0060));
    if (mine || (file.mode & 0006) == 0006) {
      good.push_back(file.path);
      continue;
    }
    const Level level = facts.process.pid != 0 ? Level::kError : Level::kWarning;
    findings.push_back(
        {"permissions", level,
         absl::StrFormat("%s has mode %04o, owner %d, group %d", file.path, file.mode & 07777, file.uid, file.gid),
         "The daemon's user may not open the device.",
         "A udev rule: KERNEL==\"uverbs*\", MODE=\"0666\" (rdma-core installs one); or the group to the "
         "unit's SupplementaryGroups."});
  }
  if (findings.empty() && good.empty()) {
    findings.push_back({"permissions", Level::kError, "/dev/infiniband holds no device",
                        "Programs open RDMA devices there.",
                        "In a container: mount /dev/infiniband into it; else `udevadm trigger`."});
  } else if (findings.empty()) {
    findings.push_back({"permissions", Level::kOk, absl::StrCat(absl::StrJoin(good, ", "), " may be opened"), "", ""});
  }
  return findings;
}

Findings CheckPcie(const Facts& facts) {
  Findings findings;
  std::vector<std::string> good;
  for (const Rail& rail : RailsOf(facts)) {
    if (rail.pci == nullptr || rail.pci->lanes == 0 || rail.pci->max_lanes == 0) continue;
    const PciLink& pci = *rail.pci;
    const std::string now = LinkText(pci.transfers, pci.lanes);
    const double gigabits = Gigabits(pci.transfers, pci.lanes);
    const double wanted = static_cast<double>(rail.speed_bytes_per_s) * 8e-9;
    const bool narrow = pci.transfers < pci.max_transfers || pci.lanes < pci.max_lanes;
    if (!narrow && gigabits >= wanted) {
      good.push_back(absl::StrCat(rail.name, " ", now));
      continue;
    }
    findings.push_back(
        {"pcie", Level::kWarning,
         absl::StrFormat("%s (%s) has trained to %s, %.0f Gbit/s%s", rail.name, pci.address, now, gigabits,
                         narrow ? absl::StrCat("; it can do ", LinkText(pci.max_transfers, pci.max_lanes)) : ""),
         gigabits < wanted ? absl::StrFormat("The slot is slower than the rail (%.0f Gbit/s).", wanted)
                           : "It is enough for the rail, but something is wrong with the slot, the riser or the card.",
         absl::StrCat("`lspci -vv -s ", pci.address, "` (LnkSta); seat the card again or use another slot.")});
  }
  if (findings.empty() && !good.empty()) findings.push_back({"pcie", Level::kOk, absl::StrJoin(good, ", "), "", ""});
  return findings;
}

Findings CheckNuma(const Facts& facts) {
  if (facts.machine.numa_nodes < 2) return {};
  std::vector<std::string> texts, unknown;
  std::set<int> used;
  for (const Rail& rail : RailsOf(facts)) {
    if (rail.pci == nullptr || rail.pci->address.empty()) continue;
    if (rail.pci->numa_node < 0) unknown.push_back(rail.name);
    texts.push_back(absl::StrCat(rail.name, " ", rail.pci->numa_node));
    used.insert(rail.pci->numa_node);
  }
  if (texts.empty()) return {};
  const std::string found = absl::StrCat("NUMA nodes of the rails' NICs: ", absl::StrJoin(texts, ", "));
  if (!unknown.empty()) {
    return {{"numa", Level::kNote, found, "The firmware does not say where every NIC is (-1).",
             "Look for NUMA settings of the firmware."}};
  }
  if (used.size() == 1 && texts.size() > 1) {
    return {{"numa", Level::kNote, absl::StrCat(found, ", of ", facts.machine.numa_nodes),
             "Buffers on the other nodes cross the link between processors.",
             "Spread the NICs over the slots, where the machine allows it."}};
  }
  return {{"numa", Level::kOk, found, "", ""}};
}

}  // namespace rails::ctl::doctor
