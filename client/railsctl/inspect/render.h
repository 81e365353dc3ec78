// Renders `status`, `tenants`, `rails`, `peers` and `jobs`: pure functions of the daemon's answers.
#ifndef RAILS_RAILSCTL_INSPECT_RENDER_H_
#define RAILS_RAILSCTL_INSPECT_RENDER_H_

#include <string>

#include "client/railsctl/table.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// State of a rail: "up", "DEGRADED", "DRAINED", "DRAINED BY PEER", ...; unmarked "no peers" if there are none.
Cell RailStateCell(const v1::RailStatus& rail);
// State of a rail to one peer: "up", "DOWN", "SUSPECT", "PROBING", "DRAINED BY PEER", "MISSING" (the peer has fewer
// rails).
Cell PathStateCell(const v1::PeerStatus& peer, int rail);
// State of a rank's part of a job: "done", "FAILED UNAVAILABLE", "replayable", ...
Cell JobStateCell(const v1::JobReport& job);
// Number of peers that the rail is not connected to, without peers that have drained their end.
uint32_t PeersMissing(const v1::RailStatus& rail);

// Text for people, aligned, with scaled units. Unhealthy states are in capitals, and coloured if `color`.
std::string RenderStatus(const v1::GetStatusResponse& status, bool color);
// Each quota's use, followed by the quota if there is one.
std::string RenderTenants(const v1::GetStatusResponse& status, bool color);
std::string RenderRails(const v1::ListRailsResponse& rails, bool color);
// One rail after `drain` or `undrain`.
std::string RenderDrain(const v1::RailStatus& rail, bool color);
std::string RenderReload(const v1::ReloadResponse& reload, bool color);
std::string RenderPeers(const v1::ListPeersResponse& peers, bool color);
std::string RenderJobs(const v1::ListJobsResponse& jobs, bool color);

// The change between two answers, as rates. `seconds` is the time between them.
std::string RenderRailRates(const v1::ListRailsResponse& before, const v1::ListRailsResponse& after, double seconds,
                            bool color);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_INSPECT_RENDER_H_
