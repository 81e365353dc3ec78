// A cluster as its daemons describe it, for `railsctl doctor --cluster`. cluster_collect.h asks the daemons,
// cluster_checks.h compares the answers.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl::doctor {

// Limits of what one daemon's answer may list; a configuration cannot have more.
inline constexpr size_t kMaxClusterRails = 64, kMaxClusterNodes = 4096;

struct ClusterRail {
  std::string name, address, interface, subnet;
  uint64_t speed_bytes_per_s = 0;
  v1::RailState state = v1::RAIL_STATE_UNSPECIFIED;
  bool drained = false;  // by an operator
  std::string why;       // if not up
  // Verbs rails only:
  bool verbs = false;
  std::string link_layer, device, gid;  // "Ethernet", "mlx5_0/1", "::ffff:10.1.0.1"
  uint32_t mtu_bytes = 0;
};

// One daemon's view of one rail to one peer.
enum class PathView : uint8_t {
  kUnknown,  // no link between the daemons, or only one of the two nodes has the rail
  kUp,
  kDoubtful,  // connected, and suspect or probing
  kDrained,   // an operator has drained an end
  kDown,
};

struct ClusterPeer {
  std::string node, why;
  bool up = false;  // the link
  std::vector<PathView> rails;
};

struct ClusterNode {
  std::string where;      // "HOST:PORT", as given
  absl::Status answered;  // the error of asking; the members below are set if it is OK
  std::string name, version, boot_id;
  std::string settings_hash;  // GetStatusResponse.shared_config_hash
  double uptime_seconds = 0;
  bool draining = false;
  std::vector<ClusterRail> rails;
  std::vector<ClusterPeer> peers;
};

struct Cluster {
  std::vector<ClusterNode> nodes;  // all nodes that were asked
};

// Fills `node` from the answer of /api/v1/status. Texts become printable and are cut to 256 columns. INVALID_ARGUMENT:
// `json` is no such answer, or lists more than the limits.
absl::Status ParseOverview(absl::string_view json, ClusterNode* node);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_H_
