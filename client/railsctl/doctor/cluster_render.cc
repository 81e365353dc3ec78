#include "client/railsctl/doctor/cluster_render.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/cluster_view.h"
#include "client/railsctl/doctor/render.h"
#include "client/railsctl/format.h"
#include "client/railsctl/table.h"

namespace rails::ctl::doctor {
namespace {

// One rail of all nodes. A path is one daemon's view of the rail to one peer.
struct RailTotals {
  size_t nodes = 0, nodes_up = 0;     // all known nodes; nodes that report the rail as up and not drained
  uint64_t slowest = 0, fastest = 0;  // bytes per second; 0: unknown
  size_t paths = 0, paths_up = 0, paths_drained = 0;
};

RailTotals TotalsOf(const ClusterView& view, size_t rail) {
  RailTotals totals;
  totals.nodes = view.size();
  for (size_t node = 0; node < view.answered(); ++node) {
    const ClusterRail* const own = view.rail(node, rail);
    if (own == nullptr) continue;
    if (own->state == v1::RAIL_STATE_UP && !own->drained) ++totals.nodes_up;
    if (own->speed_bytes_per_s > 0) {
      totals.slowest = totals.slowest == 0 ? own->speed_bytes_per_s : std::min(totals.slowest, own->speed_bytes_per_s);
      totals.fastest = std::max(totals.fastest, own->speed_bytes_per_s);
    }
    for (size_t peer = 0; peer < view.size(); ++peer) {
      if (peer == node) continue;
      ++totals.paths;
      const PathView path = view.path(rail, node, peer);
      totals.paths_up += path == PathView::kUp ? 1 : 0;
      totals.paths_drained += path == PathView::kDrained ? 1 : 0;
    }
  }
  return totals;
}

std::string SpeedText(const RailTotals& totals) {
  const std::string slowest = FormatBitRate(static_cast<double>(totals.slowest));
  const std::string fastest = FormatBitRate(static_cast<double>(totals.fastest));
  return slowest == fastest ? slowest : absl::StrCat(slowest, " to ", fastest);
}

Cell PartOf(size_t part, size_t all) {
  return {absl::StrCat(part, " of ", all), part == all ? Mark::kGood : part == 0 ? Mark::kBad : Mark::kWarn};
}

}  // namespace

std::string RenderCluster(const Cluster& cluster, const Findings& findings, bool color) {
  const ClusterView view(cluster);
  Table table({{"RAIL"},
               {"NODES UP", Table::Align::kRight},
               {"SPEED", Table::Align::kRight},
               {"PATHS UP", Table::Align::kRight},
               {"DRAINED", Table::Align::kRight}});
  for (size_t rail = 0; rail < view.rails(); ++rail) {
    const RailTotals totals = TotalsOf(view, rail);
    table.AddRow({absl::StrCat(rail), PartOf(totals.nodes_up, totals.nodes), SpeedText(totals),
                  PartOf(totals.paths_up, totals.paths),
                  totals.paths_drained == 0 ? "-" : absl::StrCat(totals.paths_drained)});
  }
  return absl::StrCat(table.empty() ? "" : absl::StrCat(table.Render(color), "\n"), Render(findings, color));
}

nlohmann::ordered_json ClusterJson(const Cluster& cluster, const Findings& findings) {
  const ClusterView view(cluster);
  nlohmann::ordered_json nodes = nlohmann::ordered_json::array(), rails = nlohmann::ordered_json::array();
  for (const ClusterNode& node : cluster.nodes) {
    nodes.push_back(
        {{"address", node.where}, {"node", node.name}, {"version", node.version}, {"error", node.answered.message()}});
  }
  for (size_t rail = 0; rail < view.rails(); ++rail) {
    const RailTotals totals = TotalsOf(view, rail);
    rails.push_back({{"rail", rail},
                     {"nodes", totals.nodes},
                     {"nodes_up", totals.nodes_up},
                     {"slowest_bytes_per_second", totals.slowest},
                     {"fastest_bytes_per_second", totals.fastest},
                     {"paths", totals.paths},
                     {"paths_up", totals.paths_up},
                     {"paths_drained", totals.paths_drained}});
  }
  nlohmann::ordered_json out = {{"nodes", std::move(nodes)}, {"rails", std::move(rails)}};
  out.update(FindingsJson(findings));
  return out;
}

}  // namespace rails::ctl::doctor
