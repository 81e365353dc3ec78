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

// `text`: a node a line, "NAME", "NAME ADDRESS" or, as in /etc/hosts, "ADDRESS NAME ..."; further names do not count,
// and
// `#` begins a comment. Without an address each daemon looks the name up. `source`: the file, for errors.
// INVALID_ARGUMENT, with the line: it is no node, or a name or an address is there twice; or there is no node.
absl::StatusOr<PeerList> ReadHosts(absl::string_view text, const std::string& source, uint16_t port);

// The part of railsd.yaml.
std::string PeersYaml(const std::vector<StaticPeer>& peers);

}  // namespace rails::ctl::config

#endif  // RAILS_RAILSCTL_CONFIG_PEERS_H_
