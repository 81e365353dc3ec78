#include <unistd.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/config.h"
#include "daemon/config/field.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

// Deeper than any valid file; yaml-cpp itself recurses per level.
constexpr int kMaxDepth = 16;
constexpr size_t kMaxShownValue = 80;

std::string Shown(absl::string_view value) {
  std::string out = absl::CEscape(value.substr(0, kMaxShownValue));
  if (value.size() > kMaxShownValue) out += "...";
  return out;
}

// Mistakes in the order in which they were found. Keeps the first kMaxReported, and counts the others.
class ConfigErrors {
 public:
  explicit ConfigErrors(absl::string_view file) : file_(file) {}
  // `line` counts from 1; 0 for the file as a whole. Empty `key` or `value` are left out.
  void Add(int line, absl::string_view key, absl::string_view value, absl::string_view reason) {
    if (++count_ > kMaxReported) return;
    std::string text = line > 0 ? absl::StrCat(file_, ":", line, ": ") : absl::StrCat(file_, ": ");
    if (!key.empty()) absl::StrAppend(&text, Shown(key), ": ");
    if (!value.empty()) absl::StrAppend(&text, "'", Shown(value), "': ");
    lines_.push_back(absl::StrCat(text, reason));
  }
  bool empty() const { return count_ == 0; }
  // INVALID_ARGUMENT with one mistake a line.
  absl::Status ToStatus() const {
    std::string text = absl::StrJoin(lines_, "\n");
    if (count_ > lines_.size()) absl::StrAppend(&text, "\n", file_, ": and ", count_ - lines_.size(), " more");
    return absl::InvalidArgumentError(text);
  }

