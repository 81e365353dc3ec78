// Messages of rails.v1 as JSON, the same wherever the project prints or serves them: base units (bytes, seconds), names
// of states and codes in words, 64-bit ids as hexadecimal text.
#ifndef RAILS_PROTO_JSON_JSON_H_
#define RAILS_PROTO_JSON_JSON_H_

#include <nlohmann/json_fwd.hpp>

#include "rails/v1/operator.pb.h"

namespace rails {

nlohmann::ordered_json StatusJson(const v1::GetStatusResponse& status);
nlohmann::ordered_json TenantsJson(const v1::GetStatusResponse& status);
nlohmann::ordered_json RailsJson(const v1::ListRailsResponse& rails);
nlohmann::ordered_json ReloadJson(const v1::ReloadResponse& reload);
nlohmann::ordered_json RailJson(const v1::RailStatus& rail);
nlohmann::ordered_json PeersJson(const v1::ListPeersResponse& peers);
nlohmann::ordered_json JobsJson(const v1::ListJobsResponse& jobs);
nlohmann::ordered_json ExplanationJson(const v1::ExplainJobResponse& job);
nlohmann::ordered_json OverviewJson(const v1::GetOverviewResponse& overview);

}  // namespace rails

#endif  // RAILS_PROTO_JSON_JSON_H_
