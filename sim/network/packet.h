// The packet model: discrete events, store and forward, finite queues, windows of connections.
//
// A NIC sends packets of its transfers, in turn or as RailScheduler of agent/rails chooses chunks. A packet goes over
// the switch of its rail, or over a spine, and waits in the queue of each output port. Acknowledgements take the
// propagation time and no room. A transfer is one connection with a window: DCTCP's (Alizadeh et al., SIGCOMM 2010)
// with kEcn, halved at each loss with kDrop, constant with kPause. A lost packet becomes known to its sender when its
// acknowledgement would have come, and is sent again.
//
// With kPause, a NIC whose next packet finds the queue full waits with that packet, as under PFC, and so do all packets
// behind it. Queues of switches stop each other in the same way; paths never turn back, so no cycle can form.
#ifndef RAILSD_SIM_NETWORK_PACKET_H_
#define RAILSD_SIM_NETWORK_PACKET_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "sim/fabric.h"
#include "sim/network/outcome.h"
#include "sim/network/transfer.h"
#include "sim/simulate.h"

namespace railsd::sim {

// INVALID_ARGUMENT names the option and its value.
absl::Status CheckPacketOptions(const PacketOptions& options);

// Like RunFluid(). `rail_scheduler`: RailScheduler chooses what NICs send, in chunks of at most `chunk_bytes`.
Outcome RunPacket(const Fabric& fabric, TransferPlan plan, const PacketOptions& options, size_t timeline_bins,
                  uint64_t chunk_bytes, bool rail_scheduler, Reaction* reaction);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_PACKET_H_
