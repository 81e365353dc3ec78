// Findings of doctor about the order of rails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/client/railsctl/doctor_cluster.h"

namespace rails::ctl::doctor {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

TEST(DoctorOrderTest, RailsInAnotherOrder) {
  Cluster cluster = HealthyCluster(4, 3);
  std::swap(cluster.nodes[2].rails[0].address, cluster.nodes[2].rails[1].address);
  std::swap(cluster.nodes[2].rails[0].subnet, cluster.nodes[2].rails[1].subnet);
  EXPECT_THAT(Troubles(cluster),
              ElementsAre(Tells("order", Level::kError,
                                "on n2, rail 0 (10.1.1.3) is in the subnet of rail 1, rail 1 (10.1.0.3) is in the "
                                "subnet of rail 0 of most other nodes")));
  cluster.nodes.erase(cluster.nodes.begin() + 3);
  cluster.nodes.erase(cluster.nodes.begin());
  EXPECT_THAT(CheckCluster(cluster), Contains(Tells("order", Level::kError, "of the other node")));
}

// Addresses in one subnet may look as if its halves were subnets.
TEST(DoctorOrderTest, RailsInOneSubnetHaveNoOrder) {
  Cluster cluster = HealthyCluster(2, 2);
  for (size_t n = 0; n < 2; ++n) {
    for (size_t r = 0; r < 2; ++r) {
      cluster.nodes[n].rails[r].address = absl::StrCat("10.1.0.", n == r ? 10 + n : 20 + n, ":7000");
      cluster.nodes[n].rails[r].subnet = "10.1.0.0/24";
    }
  }
  EXPECT_THAT(CheckRailOrder(ClusterView(cluster)), ElementsAre());
}

TEST(DoctorOrderTest, RailsWithASubnetForEachNodeHaveNoOrder) {
  Cluster cluster = HealthyCluster(3, 2);
  for (size_t n = 0; n < 3; ++n) {
    for (size_t r = 0; r < 2; ++r) cluster.nodes[n].rails[r].subnet = absl::StrCat("10.", n, ".", r, ".0/24");
  }
  EXPECT_THAT(CheckRailOrder(ClusterView(cluster)), ElementsAre());
}

TEST(DoctorOrderTest, ANodeInOtherSubnetsIsNotCompared) {
  Cluster cluster = HealthyCluster(3, 2);
  for (size_t r = 0; r < 2; ++r) cluster.nodes[2].rails[r].subnet = absl::StrCat("10.9.", r, ".0/24");
  EXPECT_THAT(CheckRailOrder(ClusterView(cluster)),
              ElementsAre(Tells("order", Level::kNote, "no rail of n2 is in a subnet of the other nodes")));
}

TEST(DoctorOrderTest, ANodeThatTellsNoSubnetIsNoStranger) {
  Cluster cluster = HealthyCluster(3, 2);
  for (ClusterRail& rail : cluster.nodes[2].rails) rail.subnet.clear();
  EXPECT_THAT(CheckRailOrder(ClusterView(cluster)), ElementsAre(Tells("order", Level::kOk, "")));
}

TEST(DoctorOrderTest, GidsAndIpv6HaveAnOrderToo) {
  Cluster cluster = HealthyCluster(3, 2);
  for (size_t n = 0; n < 3; ++n) {
    for (size_t r = 0; r < 2; ++r) {
      ClusterRail& rail = cluster.nodes[n].rails[r];
      rail.verbs = true;
      rail.gid = absl::StrCat("::ffff:10.1.", n == 1 ? 1 - r : r, ".", n + 1);
      rail.subnet = absl::StrCat("10.1.", n == 1 ? 1 - r : r, ".0/24");
    }
  }
  EXPECT_THAT(CheckRailOrder(ClusterView(cluster)),
              ElementsAre(Tells("order", Level::kError, "on n1, rail 0 (::ffff:10.1.1.2) is in the subnet of rail 1")));
  for (size_t n = 0; n < 3; ++n) {
    for (size_t r = 0; r < 2; ++r) {
      cluster.nodes[n].rails[r].verbs = false;
      cluster.nodes[n].rails[r].address = absl::StrCat("[fd00:0:", r, "::", n + 1, "]:7000");
      cluster.nodes[n].rails[r].subnet = absl::StrCat("fd00:0:", r, "::/64");
    }
  }
  EXPECT_THAT(CheckRailOrder(ClusterView(cluster)), ElementsAre(Tells("order", Level::kOk, "")));
}

}  // namespace
}  // namespace rails::ctl::doctor
