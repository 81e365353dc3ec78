// Asks the daemons of a cluster for their overview, over HTTP.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_COLLECT_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_COLLECT_H_

#include <functional>
#include <vector>

#include "client/railsctl/doctor/cluster.h"
#include "client/railsctl/doctor/cluster_places.h"
#include "client/railsctl/http_get.h"

namespace rails::ctl::doctor {

// Called after each answer with the number of nodes asked so far.
using ClusterProgress = std::function<void(size_t asked)>;

// Nodes are in the order of `servers`. If a node does not answer as a daemon does, its `answered` has the reason.
Cluster AskCluster(const std::vector<ClusterServer>& servers, const HttpLimits& limits,
                   const ClusterProgress& progress);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_COLLECT_H_
