// Clusters as their daemons tell of them, for tests of doctor.
#ifndef RAILSD_TESTS_UNIT_CLIENT_RAILSCTL_DOCTOR_CLUSTER_H_
#define RAILSD_TESTS_UNIT_CLIENT_RAILSCTL_DOCTOR_CLUSTER_H_

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/cluster_checks.h"

namespace rails::ctl::doctor {

inline constexpr uint64_t kGbit = 125'000'000;

inline auto Tells(const std::string& check, Level level, const std::string& found) {
  return ::testing::AllOf(::testing::Field("check", &Finding::check, check),
                          ::testing::Field("level", &Finding::level, level),
                          ::testing::Field("found", &Finding::found, ::testing::HasSubstr(found)));
}

// Findings that are not kOk.
inline Findings Troubles(const Cluster& cluster) {
  Findings troubles;
  for (const Finding& finding : CheckCluster(cluster)) {
    if (finding.level != Level::kOk) troubles.push_back(finding);
  }
  return troubles;
}

// Nodes n0, n1, ... with rail r at 10.1.r.NODE, all connected.
inline Cluster HealthyCluster(size_t nodes, size_t rails) {
  Cluster cluster;
  for (size_t n = 0; n < nodes; ++n) {
    ClusterNode& node = cluster.nodes.emplace_back();
    node.where = absl::StrCat("10.0.0.", n, ":9471");
    node.name = absl::StrCat("n", n);
    node.version = "0.1.0";
    node.boot_id = absl::StrCat("b", n);
    node.settings_hash = "5e771465";
    for (size_t r = 0; r < rails; ++r) {
      ClusterRail& rail = node.rails.emplace_back();
      rail.name = absl::StrCat("rail", r);
      rail.address = absl::StrCat("10.1.", r, ".", n + 1, ":7000");
      rail.subnet = absl::StrCat("10.1.", r, ".0/24");
      rail.speed_bytes_per_s = 400 * kGbit;
      rail.state = v1::RAIL_STATE_UP;
    }
    for (size_t p = 0; p < nodes; ++p) {
      if (p != n) node.peers.push_back({absl::StrCat("n", p), "", true, std::vector<PathView>(rails, PathView::kUp)});
    }
  }
  return cluster;
}

inline ClusterPeer& EntryOf(Cluster& cluster, size_t from, size_t to) {
  return cluster.nodes[from].peers[to < from ? to : to - 1];
}
inline void BreakPath(Cluster& cluster, size_t rail, size_t a, size_t b) {
  EntryOf(cluster, a, b).rails[rail] = PathView::kDown;
  EntryOf(cluster, b, a).rails[rail] = PathView::kDown;
}
inline void BreakRail(Cluster& cluster, size_t rail, size_t node) {
  for (size_t other = 0; other < cluster.nodes.size(); ++other) {
    if (other != node) BreakPath(cluster, rail, node, other);
  }
}

}  // namespace rails::ctl::doctor

#endif  // RAILSD_TESTS_UNIT_CLIENT_RAILSCTL_DOCTOR_CLUSTER_H_
