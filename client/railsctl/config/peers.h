// The list of nodes for `peers.static`, made from a file of hosts. Pure.
#ifndef RAILS_RAILSCTL_CONFIG_PEERS_H_
#define RAILS_RAILSCTL_CONFIG_PEERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rails::ctl::config {

inline constexpr size_t kMaxPeers = 4096;  // as many as the daemon takes

struct StaticPeer {
  std::string name, control;  // "n1", "10.0.0.1:7471"
};

struct PeerList {
  std::vector<StaticPeer> peers;      // in the order of the lines
  std::vector<std::string> left_out;  // names whose address no other node reaches (loopback, link-local, multicast)
};

// `text` has one node a line: "NAME", "NAME ADDRESS" or, as in /etc/hosts, "ADDRESS NAME ..."; further names do not
// count. `#` begins a comment. If a line has no address, each daemon looks the name up. `source`: the file, for errors.
// INVALID_ARGUMENT: a line names no node or repeats a name or an address, or the text has no node or too many.
absl::StatusOr<PeerList> ReadHosts(absl::string_view text, const std::string& source, uint16_t port);

// The section `peers` of railsd.yaml.
std::string PeersYaml(const std::vector<StaticPeer>& peers);

}  // namespace rails::ctl::config

#endif  // RAILS_RAILSCTL_CONFIG_PEERS_H_
