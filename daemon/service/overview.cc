#include "daemon/service/overview.h"

#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "daemon/metrics/balance.h"
#include "daemon/tls/tls_files.h"
#include "rails/v1/operator.pb.h"

namespace railsd {

void StatusTo(const AgentSnapshot& snapshot, const ServiceContext& context, rails::v1::GetStatusResponse* out) {
  out->set_node(context.node);
  out->set_version(context.version);
  out->set_boot_id(context.boot.value());
  out->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - context.started));
  out->set_config_hash(context.config_hash());
  out->set_tls(context.tls != nullptr);
  if (context.tls != nullptr) {
    out->set_tls_certificate_expiry_seconds(static_cast<double>(absl::ToUnixSeconds(context.tls->expires())));
  }
  StatusTo(snapshot, out);
}

std::vector<PeerView> AllPeers(const AgentSnapshot& snapshot, const ServiceContext& context) {
  std::vector<PeerView> known = snapshot.peers;
  for (const PeerView& peer : context.peers ? context.peers() : snapshot.peers) {
    const auto it = std::find_if(known.begin(), known.end(), [&](const PeerView& k) { return k.node == peer.node; });
    if (it == known.end()) {
      known.push_back(peer);
      continue;
    }
    it->version = peer.version;
    it->connections = peer.connections;
    if (!peer.why.empty()) it->why = peer.why;
  }
  std::sort(known.begin(), known.end(), [](const PeerView& a, const PeerView& b) { return a.node < b.node; });
  return known;
}

void OverviewTo(const AgentSnapshot& snapshot, const ServiceContext& context, uint32_t finished_limit,
                rails::v1::GetOverviewResponse* out) {
  out->set_time_seconds(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  StatusTo(snapshot, context, out->mutable_status());
  for (const RailView& rail : snapshot.rails) RailTo(rail, out->add_rails());
  for (const PeerView& peer : AllPeers(snapshot, context)) PeerTo(peer, out->add_peers());
  JobsTo(snapshot, finished_limit, out);
  if (context.balance == nullptr) return;
  const std::vector<BalanceMeter::Window> windows = context.balance->Read();
  for (size_t w = 0; w < windows.size(); ++w) {
    auto* window = out->add_balance();
    window->set_length_seconds(absl::ToDoubleSeconds(BalanceMeter::kWindows[w]));
    window->set_tx_max_over_mean(windows[w].sent ? windows[w].sent->max_over_mean : 0);
    window->set_tx_jain(windows[w].sent ? windows[w].sent->jain : 0);
    window->set_rx_max_over_mean(windows[w].received ? windows[w].received->max_over_mean : 0);
    window->set_rx_jain(windows[w].received ? windows[w].received->jain : 0);
    window->set_planned_max_over_mean(windows[w].planned ? windows[w].planned->max_over_mean : 0);
    window->set_planned_jain(windows[w].planned ? windows[w].planned->jain : 0);
    window->set_planned_rx_max_over_mean(windows[w].planned_received ? windows[w].planned_received->max_over_mean : 0);
    window->set_planned_rx_jain(windows[w].planned_received ? windows[w].planned_received->jain : 0);
  }
}

}  // namespace railsd
