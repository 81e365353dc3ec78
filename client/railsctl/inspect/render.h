// What `status`, `tenants`, `rails`, `peers` and `jobs` print, as pure functions of the daemon's answers.
#ifndef RAILS_RAILSCTL_INSPECT_RENDER_H_
#define RAILS_RAILSCTL_INSPECT_RENDER_H_

#include <string>

#include "client/railsctl/table.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// "up", "DEGRADED", "DRAINED", "DRAINED BY PEER", ... of one rail; unmarked as "no peers" where there is nobody to
// reach.
Cell RailStateCell(const v1::RailStatus& rail);
// "up", "DOWN", "SUSPECT", "PROBING", "DRAINED BY PEER" of a rail to one peer.
Cell PathStateCell(const v1::PeerStatus& peer, int rail);
// Peers that the rail is not connected to, without those that have drained their end.
uint32_t PeersMissing(const v1::RailStatus& rail);

// For people: aligned, units scaled; what is not healthy is in capitals, and coloured when `color`.
std::string RenderStatus(const v1::GetStatusResponse& status, bool color);
// Each quota as what is in use, with the quota behind it where there is one.
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
