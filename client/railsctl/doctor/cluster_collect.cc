#include "client/railsctl/doctor/cluster_collect.h"

#include "absl/strings/str_cat.h"

namespace rails::ctl::doctor {
namespace {

// Leaves finished jobs out of the answer, because no check compares them.
constexpr const char* kStatusPath = "/api/v1/status?finished=0";

absl::Status Read(const absl::StatusOr<HttpAnswer>& answer, ClusterNode* node) {
  if (!answer.ok()) return answer.status();
  if (answer->code == 503) return absl::UnavailableError("its engine does not answer (HTTP 503)");
  if (answer->code != 200) {
    return absl::UnavailableError(absl::StrCat("it answers HTTP ", answer->code, "; is it a railsd's metrics.listen?"));
  }
  return ParseOverview(answer->body, node);
}

}  // namespace

Cluster AskCluster(const std::vector<ClusterServer>& servers, const HttpLimits& limits,
                   const ClusterProgress& progress) {
  Cluster cluster;
  std::vector<HttpServer> reachable;
  std::vector<size_t> numbers;  // by index in `reachable`: the index in `cluster`
  for (const ClusterServer& server : servers) {
    if (server.trouble.ok()) {
      numbers.push_back(cluster.nodes.size());
      reachable.push_back({server.address, server.port, server.where});
    }
    ClusterNode& node = cluster.nodes.emplace_back();
    node.where = server.where;
    node.answered = server.trouble;
  }
  size_t asked = servers.size() - reachable.size();
  HttpGet(reachable, kStatusPath, limits, [&](size_t index, const absl::StatusOr<HttpAnswer>& answer) {
    ClusterNode& node = cluster.nodes[numbers[index]];
    node.answered = Read(answer, &node);
    if (progress) progress(++asked);
  });
  return cluster;
}

}  // namespace rails::ctl::doctor
