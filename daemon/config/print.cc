#include <openssl/sha.h>
#include <yaml-cpp/yaml.h>

#include <map>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/config.h"
#include "daemon/config/field.h"

namespace railsd {
namespace {

using Kind = Field::Kind;

constexpr absl::string_view kTenants = "tenants", kPeers = "peers.static", kRails = "rails";

// `one_line`: without quotes where YAML needs none, and without the names of elements.
void Print(const Field& field, bool one_line, YAML::Emitter& out) {
  if (one_line || field.options.flow || (field.kind == Kind::kList && field.fields.empty())) out << YAML::Flow;
  if (field.kind == Kind::kValue) {
    if (field.options.quoted && !one_line) out << YAML::DoubleQuoted;
    out << field.text;
    return;
  }
  const bool mapping = field.kind == Kind::kMapping;
  out << (mapping ? YAML::BeginMap : YAML::BeginSeq);
  for (const Field& inner : field.fields) {
    if (inner.options.omit || (inner.options.id && one_line)) continue;
    if (mapping) out << YAML::Key << inner.name << YAML::Value;
    Print(inner, one_line, out);
  }
  out << (mapping ? YAML::EndMap : YAML::EndSeq);
}

std::string Printed(const Field& field, bool one_line) {
  YAML::Emitter out;
  Print(field, one_line, out);
  return out.c_str();
}

// Calls `visit` with "limits.max_groups" and so on. A list is one key; each key of a tenant is visited, too.
void ForEachKey(const std::vector<Field>& fields, const std::string& prefix,
                absl::FunctionRef<void(const std::string& key, const Field& field)> visit) {
  for (const Field& field : fields) {
    if (field.options.omit || field.options.id) continue;
    const std::string key = absl::StrCat(prefix, field.name);
    if (field.kind != Kind::kMapping) visit(key, field);
    if (field.kind == Kind::kMapping || key == kTenants) ForEachKey(field.fields, absl::StrCat(key, "."), visit);
  }
}

// The values by key. Each peer is one value, because the order of peers has no meaning. A key of a rail has the rail's
// index, as in error texts; a rail's empty values are left out.
Texts TextsOf(Config config) {
  Texts out;
  ForEachKey(ConfigFields(config), "", [&out](const std::string& key, const Field& field) {
    if (key == kRails && field.kind == Kind::kList) {
      for (size_t r = 0; r < field.fields.size(); ++r) {
        for (const Field& inner : field.fields[r].fields) {
          if (!inner.options.omit && !inner.text.empty()) {
            out[absl::StrCat(key, "[", r, "].", inner.name)] = Printed(inner, true);
          }
        }
      }
    } else if (key == kPeers) {
      for (const Field& peer : field.fields) out[absl::StrCat(key, ".", peer.name)] = Printed(peer, true);
    } else if (key == kTenants) {  // in order: the first that matches counts
      const auto name = [](std::string* text, const Field& tenant) { *text += tenant.name; };
      out[key] = absl::StrCat("[", absl::StrJoin(field.fields, ", ", name), "]");
    } else {
      out[key] = Printed(field, true);
    }
  });
  return out;
}

}  // namespace

std::string PrintConfig(const Config& config) {
  Config copy = config;
  return Printed(Section("", ConfigFields(copy)), false) + "\n";
}

std::string ConfigHash(const Config& config) {
  const std::string text = PrintConfig(config);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), 8));
}

std::string SharedConfigHash(Config config) {
  for (std::string* own : {&config.node, &config.socket_dir, &config.control_listen, &config.metrics_listen,
                           &config.tls.certificate, &config.tls.key, &config.tls.ca, &config.log.file}) {
    own->clear();
  }
  config.auto_rails = false;
  config.auto_rails_choice = {};
  config.rails.clear();
  config.static_peers.clear();
  return ConfigHash(config);
}

std::vector<ConfigDifference> DiffConfigs(const Config& before, const Config& after) {
  Texts old_values = TextsOf(before), new_values = TextsOf(after);
  std::vector<ConfigDifference> out;
  for (const auto& [key, value] : old_values) {
    if (new_values[key] != value) out.push_back({key, value, new_values[key]});
  }
  for (const auto& [key, value] : new_values) {
    if (!old_values.contains(key)) out.push_back({key, "", value});
  }
  return out;
}

Config WithLiveChanges(const Config& in_force, const Config& wanted) {
  Config out = in_force, from = wanted;
  Texts live;
  ForEachKey(ConfigFields(from), "", [&live](const std::string& key, const Field& field) {
    if (field.options.live && field.kind == Kind::kValue) live[key] = field.text;
  });
  ForEachKey(ConfigFields(out), "", [&live](const std::string& key, const Field& field) {
    if (live.contains(key)) field.set(live[key]);
  });
  // Without control.listen a daemon has no peers.
  if (!in_force.control_listen.empty()) out.static_peers = wanted.static_peers;
  return out;
}

std::string ConfigTableMarkdown() {
  Config config;
  config.tenants.emplace_back().name = "NAME";
  Texts rows;
  ForEachKey(ConfigFields(config), "", [&rows](const std::string& key, const Field& field) {
    rows[key] = absl::StrCat("| `", key, "` | `", key == kTenants ? "[]" : Printed(field, true), "` | ",
                             field.options.live ? "applied" : "needs a restart", " |\n");
  });
  const auto row = [](std::string* out, const auto& entry) { *out += entry.second; };
  return absl::StrCat("| key | default | on `railsctl reload` |\n|---|---|---|\n", absl::StrJoin(rows, "", row));
}

}  // namespace railsd