 private:
  static constexpr size_t kMaxReported = 100;
  const std::string file_;
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

// Sees the events of a document before its nodes are built. Refuses input whose nodes could take unlimited memory or
// stack.
class Screen final : public YAML::EventHandler {
 public:
  explicit Screen(ConfigErrors* errors) : errors_(errors) {}
  bool ok() const { return ok_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { Check(mark, "", anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Refuse(mark, "aliases are not supported"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string&) override {
    Check(mark, tag, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Check(mark, tag, anchor);
    // Throws, because the parser recurses with the depth and would go on.
    if (++depth_ > kMaxDepth) throw YAML::ParserException(mark, absl::StrCat("nested deeper than ", kMaxDepth));
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    OnSequenceStart(mark, tag, anchor, style);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) Refuse(mark, "anchors are not supported");
    if (!tag.empty() && tag != "?" && tag != "!") Refuse(mark, absl::StrCat("tags are not supported: ", Shown(tag)));
  }
  void Refuse(const YAML::Mark& mark, const std::string& reason) {
    if (ok_) errors_->Add(mark.line + 1, "", "", reason);
    ok_ = false;
  }

  ConfigErrors* errors_;
  int depth_ = 0;
  bool ok_ = true;
};

// Parses one document with limited nesting and without anchors, aliases or tags. Reports a refused document and returns
// a null node for it. Throws only exceptions of yaml-cpp.
YAML::Node ParseYaml(const std::string& text, ConfigErrors* errors) {
  if (text.find('\0') != std::string::npos) {
    errors->Add(0, "", "", "holds a zero byte: not a text file");
    return YAML::Node();
  }
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Screen screen(errors);
  int documents = 0;  // at most two, because after broken text the parser returns empty documents without end
  while (documents < 2 && screen.ok() && parser.HandleNextDocument(screen)) ++documents;
  if (documents > 1) errors->Add(0, "", "", "holds more than one YAML document");
  return screen.ok() && documents == 1 ? YAML::Load(text) : YAML::Node();
}

// Sets the members of fields to the values in a document, and reports every mistake. Throws exceptions of yaml-cpp.
class Reader {
 public:
  explicit Reader(ConfigErrors* errors) : errors_(*errors) {}

  // Reads `node`, which is at `key` of the document, into `field`. A null node counts as an empty mapping or list.
  void Read(const YAML::Node& node, const std::string& key, const Field& field) {
    const bool value = field.kind == Field::Kind::kValue || (field.set != nullptr && !TextOf(node).empty());
    if (value) return ReadValue(node, key, field);
    Texts given;
    if (field.kind == Field::Kind::kMapping) given = ReadMapping(node, key, field.fields);
    if (field.kind == Field::Kind::kList) ReadList(node, key, field);
    if (field.check == nullptr) return;
    for (const auto& [name, reason] : field.check(given)) {
      errors_.Add(LineOf(node), name.empty() ? key : absl::StrCat(key, ".", name), "", reason);
    }
  }

 private:
  static int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }
  // Empty for a mapping, a list and null.
  static std::string TextOf(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }
  void Fail(const YAML::Node& node, const std::string& key, absl::string_view reason) {
    errors_.Add(LineOf(node), key, TextOf(node), reason);
  }

  void ReadValue(const YAML::Node& node, const std::string& key, const Field& field) {
    if (!node.IsScalar() && !field.options.lenient) {
      return Fail(node, key, node.IsNull() ? "empty; give a value or leave the key out" : "expected one value");
    }
    const std::string text = TextOf(node);
    std::string mistake = field.set(text);
    const char* unique = field.options.unique;
    if (mistake.empty() && unique != nullptr && !taken_.emplace(unique, text).second) mistake = unique;
    if (!mistake.empty()) Fail(node, key, mistake);
  }

  // Returns the keys that are given.
  Texts ReadMapping(const YAML::Node& node, const std::string& key, const std::vector<Field>& fields) {
    Texts given;
    if (!node.IsMap() && !node.IsNull()) return Fail(node, key, "expected a mapping of keys to values"), given;
    const std::string prefix = key.empty() ? "" : key + ".";
    std::map<std::string, const Field*> known;
    for (const Field& field : fields) known[field.name] = &field;
    for (const auto& entry : node) {
      const std::string name = TextOf(entry.first);
      const int line = LineOf(entry.first);
      if (!entry.first.IsScalar()) {
        Fail(entry.first, key, "a key must be plain text");
      } else if (!known.contains(name)) {
        const auto names = absl::StrJoin(known, ", ", [](std::string* out, const auto& key) { *out += key.first; });
        errors_.Add(line, prefix + name, "", absl::StrCat("unknown key; known here: ", names));
      } else if (!given.emplace(name, TextOf(entry.second)).second) {
        errors_.Add(line, prefix + name, "", "given twice");
      } else {
        Read(entry.second, prefix + name, *known[name]);
      }
    }
    for (const Field& field : fields) {
      if (field.options.required && !given.contains(field.name)) {
        errors_.Add(LineOf(node), prefix + field.name, "", "missing");
      }
    }
    return given;
  }

  void ReadList(const YAML::Node& node, const std::string& key, const Field& field) {
    if (node.IsNull()) return;
    if (!node.IsSequence()) return Fail(node, key, "expected a list");
    if (node.size() > field.max_items) {
      return Fail(node, key, absl::StrCat(node.size(), " entries, more than ", field.max_items));
    }
    size_t index = 0;
    for (const auto& item : node) Read(item, absl::StrCat(key, "[", index++, "]"), field.add());
  }

  ConfigErrors& errors_;
  std::set<std::pair<std::string, std::string>> taken_;  // values of fields with `unique`
};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// A file for all nodes may list this node. A peer of another name at an address of this node is a mistake, because it
// could never be reached.
void CheckPeersAreElsewhere(const Config& config, ConfigErrors* errors) {
  const auto same = [](const std::string& a, const std::string& b) {
    const auto x = ParseHostPort(a, true), y = ParseHostPort(b, true);
    return x.ok() && y.ok() && x->host == y->host && (x->port == y->port || x->port == 0 || y->port == 0);
  };
  for (size_t i = 0; i < config.static_peers.size(); ++i) {
    const StaticPeerConfig& peer = config.static_peers[i];
    if (peer.name == config.node) continue;
    const std::string key = absl::StrCat("peers.static[", i, "]");
    if (peer.control == config.control_listen) {
      errors->Add(0, absl::StrCat(key, ".control"), peer.control,
                  absl::StrCat("the address of this node, ", config.node, " (control.listen)"));
    }
    for (size_t r = 0; r < peer.rails.size(); ++r) {
      for (const RailSpec& rail : config.rails) {
        if (!same(peer.rails[r], rail.address)) continue;
        errors->Add(0, absl::StrCat(key, ".rails[", r, "]"), peer.rails[r],
                    absl::StrCat("the address of ", rail.name, " of this node, ", config.node));
      }
    }
  }
}

// Checks across keys.
void CheckWhole(const Config& config, ConfigErrors* errors) {
  if (!IsName(config.node, 253)) {
    errors->Add(0, "node", config.node, "the host name is no valid node name; set `node`");
  }
  const bool peers = !config.static_peers.empty() || !config.dns.name.empty();
  if (peers && config.control_listen.empty()) {
    errors->Add(0, "control.listen", "", "missing; peers must be able to dial this node");
  }
  if (!config.control_listen.empty() && config.tls.mode == TlsMode::kUnset) {
    errors->Add(0, "tls", "",
                "missing; control.listen is set, so give certificate, key and ca for mutual TLS between nodes, or ask "
                "for plain text with mode: plain_text");
  }
  CheckPeersAreElsewhere(config, errors);
  // Calls with the longest messages must not make gRPC run out of memory and end calls.
  const uint64_t memory = config.connections.max_grpc_memory_bytes;
  if (memory < 4 * config.max_message_bytes) {
    errors->Add(0, "limits.max_grpc_memory", FormatBytes(memory),
                absl::StrCat("less than four messages of limits.max_message ", FormatBytes(config.max_message_bytes)));
  }
  for (const TenantConfig& tenant : config.tenants) {
    const std::string longest = absl::StrCat(TenantSocketDir(config.socket_dir, tenant.name), "/descriptors.sock");
    constexpr size_t kMaxSocketPath = 107;  // sockaddr_un holds 108 bytes with the final zero
    if (longest.size() <= kMaxSocketPath) continue;
    errors->Add(0, "socket_dir", config.socket_dir,
                absl::StrCat("too long for the sockets of tenant ", tenant.name, ": ", longest, " has ", longest.size(),
                             " bytes, a socket's path ", kMaxSocketPath, " at most"));
  }
}

}  // namespace

std::string TenantSocketDir(const std::string& socket_dir, const std::string& tenant) {
  return absl::StrCat(socket_dir, "/tenants/", tenant);
}

std::vector<TenantOptions> TenantOptionsFrom(const Config& config) {
  std::vector<TenantOptions> out;
  for (const TenantConfig& tenant : config.tenants) out.push_back({tenant.name, tenant.quota, tenant.share});
  if (out.empty()) out.push_back({kDefaultTenant});
  return out;
}

absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view file_name) {
  ConfigErrors errors(file_name);
  Config config;
  if (text.size() > kMaxConfigBytes) {
    errors.Add(0, "", "", absl::StrCat("larger than ", FormatBytes(kMaxConfigBytes)));
    return errors.ToStatus();
  }
  try {
    const YAML::Node root = ParseYaml(std::string(text), &errors);
    if (errors.empty()) Reader(&errors).Read(root, "", Section("", ConfigFields(config)));
  } catch (const YAML::Exception& e) {
    errors.Add(e.mark.line + 1, "", "", absl::StrCat("not YAML: ", e.msg));
  } catch (const std::exception& e) {
    errors.Add(0, "", "", absl::StrCat("not YAML: ", e.what()));
  }
  if (config.node.empty()) config.node = HostName();
  if (errors.empty() && config.rails.empty() && !config.auto_rails) {
    errors.Add(0, "rails", "", "empty; a node needs at least one rail");
  }
  if (errors.empty()) CheckWhole(config, &errors);
  if (!errors.empty()) return errors.ToStatus();
  return config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), &fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  std::string text(kMaxConfigBytes + 1, '\0');
  text.resize(fread(text.data(), 1, text.size(), file.get()));
  if (ferror(file.get())) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot read"));
  return ParseConfig(text, path);
}

}  // namespace railsd
