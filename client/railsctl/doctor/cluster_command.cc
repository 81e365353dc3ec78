#include "client/railsctl/doctor/cluster_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "client/railsctl/doctor/cluster_checks.h"
#include "client/railsctl/doctor/cluster_collect.h"
#include "client/railsctl/doctor/cluster_places.h"
#include "client/railsctl/doctor/cluster_render.h"
#include "client/railsctl/doctor/render.h"
#include "client/railsctl/print.h"

namespace rails::ctl {
namespace {

constexpr absl::Duration kEachTimeout = absl::Seconds(5);
constexpr size_t kAtOnce = 128;  // connections
// After this uptime a daemon should reach its peers.
constexpr double kYoungSeconds = 10;
constexpr absl::Duration kAskAgain = absl::Milliseconds(500);

bool ReachesAll(const doctor::ClusterNode& node) {
  return std::all_of(node.peers.begin(), node.peers.end(), [](const doctor::ClusterPeer& peer) {
    return peer.up && std::all_of(peer.rails.begin(), peer.rails.end(), [](doctor::PathView path) {
             return path != doctor::PathView::kDown && path != doctor::PathView::kDoubtful;
           });
  });
}

// True if all nodes answered, a daemon is young, and a link or path is down or doubtful. False if a node did not
// answer, because asking it again takes long.
bool Settles(const doctor::Cluster& cluster) {
  const bool all = std::all_of(cluster.nodes.begin(), cluster.nodes.end(),
                               [](const doctor::ClusterNode& node) { return node.answered.ok(); });
  const bool young = std::any_of(cluster.nodes.begin(), cluster.nodes.end(), [](const doctor::ClusterNode& node) {
    return node.answered.ok() && node.uptime_seconds < kYoungSeconds;
  });
  return all && young && !std::all_of(cluster.nodes.begin(), cluster.nodes.end(), ReachesAll);
}

// Asks all nodes. Repeats until a cluster with young daemons is connected, for kYoungSeconds at most.
doctor::Cluster Ask(const Context& context, const std::vector<doctor::ClusterPlace>& places) {
  HttpLimits limits;
  limits.each = context.TimeoutOr(kEachTimeout);
  limits.at_once = kAtOnce;
  const std::vector<doctor::ClusterServer> servers = doctor::LookUpPlaces(places, limits.each);
  // Enough even if no node answers.
  limits.all = (2 + static_cast<int>(servers.size() / kAtOnce)) * limits.each;
  const bool to_terminal = isatty(STDERR_FILENO) == 1;
  doctor::ClusterProgress progress;
  if (to_terminal) {
    progress = [&servers](size_t asked) {
      std::fprintf(stderr, "\r\033[K%zu of %zu nodes asked", asked, servers.size());
    };
  }
  doctor::Cluster cluster = doctor::AskCluster(servers, limits, progress);
  const absl::Time end = absl::Now() + absl::Seconds(kYoungSeconds);
  while (Settles(cluster) && absl::Now() < end) {
    absl::SleepFor(kAskAgain);
    cluster = doctor::AskCluster(servers, limits, progress);
  }
  if (to_terminal) std::fputs("\r\033[K", stderr);
  return cluster;
}

}  // namespace

int ExamineCluster(const Context& context, const std::vector<std::string>& where) {
  const absl::StatusOr<std::vector<doctor::ClusterPlace>> places = doctor::ParsePlaces(where);
  if (!places.ok()) {
    return Fail(context, absl::IsNotFound(places.status()) ? kExitBadInputFile : kExitUsage, places.status());
  }
  const doctor::Cluster cluster = Ask(context, *places);
  const doctor::Findings findings = doctor::CheckCluster(cluster);
  PrintAs(context, doctor::RenderCluster(cluster, findings, context.color), doctor::ClusterJson(cluster, findings));
  return doctor::Count(findings, doctor::Level::kError) == 0 ? kExitOk : kExitFailed;
}

}  // namespace rails::ctl
