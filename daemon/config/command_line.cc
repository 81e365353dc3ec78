#include "daemon/config/command_line.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/cli/completion.h"
#include "common/cli/man_page.h"
#include "common/version/version.h"
#include "daemon/config/field.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

// Prints the manual page or a completion script, for packages. The options for it are hidden.
CommandLine TellOfItself(const CLI::App& app, const std::string& shell) {
  CommandLine out;
  out.action = Action::kExit;
  if (shell.empty()) {
    std::cout << cli::ManPage(app, {.section = 8,
                                    .see_also = {"railsd.yaml(5)", "railsctl(1)"},
                                    .files = {{"/etc/railsd/railsd.yaml", "The configuration of the service."},
                                              {"/run/railsd", "The sockets for trainers and operators."}}});
    return out;
  }
  const absl::StatusOr<std::string> script = cli::CompletionScript(app, shell);
  out.exit_code = script.ok() ? kExitOk : kExitUsage;
  if (script.ok()) {
    std::cout << *script;
  } else {
    std::cerr << "railsd: " << script.status().message() << "\n";
  }
  return out;
}

}  // namespace

CommandLine ParseCommandLine(int argc, char** argv) {
  CommandLine out;
  CLI::App app(
      "railsd owns the rail network interfaces of this node and moves the all-to-all traffic of training jobs over "
      "them.\nExit status: 0 when it ended as asked, 1 when it failed, 2 for a wrong command line, 3 for a wrong "
      "configuration.",
      "railsd");
  const auto does = [&out](Action action) { return [&out, action] { out.action = action; }; };
  app.set_version_flag("--version", absl::StrCat("railsd ", Version()), "Print the version and exit.");
  app.set_help_flag("-h,--help", "Print this help and exit.");
  auto* config =
      app.add_option("--config", out.config_path, "Read the configuration from this YAML file.")->type_name("FILE");
  app.add_flag_callback("--check-config", does(Action::kCheckConfig),
                        "Check the configuration, report every mistake in it, and exit.");
  auto* print_flag = app.add_flag_callback("--print-config", does(Action::kPrintConfig),
                                           "Print the whole configuration with its defaults as YAML, and exit.")
                         ->excludes("--check-config");
  app.add_flag("--resolve", out.resolve,
               "With --print-config: print the rails and addresses that the configuration gives on this machine.")
      ->needs(print_flag);
  auto* list_flag =
      app.add_flag_callback("--list-devices", does(Action::kListDevices),
                            "List the RDMA ports of this machine, and why one cannot be a rail, and exit.")
          ->excludes(config);
  app.add_flag_callback("--metrics-table", does(Action::kMetricsTable),
                        "Print the metrics for Prometheus as a table in Markdown, and exit.")
      ->excludes(config);
  app.add_flag_callback("--config-table", does(Action::kConfigTable),
                        "Print every key of the configuration as a table in Markdown, and exit.")
      ->excludes(config);
  app.add_flag("--json", out.json, "With --list-devices: print JSON.")->needs(list_flag);
  app.add_option("--node", out.node, "Use this node name instead of the configured one.")->type_name("NAME");
  app.add_option(
         "--listen", out.listen,
         "Use this address, network or interface in control.listen and metrics.listen, with the configured ports.")
      ->type_name("HOST")
      ->check([](const std::string& host) { return host.empty() ? "the host is empty" : ""; });
  app.add_option("--socket-dir", out.socket_dir, "Put the Unix sockets into this directory.")->type_name("DIR");
  app.add_option("--log-level", out.log_level, "Lowest level that is logged: trace, debug, info, warning or error.")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
      ->type_name("LEVEL");
  app.add_option("--log-format", out.log_format, "Write log lines as text or as json.")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT");
  std::string completion;
  bool man = false;
  app.add_option("--completion", completion)->group("");
  app.add_flag("--man", man)->group("");
  try {
    app.parse(argc, argv);
    if (man || !completion.empty()) return TellOfItself(app, completion);
    const bool reads =
        out.action == Action::kRun || out.action == Action::kCheckConfig || out.action == Action::kPrintConfig;
    if (reads && out.config_path.empty()) throw CLI::RequiredError("--config");
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e, std::cout, std::cerr);
    out.action = Action::kExit;
    out.exit_code = code == 0 ? kExitOk : kExitUsage;
    return out;
  }
  return out;
}

namespace {

absl::Status ListenError(absl::string_view text, absl::string_view mistake) {
  return absl::InvalidArgumentError(absl::StrCat("--listen: '", text, "': ", mistake));
}

// Replaces the host of both listeners; a listener that is off stays off. `text` is a host, or an IPv6 address in
// brackets.
absl::Status ListenAt(const std::string& text, Config* config) {
  const absl::StatusOr<HostPort> given = ParseHostPort(text, /*port_optional=*/true);
  const std::string host = given.ok() ? given->host : text;
  if (text != host && text != absl::StrCat("[", host, "]")) {
    return ListenError(text, absl::StrCat("give the host without a port, as in ", host,
                                          "; control.listen and metrics.listen have the ports"));
  }
  const std::tuple<const char*, std::string*, Mistake> listeners[] = {
      {"control.listen", &config->control_listen, ListenMistake},
      {"metrics.listen", &config->metrics_listen, MetricsListenMistake}};
  for (const auto& [field, listen, mistake_of] : listeners) {
    if (listen->empty()) continue;
    const absl::StatusOr<HostPort> address = ParseHostPort(*listen, /*port_optional=*/false);
    if (!address.ok()) return address.status();
    *listen = FormatHostPort({host, address->port});
    if (const std::string mistake = mistake_of(*listen); !mistake.empty()) {
      return ListenError(text, absl::StrCat("for ", field, ": ", mistake));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Config> ConfigFor(const CommandLine& line) {
  absl::StatusOr<Config> config = LoadConfig(line.config_path);
  if (!config.ok()) return config.status();
  if (!line.node.empty()) {
    if (!IsName(line.node, 253))
      return absl::InvalidArgumentError(
          absl::StrCat("--node: '", line.node, "': not a name: 1 to 253 of letters, digits, '.', '_' and '-'"));
    config->node = line.node;
  }
  if (!line.listen.empty()) {
    if (absl::Status status = ListenAt(line.listen, &*config); !status.ok()) return status;
  }
  if (!line.socket_dir.empty()) {
    if (line.socket_dir[0] != '/' || line.socket_dir.size() > 90) {
      return absl::InvalidArgumentError(
          absl::StrCat("--socket-dir: '", line.socket_dir, "': not an absolute path of at most 90 bytes"));
    }
    config->socket_dir = line.socket_dir;
  }
  if (!line.log_level.empty()) config->log.level = line.log_level;
  if (!line.log_format.empty()) config->log.format = line.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
  return config;
}

}  // namespace railsd
