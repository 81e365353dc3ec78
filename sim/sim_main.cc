// railsctl-sim: simulates exchanges on a cluster under several policies and compares their times. `railsctl sim` runs
// it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/format.h"
#include "client/railsctl/table.h"
#include "sim/program.h"
#include "sim/report/export.h"
#include "sim/report/page.h"
#include "sim/report/text.h"
#include "sim/run/progress.h"
#include "sim/run/run.h"
#include "sim/scenario/document.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/points.h"
#include "sim/simulate.h"

namespace railsd::sim {
namespace {

struct Options {
  std::string scenario;
  std::map<std::string, std::vector<std::string>> values;  // by key
  bool json = false;
  bool explain = false;
  bool list_keys = false;
  bool list_policies = false;
  std::string csv;
  std::string report;
  size_t threads = 0;
};

int Fail(const Options& options, ExitCode code, const absl::Status& status) {
  return Fail("railsctl sim", options.json, code, status);
}

std::string Text(std::string_view text) { return std::string(text); }

void DeclareKeys(CLI::App* app, Options* options) {
  for (const Key& key : Keys()) {
    std::string help = Text(key.help);
    if (!key.standard.empty()) absl::StrAppend(&help, " Default: ", Text(key.standard), ".");
    const std::string name = Text(key.name);
    CLI::Option* option = app->add_option(Text(key.flag), options->values[name], help)
                              ->type_name(Text(key.type))
                              ->allow_extra_args(false);
    const size_t dot = name.find('.');
    option->group(dot == std::string::npos ? "Policies and planning" : absl::StrCat("Keys of ", name.substr(0, dot)));
    if (name == "policy") option->delimiter(',');
  }
}

void Declare(CLI::App* app, Options* options) {
  app->add_option("SCENARIO", options->scenario, "A scenario in YAML; options replace its keys.");
  app->add_flag("--json", options->json, "Prints JSON.");
  app->add_option("--csv", options->csv, "Writes a line for each policy at each point to this file.")
      ->type_name("FILE");
  app->add_option("--report", options->report, "Writes one HTML page with plots to this file.")->type_name("FILE");
  app->add_flag("--explain", options->explain, "Shows the fixed cost by step.");
  app->add_option("--threads", options->threads, "Threads; as many as processors when not given.")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app->add_flag("--policies", options->list_policies, "Lists the policies with their sources and exits.");
  app->add_flag("--keys", options->list_keys, "Lists the keys of a scenario as a table and exits.");
  DeclareKeys(app, options);
  app->footer(
      "An option that is given several times makes a sweep, as a list in YAML does.\n"
      "Exit codes: 0 done, 1 failed, 2 the command line is wrong, 5 a file is not what it should be.");
}

std::string KeyTable() {
  std::string table = "| key | option | default | meaning |\n|---|---|---|---|\n";
  for (const Key& key : Keys()) {
    absl::StrAppend(&table, "| `", Text(key.name), "` | `", Text(key.flag), " ", Text(key.type), "` | ",
                    Text(key.standard), " | ", Text(key.help), " |\n");
  }
  return table;
}

std::string PolicyTable(bool color) {
  rails::ctl::Table table({{"POLICY"}, {"MEANING"}, {"SOURCE"}});
  for (const PolicyInfo& policy : Policies()) {
    table.AddRow({Text(policy.name), Text(policy.summary), Text(policy.source)});
  }
  return table.Render(color);
}

absl::StatusOr<Document> DocumentOf(const Options& options) {
  Document document;
  if (!options.scenario.empty()) {
    absl::StatusOr<Document> read = ReadDocument(options.scenario);
    if (!read.ok()) return read;
    document = *std::move(read);
  }
  for (const Key& key : Keys()) {
    const auto found = options.values.find(Text(key.name));
    if (found == options.values.end() || found->second.empty()) continue;
    Setting setting = {.key = found->first, .values = {}, .line = 0};
    for (const std::string& text : found->second) setting.values.push_back({text, 0});
    // A workload on the command line replaces the scenario's file, and a file replaces its workload.
    if (key.name == "workload.kind") RemoveWritten("workload.file", &document);
    if (key.name == "workload.file") RemoveWritten("workload.kind", &document);
    Override(setting, &document);
  }
  return document;
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat(path, ": ", errno == 0 ? "cannot be written" : std::strerror(errno)));
}

std::string TitleOf(const Options& options, const Points& points) {
  if (!options.scenario.empty()) return std::filesystem::path(options.scenario).stem().string();
  return points.points[0].scenario.workload;
}

// Reports the failure of a point, with the line that names its file or with its swept values.
int FailPoint(const Options& options, const Document& document, const Points& points, const RunOutcome& outcome) {
  const Point& point = points.points[outcome.failed_point];
  std::string place;
  bool of_file = !document.path.empty();
  if (const Setting* file = document.Find("workload.file");
      file != nullptr && point.scenario.workload == kFileWorkload) {
    if (file->line != 0) place = absl::StrCat(document.path, ":", file->line, ": workload.file: ");
    of_file = true;
  } else if (const std::string label = DescribePoint(points, point); !label.empty()) {
    place = absl::StrCat(label, ": ");
  }
  const absl::Status status(outcome.status.code(), absl::StrCat(place, outcome.status.message()));
  return Fail(options, of_file ? kExitBadInput : kExitUsage, status);
}

bool AnyRan(const Report& report) {
  return std::any_of(report.points.begin(), report.points.end(), [](const PointResult& point) {
    return std::any_of(point.policies.begin(), point.policies.end(),
                       [](const PolicyResult& policy) { return policy.error.empty(); });
  });
}

int Run(const Options& options) {
  const bool color = isatty(STDOUT_FILENO) == 1;
  const ExitCode bad_input = options.scenario.empty() ? kExitUsage : kExitBadInput;
  const absl::StatusOr<Document> document = DocumentOf(options);
  if (!document.ok()) return Fail(options, bad_input, document.status());
  const absl::StatusOr<Points> points = MakePoints(*document);
  if (!points.ok()) return Fail(options, bad_input, points.status());

  if (!options.csv.empty() && options.csv == options.report) {
    return Fail(options, kExitUsage,
                absl::InvalidArgumentError(absl::StrCat("--report: '", options.report, "' is also the file of --csv")));
  }

  Progress progress(stderr);
  RunOptions run;
  run.title = TitleOf(options, *points);
  run.threads = options.threads == 0 ? std::max(1u, std::thread::hardware_concurrency()) : options.threads;
  run.detailed_points = options.report.empty() ? 0 : kMostDetailedPoints;
  run.progress = [&progress](double share) { progress.Show(share); };
  const RunOutcome outcome = RunPoints(*points, run);
  progress.Clear();
  if (!outcome.status.ok()) return FailPoint(options, *document, *points, outcome);

  if (!options.csv.empty()) {
    if (absl::Status status = WriteFile(options.csv, RenderCsv(outcome.report)); !status.ok()) {
      return Fail(options, kExitFailed, status);
    }
  }
  if (!options.report.empty()) {
    if (absl::Status status = WriteFile(options.report, RenderPage(outcome.report)); !status.ok()) {
      return Fail(options, kExitFailed, status);
    }
  }
  std::cout << (options.json ? RenderJson(outcome.report) : RenderText(outcome.report, color));
  if (options.explain && !options.json) std::cout << RenderExplanation(outcome.report, color);
  if (!std::cout.flush()) return kExitFailed;
  return AnyRan(outcome.report) ? kExitOk : kExitFailed;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Simulates exchanges on a cluster under several policies and compares their times with the least possible.",
      "railsctl sim"};
  app.set_help_flag("-h,--help", "Prints this help and exits.");
  Declare(&app, &options);
  if (const std::optional<int> code = ParseCommandLine(&app, argc, argv); code.has_value()) return *code;
  if (options.list_keys || options.list_policies) {
    std::cout << (options.list_keys ? KeyTable() : PolicyTable(isatty(STDOUT_FILENO) == 1));
    return std::cout.flush() ? kExitOk : kExitFailed;
  }
  return Run(options);
}

}  // namespace
}  // namespace railsd::sim

int main(int argc, char** argv) { return railsd::sim::Main(argc, argv); }
