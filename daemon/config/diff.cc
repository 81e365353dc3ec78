#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/config.h"
#include "daemon/config/table.h"

namespace railsd {
namespace {

std::string FlowText(const YAML::Node& node) {
  if (node.IsSequence()) {  // each in its own style otherwise, which may take several lines
    std::vector<std::string> items;
    for (const auto& item : node) items.push_back(FlowText(item));
    return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
  }
  YAML::Emitter text;
  text << YAML::Flow << node;
  return text.c_str();
}

constexpr absl::string_view kPeers = "peers.static";

// "limits.max_groups" -> "64". A list is one value, but for `tenants` and for peers, whose order means nothing.
void Flatten(const YAML::Node& node, const std::string& key, std::map<std::string, std::string>* out) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const std::string name = entry.first.as<std::string>();
      Flatten(entry.second, key.empty() ? name : absl::StrCat(key, ".", name), out);
    }
    return;
  }
  if (key == "tenants") {
    std::vector<std::string> names;  // in order: the first that matches counts
    for (YAML::Node tenant : node) {
      names.push_back(tenant["name"].as<std::string>());
      tenant.remove("name");
      Flatten(tenant, absl::StrCat(key, ".", names.back()), out);
    }
    (*out)[key] = absl::StrCat("[", absl::StrJoin(names, ", "), "]");
    return;
  }
  if (key == kPeers) {
    for (YAML::Node peer : node) {
      const std::string name = peer["name"].as<std::string>();
      peer.remove("name");
      (*out)[absl::StrCat(key, ".", name)] = FlowText(peer);
    }
    return;
  }
  (*out)[key] = FlowText(node);
}

std::map<std::string, std::string> Flat(const Config& config) {
  std::map<std::string, std::string> out;
  Flatten(YAML::Load(PrintConfig(config)), "", &out);
  return out;
}

// What a running daemon can take over. Not among them: max_world_size, which peers were told, and
// max_ranges_per_submission, max_name and max_join_key, by which the services check requests before the agent sees
// them.
struct LiveSetting {
  absl::string_view key;
  void (*copy)(const Config& from, Config* to);
};
#define RAILSD_LIVE(key, field)                                         \
  {                                                                     \
    key, [](const Config& from, Config* to) { to->field = from.field; } \
  }
constexpr LiveSetting kLiveSettings[] = {
    RAILSD_LIVE("log.level", log.level),
    RAILSD_LIVE("peers.static", static_peers),
    RAILSD_LIVE("timeouts.job", timeouts.job),
    RAILSD_LIVE("timeouts.join", timeouts.join),
    RAILSD_LIVE("timeouts.drain", timeouts.drain),
    RAILSD_LIVE("limits.max_sessions", limits.max_sessions),
    RAILSD_LIVE("limits.max_segments_per_session", limits.max_segments_per_session),
    RAILSD_LIVE("limits.max_segment_bytes_per_session", limits.max_segment_bytes_per_session),
    RAILSD_LIVE("limits.max_groups", limits.max_groups),
    RAILSD_LIVE("limits.max_jobs_per_group", limits.max_jobs_per_group),
    RAILSD_LIVE("limits.max_waiting_calls", limits.max_waiting_calls),
    RAILSD_LIVE("limits.finished_jobs_kept", finished_jobs_kept),
};
#undef RAILSD_LIVE

}  // namespace

std::vector<ConfigDifference> DiffConfigs(const Config& before, const Config& after) {
  const std::map<std::string, std::string> old_values = Flat(before), new_values = Flat(after);
  std::vector<ConfigDifference> out;
  for (const auto& [key, value] : old_values) {
    const auto found = new_values.find(key);
    const std::string now = found == new_values.end() ? "" : found->second;
    if (now != value) out.push_back({key, value, now});
  }
  for (const auto& [key, value] : new_values) {
    if (!old_values.contains(key)) out.push_back({key, "", value});
  }
  return out;
}

Config WithLiveChanges(const Config& in_force, const Config& wanted) {
  Config out = in_force;
  for (const LiveSetting& setting : kLiveSettings) setting.copy(wanted, &out);
  for (TenantConfig& tenant : out.tenants) {
    for (const TenantConfig& other : wanted.tenants) {
      if (other.name != tenant.name) continue;
      tenant.quota = other.quota;
      tenant.share = other.share;
    }
  }
  // A daemon that has no peers listens to none.
  if (in_force.control_listen.empty()) out.static_peers = in_force.static_peers;
  return out;
}

std::string ConfigTableMarkdown() {
  const auto live = [](const std::string& key) {
    return absl::StartsWith(key, "tenants.NAME.quota.") || absl::StartsWith(key, "tenants.NAME.share.") ||
           std::any_of(std::begin(kLiveSettings), std::end(kLiveSettings),
                       [&key](const LiveSetting& setting) { return key == setting.key; });
  };
  std::string out = "| key | default | on `railsctl reload` |\n|---|---|---|\n";
  Config config;
  config.tenants.emplace_back().name = "NAME";
  std::map<std::string, std::string> values = Flat(config);
  values[std::string(kPeers)] = "[]";
  for (const auto& [key, value] : values) {
    absl::StrAppend(&out, "| `", key, "` | `", key == "tenants" ? "[]" : value, "` | ",
                    live(key) ? "applied" : "needs a restart", " |\n");
  }
  return out;
}

}  // namespace railsd
