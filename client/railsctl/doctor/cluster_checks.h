// The checks of `railsctl doctor --cluster`: functions of the daemons' answers, without side effects. A check without
// trouble returns one kOk finding. A check that does not apply returns none.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_CHECKS_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_CHECKS_H_

#include "client/railsctl/doctor/cluster.h"
#include "client/railsctl/doctor/cluster_view.h"
#include "client/railsctl/doctor/finding.h"

namespace rails::ctl::doctor {

// cluster_nodes.cc
Findings CheckAnswers(const Cluster& cluster);        // every node answers
Findings CheckNodeNames(const Cluster& cluster);      // no two daemons have the same name
Findings CheckNodeVersions(const ClusterView& view);  // the same everywhere
Findings CheckNodeSettings(const ClusterView& view);  // settings that are not of one node are alike
Findings CheckMembership(const ClusterView& view);    // every node lists every other
Findings CheckClusterLinks(const ClusterView& view);  // the links between the daemons are up

// cluster_rails.cc
Findings CheckClusterRails(const ClusterView& view);  // rail i is the same kind of rail everywhere

// cluster_order.cc
Findings CheckRailOrder(const ClusterView& view);  // rail i has an address in the same subnet everywhere

// cluster_paths.cc
Findings CheckClusterPaths(const ClusterView& view);  // rail i reaches rail i of every other node

// All checks, in the order of their findings' importance.
Findings CheckCluster(const Cluster& cluster);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_CHECKS_H_
