// What `status`, `rails`, `peers` and `jobs` print, as pure functions of the daemon's answers.
#ifndef RAILS_RAILSCTL_INSPECT_RENDER_H_
#define RAILS_RAILSCTL_INSPECT_RENDER_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// For people: aligned, units scaled; what is not healthy is in capitals, and coloured when `color`.
std::string RenderStatus(const v1::GetStatusResponse& status, bool color);
std::string RenderRails(const v1::ListRailsResponse& rails, bool color);
// One rail after `drain` or `undrain`.
std::string RenderDrain(const v1::RailStatus& rail, bool color);
std::string RenderPeers(const v1::ListPeersResponse& peers, bool color);
std::string RenderJobs(const v1::ListJobsResponse& jobs, bool color);

// What the group does when a node is lost: "fail", "wait 30s", "degrade".
std::string RecoveryText(const v1::GroupStatus& group);

// The change between two answers, as rates. `seconds` is the time between them.
std::string RenderRailRates(const v1::ListRailsResponse& before, const v1::ListRailsResponse& after, double seconds,
                            bool color);

// For scripts: base units (bytes, seconds), 64-bit ids as hexadecimal text.
nlohmann::ordered_json StatusJson(const v1::GetStatusResponse& status);
nlohmann::ordered_json RailsJson(const v1::ListRailsResponse& rails);
nlohmann::ordered_json RailJson(const v1::RailStatus& rail);
nlohmann::ordered_json PeersJson(const v1::ListPeersResponse& peers);
nlohmann::ordered_json JobsJson(const v1::ListJobsResponse& jobs);

// "queued", "matching", "running", "done", "failed".
absl::string_view JobStateName(v1::JobState state);
// "UNAVAILABLE" for 14.
std::string CodeName(int code);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_INSPECT_RENDER_H_
