// The nodes that `railsctl doctor --cluster` asks: from its option to addresses.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_PLACES_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_PLACES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rails::ctl::doctor {

// One entry of the option.
struct ClusterPlace {
  std::string host;  // without brackets
  uint16_t port = 0;
  bool every_address = false;  // "dns:": each address of the name is a node
};

// Parses the values of --cluster: "@FILE", "HOST:PORT", "dns:NAME:PORT", and lists of them with commas. A file has one
// entry a line; "#" begins a comment. Entries that occur twice count once. INVALID_ARGUMENT: an entry is malformed, or
// there is no entry or more than 4096. NOT_FOUND: a file cannot be read.
absl::StatusOr<std::vector<ClusterPlace>> ParsePlaces(const std::vector<std::string>& values);

// One node, or a name without an address.
struct ClusterServer {
  std::string where;    // "HOST:PORT", for people
  std::string address;  // numeric
  uint16_t port = 0;
  absl::Status trouble;  // error of the look-up
};

// Looks all names up at once, for `limit` at most. Prefers IPv4, because daemons serve their status on IPv4 only.
std::vector<ClusterServer> LookUpPlaces(const std::vector<ClusterPlace>& places, absl::Duration limit);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_PLACES_H_
