// Collects an Outcome while a network model runs.
#ifndef RAILSD_SIM_NETWORK_TALLY_H_
#define RAILSD_SIM_NETWORK_TALLY_H_

#include <cstddef>

#include "sim/fabric.h"
#include "sim/network/outcome.h"

namespace railsd::sim {

class Tally {
 public:
  Tally(const Fabric& fabric, size_t timeline_bins);

  // NIC `nic` has sent, or received, bytes evenly over [from, to).
  void AddSent(size_t nic, double bytes, double speed, double from, double to);
  void AddReceived(size_t nic, double bytes, double speed);
  // A transfer between the nodes has ended: its last byte arrives then.
  void Finish(size_t source_node, size_t destination_node, double at);
  // Adds bytes between the nodes that never arrive. Above 0, the times of the pair and of the network become infinite.
  void Miss(size_t source_node, size_t destination_node, double bytes);

  Outcome& outcome() { return outcome_; }
  // Ends the collection.
  Outcome Take();

 private:
  void AddToTimeline(size_t rail, double bytes, double from, double to);
  void Widen();

  const size_t nodes_, rails_, asked_bins_;
  Outcome outcome_;
  double missed_bytes_ = 0;
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_TALLY_H_
