// Renders the result of `railsctl doctor --cluster`.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_RENDER_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_RENDER_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "client/railsctl/doctor/cluster.h"
#include "client/railsctl/doctor/finding.h"

namespace rails::ctl::doctor {

// Text for people: a table with a row for each rail, and below it the findings.
std::string RenderCluster(const Cluster& cluster, const Findings& findings, bool color);
nlohmann::ordered_json ClusterJson(const Cluster& cluster, const Findings& findings);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_RENDER_H_
