// The fluid model: transfers are flows with max-min fair rates, which change when a transfer ends, a rail changes its
// speed or a policy moves bytes. No queues, no packets. Rates are those of FairRates.
//
// Rails that no transfer joins are computed independently, and so are nodes that no transfers join: an event among some
// does not touch the rates of the others.
#ifndef RAILSD_SIM_NETWORK_FLUID_H_
#define RAILSD_SIM_NETWORK_FLUID_H_

#include <cstddef>

#include "sim/fabric.h"
#include "sim/network/outcome.h"
#include "sim/network/transfer.h"
#include "sim/simulate.h"

namespace railsd::sim {

// `fabric` is valid and the paths of `plan` are of it; `reaction` may be null. The outcome has everything of the
// network; Simulate() fills in the bound and what moves inside nodes. Takes the transfers out of `plan`.
Outcome RunFluid(const Fabric& fabric, TransferPlan plan, const FluidOptions& options, size_t timeline_bins,
                 Reaction* reaction);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_FLUID_H_
