// Settings of rails over RDMA verbs. Includes no verbs header, so that a build without verbs reads the same
// configuration.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_TUNING_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_TUNING_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace railsd {

// The same for all verbs rails of a node. Sizes are cut to the device's limits, with a line in the log.
struct VerbsTuning {
  uint32_t queue_pairs_per_peer = 1;
  uint32_t send_queue_depth = 512;         // work requests of one queue pair
  uint32_t completion_queue_depth = 4096;  // of a rail
  uint32_t fence_queue_depth = 1024;       // receives of a rail for fences; every peer's share comes out of it
  std::optional<uint8_t> gid_index;        // absent: chosen (RoCE v2 over IPv4 first)
  uint32_t path_mtu_bytes = 0;             // 256 to 4096; 0: of the port
  uint8_t service_level = 0;               // 0 to 15
  uint8_t traffic_class = 0;
  uint8_t timeout = 12;        // of an acknowledgement: 4.096 us * 2^timeout; 0 would be for ever
  uint8_t retry_count = 3;     // 0 to 6; with 7 a dead peer is never reported by some devices
  uint32_t inline_bytes = 64;  // chunks up to this size travel in the work request
  // How long a rail's thread polls for completions after the last one before it sleeps.
  absl::Duration busy_poll = absl::ZeroDuration();
  uint32_t max_windows = 256;  // memory windows of one exchange and rail; more, or 0: a weak zone
  friend bool operator==(const VerbsTuning&, const VerbsTuning&) = default;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_TUNING_H_
