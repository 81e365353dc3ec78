// The states of an RC queue pair on its way to sending.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_QUEUE_PAIR_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_QUEUE_PAIR_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs_tuning.h"

namespace railsd::verbs {

// Depth of RDMA reads and atomics that both ends of a connection may use.
uint8_t MaxReads(const RdmaDevice& device);

// Everything that a queue pair must know to be connected to another.
struct QueuePairPath {
  RdmaDevice::Address own;
  std::array<uint8_t, 16> peer_gid{};
  uint16_t peer_lid = 0;
  uint32_t mtu_bytes = 0;
  uint32_t peer_number = 0;
  uint32_t peer_psn = 0;  // of the peer's first packet
  uint32_t own_psn = 0;
  uint8_t reads_in = 0, reads_out = 0;  // reads of the peer, and own ones, that may be under way
};

// RESET to INIT. `access`: rights of the peer, IBV_ACCESS_*.
absl::Status MoveToInit(const RdmaDevice& device, ibv_qp* queue_pair, unsigned access);
// INIT to RTS.
absl::Status MoveToSending(const RdmaDevice& device, const VerbsTuning& tuning, ibv_qp* queue_pair,
                           const QueuePairPath& path);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_QUEUE_PAIR_H_
