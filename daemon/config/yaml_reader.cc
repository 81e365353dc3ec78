#include "daemon/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// Sees the document before it is built, to refuse what could blow up in building.
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
    Enter(mark, tag, anchor);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Enter(mark, tag, anchor);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void Enter(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    Check(mark, tag, anchor);
    // Leaves the parser at once: it recurses with the depth.
    if (++depth_ > kMaxDepth) throw YAML::ParserException(mark, absl::StrCat("nested deeper than ", kMaxDepth));
  }
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

}  // namespace

void ConfigErrors::Add(int line, absl::string_view key, absl::string_view value, absl::string_view reason) {
  if (++count_ > kMaxReported) return;
  std::string text = line > 0 ? absl::StrCat(file_, ":", line, ": ") : absl::StrCat(file_, ": ");
  if (!key.empty()) absl::StrAppend(&text, Shown(key), ": ");
  if (!value.empty()) absl::StrAppend(&text, "'", Shown(value), "': ");
  absl::StrAppend(&text, reason);
  lines_.push_back(std::move(text));
}

absl::Status ConfigErrors::ToStatus() const {
  std::string text = absl::StrJoin(lines_, "\n");
  if (count_ > lines_.size()) absl::StrAppend(&text, "\n", file_, ": and ", count_ - lines_.size(), " more");
  return absl::InvalidArgumentError(text);
}

void YamlReader::Map(const std::map<absl::string_view, Field>& fields, std::vector<absl::string_view> required) const {
  if (!node_.IsMap() && !node_.IsNull()) return Fail("expected a mapping of keys to values");
  const std::string prefix = key_.empty() ? "" : key_ + ".";
  std::set<std::string> seen;
  for (const auto& entry : node_) {
    if (!entry.first.IsScalar()) {
      YamlReader(entry.first, key_, errors_).Fail("a key must be plain text");
      continue;
    }
    const std::string name = entry.first.Scalar();
    const YamlReader value(entry.second, prefix + name, errors_);
    const auto field = fields.find(name);
    if (field == fields.end()) {
      std::vector<absl::string_view> known;
      for (const auto& [known_name, handler] : fields) known.push_back(known_name);
      errors_->Add(entry.first.Mark().line + 1, prefix + name, "",
                   absl::StrCat("unknown key; known here: ", absl::StrJoin(known, ", ")));
    } else if (!seen.insert(name).second) {
      errors_->Add(entry.first.Mark().line + 1, prefix + name, "", "given twice");
    } else {
      field->second(value);
    }
  }
  for (const absl::string_view name : required) {
    if (!seen.count(std::string(name))) Missing(name, "");
  }
}

void YamlReader::Missing(absl::string_view name, absl::string_view hint) const {
  errors_->Add(line(), absl::StrCat(key_, key_.empty() ? "" : ".", name), "", absl::StrCat("missing", hint));
}

void YamlReader::List(size_t max_items, const Field& item) const {
  if (node_.IsNull()) return;
  if (!node_.IsSequence()) return Fail("expected a list");
  if (node_.size() > max_items) return Fail(absl::StrCat(node_.size(), " entries, more than ", max_items));
  size_t index = 0;
  for (const auto& element : node_) item(YamlReader(element, absl::StrCat(key_, "[", index++, "]"), errors_));
}

bool YamlReader::WantScalar() const {
  if (node_.IsScalar()) return true;
  Fail(node_.IsNull() ? "empty; give a value or leave the key out" : "expected one value");
  return false;
}

void YamlReader::String(std::string* out, size_t max_length) const {
  if (!WantScalar()) return;
  const std::string value = text();
  if (value.size() > max_length) return Fail(absl::StrCat("longer than ", max_length, " bytes"));
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return Fail("holds control characters");
  }
  // Other bytes may be no UTF-8, which would not survive being printed and read back.
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c >= 0x80; })) {
    return Fail("holds bytes that are not ASCII");
  }
  *out = value;
}

void YamlReader::Name(std::string* out, size_t max_length) const {
  if (!WantScalar()) return;
  if (!IsName(text(), max_length)) {
    return Fail(absl::StrCat("not a name: 1 to ", max_length, " of letters, digits, '.', '_' and '-'"));
  }
  *out = text();
}

bool YamlReader::ReadNumber(uint64_t min, uint64_t max, uint64_t* out) const {
  if (!WantScalar()) return false;
  const std::string value = text();
  const bool digits = !value.empty() && std::all_of(value.begin(), value.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(value, out)) {
    Fail("not a whole number");
    return false;
  }
  if (*out < min || *out > max) {
    Fail(absl::StrCat("outside ", min, " to ", max));
    return false;
  }
  return true;
}

void YamlReader::Bytes(uint64_t* out, uint64_t min, uint64_t max) const {
  if (!WantScalar()) return;
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text());
  if (!bytes.ok()) return Fail(bytes.status().message());
  if (*bytes < min || *bytes > max) return Fail(absl::StrCat("outside ", FormatBytes(min), " to ", FormatBytes(max)));
  *out = *bytes;
}

void YamlReader::Rate(uint64_t* out) const {
  if (!WantScalar()) return;
  const absl::StatusOr<uint64_t> rate = ParseRate(text());
  if (!rate.ok()) return Fail(rate.status().message());
  *out = *rate;
}

void YamlReader::Time(absl::Duration* out, absl::Duration min, absl::Duration max) const {
  if (!WantScalar()) return;
  const absl::StatusOr<absl::Duration> time = ParseTime(text());
  if (!time.ok()) return Fail(time.status().message());
  if (*time < min || *time > max) {
    return Fail(absl::StrCat("outside ", absl::FormatDuration(min), " to ", absl::FormatDuration(max)));
  }
  *out = *time;
}

void YamlReader::Mode(uint32_t* out) const {
  if (!WantScalar()) return;
  const std::string value = text();
  const bool octal = value.size() == 4 && value[0] == '0' &&
                     std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '7'; });
  if (!octal) return Fail("not a file mode; write four octal digits, as in \"0660\"");
  *out = static_cast<uint32_t>(std::stoul(value, nullptr, 8));
}

void YamlReader::Address(std::string* out, bool port_optional, bool numeric, bool allow_empty) const {
  if (!WantScalar()) return;
  const std::string value = text();
  if (value.empty() && allow_empty) {
    out->clear();
    return;
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(value, port_optional);
  if (!address.ok()) return Fail(address.status().message());
  if (!IsNumericAddress(address->host)) {
    if (numeric) return Fail("not an IPv4 or IPv6 address");
    if (!IsName(address->host, 253)) return Fail("not a host name or an address");
  }
  *out = value;
}

YAML::Node ParseYaml(const std::string& text, ConfigErrors* errors) {
  if (text.find('\0') != std::string::npos) {
    errors->Add(0, "", "", "holds a zero byte: not a text file");
    return YAML::Node();
  }
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Screen screen(errors);
  if (!parser.HandleNextDocument(screen)) return YAML::Node();  // an empty file
  Screen second(errors);
  if (screen.ok() && parser.HandleNextDocument(second)) {
    errors->Add(0, "", "", "holds more than one YAML document");
    return YAML::Node();
  }
  return screen.ok() ? YAML::Load(text) : YAML::Node();
}

}  // namespace railsd
