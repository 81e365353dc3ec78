// Prints the RDMA ports of a node: railsd --list-devices.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/json/json.h"
#include "daemon/config/units.h"
#include "daemon/lifecycle/rail_choice.h"

namespace railsd {
namespace {

using verbs::RdmaPort;

constexpr size_t kColumns = 10;
using Row = std::array<std::string, kColumns>;

const char* LinkLayerName(verbs::LinkLayer link_layer) {
  return link_layer == verbs::LinkLayer::kEthernet ? "Ethernet" : "InfiniBand";
}
const char* GidTypeName(verbs::GidType type) {
  return type == verbs::GidType::kInfiniBand ? "IB" : type == verbs::GidType::kRoceV1 ? "RoCE v1" : "RoCE v2";
}
std::string Or(std::string text, const char* otherwise) { return text.empty() ? otherwise : std::move(text); }

Row RowOf(const RdmaPort& port) {
  const absl::StatusOr<verbs::Gid> gid = verbs::ChooseGid(port, std::nullopt);
  const absl::Status usable = verbs::CheckUsable(port);
  return {
      port.Name(),
      port.state_text,
      LinkLayerName(port.link_layer),
      port.speed_bytes_per_s == 0 ? "-" : FormatRate(port.speed_bytes_per_s),
      port.mtu_bytes == 0 ? "-" : absl::StrCat(port.mtu_bytes),
      gid.ok() ? absl::StrCat(gid->index, ": ", verbs::GidText(gid->bytes), " (", GidTypeName(gid->type), ")") : "-",
      gid.ok() ? Or(gid->interface, "-") : "-",
      port.numa_node < 0 ? "-" : absl::StrCat(port.numa_node),
      Or(port.pci_address, "-"),
      usable.ok() ? "yes" : absl::StrCat("no: ", usable.message())};
}

}  // namespace

std::string RdmaPortTable(absl::Span<const RdmaPort> ports) {
  if (ports.empty()) return "no RDMA devices\n";
  std::vector<Row> rows = {
      {"PORT", "STATE", "LINK", "SPEED", "MTU", "GID", "INTERFACE", "NUMA", "PCI", "USABLE AS A RAIL"}};
  for (const RdmaPort& port : ports) rows.push_back(RowOf(port));
  std::array<size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < kColumns; ++i) {
      absl::StrAppend(&out, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&out, row.back(), "\n");
  }
  return out;
}

std::string RdmaPortJson(absl::Span<const RdmaPort> ports) {
  using Json = nlohmann::ordered_json;
  Json array = Json::array();
  for (const RdmaPort& port : ports) {
    const absl::StatusOr<verbs::Gid> chosen = verbs::ChooseGid(port, std::nullopt);
    const absl::Status usable = verbs::CheckUsable(port);
    Json gids = Json::array();
    for (const verbs::Gid& gid : port.gids) {
      gids.push_back({{"index", gid.index},
                      {"gid", verbs::GidText(gid.bytes)},
                      {"type", GidTypeName(gid.type)},
                      {"interface", gid.interface}});
    }
    array.push_back({{"device", port.device},
                     {"port", port.port},
                     {"state", port.state_text},
                     {"link_layer", LinkLayerName(port.link_layer)},
                     {"speed_bytes_per_second", port.speed_bytes_per_s},
                     {"mtu_bytes", port.mtu_bytes},
                     {"lid", port.lid},
                     {"numa_node", port.numa_node},
                     {"pci_address", port.pci_address},
                     {"gids", std::move(gids)},
                     {"gid_index", chosen.ok() ? Json(chosen->index) : Json()},
                     {"usable", usable.ok()},
                     {"why_not", usable.ok() ? "" : std::string(usable.message())}});
  }
  return rails::DumpJson(Json{{"ports", std::move(array)}}, 2) + "\n";
}

}  // namespace railsd
