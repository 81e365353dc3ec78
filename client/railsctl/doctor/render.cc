#include "client/railsctl/doctor/render.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/format.h"
#include "client/railsctl/table.h"

namespace rails::ctl::doctor {
namespace {

constexpr size_t kIndent = 22;  // of the lines below a finding

Mark MarkOf(Level level) {
  switch (level) {
    case Level::kOk:
      return Mark::kGood;
    case Level::kNote:
      return Mark::kNone;
    case Level::kWarning:
      return Mark::kWarn;
    case Level::kError:
      break;
  }
  return Mark::kBad;
}

// Uses capitals for warnings and errors, so that they are seen without colours, too.
std::string LevelText(Level level) {
  return level == Level::kError ? "ERROR" : level == Level::kWarning ? "WARNING" : LevelName(level);
}

}  // namespace

const char* LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      break;
  }
  return "error";
}

size_t Count(const Findings& findings, Level level) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(), [level](const Finding& f) { return f.level == level; }));
}

std::string Render(const Findings& findings, bool color) {
  std::string out;
  for (const Finding& finding : findings) {
    const std::string level = LevelText(finding.level);
    absl::StrAppend(&out, Paint(level, MarkOf(finding.level), color), std::string(8 - level.size(), ' '),
                    absl::StrFormat("%-13s %s\n", finding.check, finding.found));
    if (finding.level == Level::kOk) continue;
    const std::string indent(kIndent, ' ');
    absl::StrAppend(&out, indent, finding.means, "\n", indent, "-> ", finding.fix, "\n");
  }
  const size_t errors = Count(findings, Level::kError), warnings = Count(findings, Level::kWarning);
  absl::StrAppend(&out, "\n", FormatCount(errors, "error"), ", ", FormatCount(warnings, "warning"), ", ",
                  FormatCount(Count(findings, Level::kNote), "note"), "; ", Count(findings, Level::kOk), " ok\n");
  return out;
}

nlohmann::ordered_json FindingsJson(const Findings& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    nlohmann::ordered_json item = {
        {"check", finding.check}, {"level", LevelName(finding.level)}, {"found", finding.found}};
    if (finding.level != Level::kOk) {
      item["means"] = finding.means;
      item["do"] = finding.fix;
    }
    list.push_back(std::move(item));
  }
  return {{"errors", Count(findings, Level::kError)},
          {"warnings", Count(findings, Level::kWarning)},
          {"notes", Count(findings, Level::kNote)},
          {"findings", std::move(list)}};
}

nlohmann::ordered_json ToJson(const Facts& facts, const Findings& findings) {
  nlohmann::ordered_json out = {{"node", facts.running() ? facts.overview.status().node() : facts.config.node},
                                {"running", facts.running()},
                                {"version", facts.version},
                                {"socket_dir", facts.socket_dir},
                                {"config", facts.config.path}};
  out.update(FindingsJson(findings));
  return out;
}

}  // namespace rails::ctl::doctor
