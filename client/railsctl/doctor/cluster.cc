#include "client/railsctl/doctor/cluster.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/railsctl/printable.h"
#include "common/json/json.h"
#include "common/json/names.h"

namespace rails::ctl::doctor {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTextColumns = 256;

// The member of an object; null if the object does not have it, or if `value` is no object.
const Json& Member(const Json& value, const char* key) {
  static const Json* const kNull = new Json();
  if (!value.is_object()) return *kNull;
  const auto it = value.find(key);
  return it == value.end() ? *kNull : *it;
}

// The element of an array; null if `value` is no array or has fewer elements.
const Json& Element(const Json& value, size_t index) {
  static const Json* const kNull = new Json();
  return value.is_array() && index < value.size() ? value[index] : *kNull;
}

std::string TextOr(const Json& value) {
  const auto* text = value.get_ptr<const Json::string_t*>();
  if (text == nullptr) return "";
  return Clip(Printable(absl::string_view(*text).substr(0, 4 * kMaxTextColumns)), kMaxTextColumns);
}

uint64_t NumberOr(const Json& value) { return value.is_number_unsigned() ? value.get<uint64_t>() : 0; }
bool IsTrue(const Json& value) { return value.is_boolean() && value.get<bool>(); }

v1::RailState StateOf(const Json& value) {
  const std::string text = TextOr(value);
  for (int state = v1::RailState_MIN; state <= v1::RailState_MAX; ++state) {
    if (text == RailStateName(static_cast<v1::RailState>(state))) return static_cast<v1::RailState>(state);
  }
  return v1::RAIL_STATE_UNSPECIFIED;
}

ClusterRail ParseRail(const Json& json) {
  ClusterRail rail;
  rail.name = TextOr(Member(json, "name"));
  rail.address = TextOr(Member(json, "address"));
  rail.interface = TextOr(Member(json, "interface"));
  rail.subnet = TextOr(Member(json, "subnet"));
  rail.speed_bytes_per_s = NumberOr(Member(json, "speed_bytes_per_second"));
  const Json& health = Member(json, "health");
  rail.state = StateOf(Member(health, "state"));
  rail.drained = IsTrue(Member(health, "drained"));
  rail.why = TextOr(Member(health, "why"));
  const Json& device = Member(json, "device");
  rail.verbs = device.is_object();
  if (!rail.verbs) return rail;
  rail.link_layer = TextOr(Member(device, "link_layer"));
  rail.device = absl::StrCat(TextOr(Member(device, "name")), "/", NumberOr(Member(device, "port")));
  rail.gid = TextOr(Member(device, "gid"));
  rail.mtu_bytes = static_cast<uint32_t>(std::min<uint64_t>(NumberOr(Member(device, "mtu_bytes")), UINT32_MAX));
  return rail;
}

PathView ViewOf(const ClusterRail& own, const Json& connected, const Json& state_name) {
  const v1::RailState state = StateOf(state_name);
  if (own.drained || state == v1::RAIL_STATE_DRAINED_BY_PEER) return PathView::kDrained;
  if (!IsTrue(connected) || state == v1::RAIL_STATE_DOWN) return PathView::kDown;
  return state == v1::RAIL_STATE_SUSPECT || state == v1::RAIL_STATE_PROBING ? PathView::kDoubtful : PathView::kUp;
}

ClusterPeer ParsePeer(const Json& json, const std::vector<ClusterRail>& own) {
  ClusterPeer peer;
  peer.node = TextOr(Member(json, "node"));
  peer.why = TextOr(Member(json, "why"));
  peer.up = IsTrue(Member(json, "up"));
  peer.rails.resize(own.size(), PathView::kUnknown);
  const uint64_t rail_count = NumberOr(Member(json, "rail_count"));
  const size_t common = rail_count == 0 ? own.size() : std::min<size_t>(own.size(), rail_count);
  for (size_t r = 0; r < common && peer.up; ++r) {
    peer.rails[r] = ViewOf(own[r], Element(Member(json, "rails_up"), r), Element(Member(json, "rail_states"), r));
  }
  return peer;
}

}  // namespace

absl::Status ParseOverview(absl::string_view json, ClusterNode* node) {
  const Json answer =
      IsDeepJson(json) ? Json() : Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  const Json& status = Member(answer, "status");
  const Json &rails = Member(answer, "rails"), &peers = Member(answer, "peers");
  node->name = TextOr(Member(status, "node"));
  if (node->name.empty() || !rails.is_array() || !peers.is_array()) {
    return absl::InvalidArgumentError("its answer is not the overview of a railsd");
  }
  if (rails.size() > kMaxClusterRails || peers.size() > kMaxClusterNodes) {
    return absl::InvalidArgumentError(absl::StrCat("its answer lists ", rails.size(), " rails and ", peers.size(),
                                                   " peers; a daemon has at most ", kMaxClusterRails, " and ",
                                                   kMaxClusterNodes));
  }
  node->version = TextOr(Member(status, "version"));
  node->boot_id = TextOr(Member(status, "boot_id"));
  node->settings_hash = TextOr(Member(status, "shared_config_hash"));
  const Json& uptime = Member(status, "uptime_seconds");
  node->uptime_seconds = uptime.is_number() ? uptime.get<double>() : 0;
  node->draining = IsTrue(Member(status, "draining"));
  for (const Json& rail : rails) node->rails.push_back(ParseRail(rail));
  for (const Json& peer : peers) node->peers.push_back(ParsePeer(peer, node->rails));
  return absl::OkStatus();
}

}  // namespace rails::ctl::doctor
