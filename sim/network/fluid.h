// The fluid model: transfers are flows with max-min fair rates, which change when a transfer ends, a rail changes its
// speed or a policy moves bytes. No queues, no packets. Rates are those of FairRates.
//
// Sets of rails, or of nodes, that no transfer joins are computed independently: an event in one set does not touch the
// rates in the others.
#ifndef RAILSD_SIM_NETWORK_FLUID_H_
#define RAILSD_SIM_NETWORK_FLUID_H_

#include <cstddef>

#include "sim/fabric.h"
#include "sim/network/outcome.h"
#include "sim/network/transfer.h"
#include "sim/simulate.h"

namespace railsd::sim {

// `fabric` must be valid, and the paths of `plan` must be of it; `reaction` may be null. Fills the network's part of
// the outcome; Simulate() adds the bound and the time inside nodes. Takes the transfers out of `plan`.
Outcome RunFluid(const Fabric& fabric, TransferPlan plan, const FluidOptions& options, size_t timeline_bins,
                 Reaction* reaction);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_FLUID_H_
