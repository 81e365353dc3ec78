// The result of a network model: times, bytes, queues.
#ifndef RAILSD_SIM_NETWORK_OUTCOME_H_
#define RAILSD_SIM_NETWORK_OUTCOME_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace railsd::sim {

// Bytes that NICs sent, by rail and stretch of time. All bins are equally long; there are at most twice as many as
// were asked for.
struct Timeline {
  double bin_seconds = 0;
  size_t rails = 0;
  std::vector<double> bytes;  // bin * rails + rail
  size_t bins() const { return rails == 0 ? 0 : bytes.size() / rails; }
};

// All times in seconds since the start of the transfers. Index of a NIC: node * rails + rail.
struct Outcome {
  // When the last byte has arrived, the bytes that move inside a node included. Infinite when something never arrives,
  // because its path is dead and the policy does not react.
  double seconds = 0;
  double network_seconds = 0;  // the part of the network: when the last byte has arrived at a NIC
  double inner_seconds = 0;    // the part inside nodes: the busiest GPU at R1; it overlaps with the network
  // Time that the busiest NIC needs for the bytes that the policy gave it at first, at the speeds of the start, if
  // nothing else limits it. `seconds` over this is the cost of sharing, queues and stages; this over the bound is the
  // imbalance.
  double busiest_nic_seconds = 0;
  double bound_seconds = 0;       // BoundSeconds() of the request
  uint64_t unfinished_bytes = 0;  // bytes that never arrive

  std::vector<double> sent_bytes, received_bytes;               // by NIC
  std::vector<double> send_busy_seconds, receive_busy_seconds;  // by NIC: bytes over speed, summed over time
  // By NIC: the longest that the queue of the switch in front of the NIC became, in bytes. Empty in fluid mode.
  std::vector<double> queue_peak_bytes;
  std::vector<double> spine_queue_peak_bytes;  // the same of all ports to and from spines; empty in fluid mode
  // By pair of nodes (source * nodes + destination): when its last byte has arrived. 0: the pair exchanges no bytes.
  // Infinite: some of its bytes never arrive. All 0 if the policy is the floor.
  std::vector<double> pair_finish_seconds;
  Timeline timeline;

  // By node: shares that it sends and receives. A share is all that goes from one node to another over one rail in one
  // stage, of any number of flows and chunks. Bytes that a policy moves later do not count. Empty if the policy is the
  // floor.
  std::vector<uint32_t> shares;

  size_t transfers = 0;  // transfers that the policy made, after those of one path were merged
  uint64_t moves = 0;    // how often a policy moved bytes to another path while they ran
  uint64_t events = 0;   // fluid: allocations of rates; packet: events handled
  uint64_t packets = 0;  // packet mode: sent, repeated ones included
  uint64_t dropped_packets = 0, marked_packets = 0;
  double paused_seconds = 0;  // packet mode, PFC: sum over NICs of the time in which they could not send

  double OverBound() const { return bound_seconds > 0 ? seconds / bound_seconds : 1; }
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_OUTCOME_H_
