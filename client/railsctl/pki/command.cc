// pki: makes a certificate authority for tests and small clusters, and certificates of nodes.
#include "client/railsctl/command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/railsctl/pki/files.h"
#include "client/railsctl/print.h"

namespace rails::ctl {
namespace {

constexpr int kMaxDays = 36'500;
constexpr absl::Duration kClocksDiffer = absl::Hours(1);

struct PkiOptions {
  std::string folder, from;
  std::vector<std::string> nodes;
  int days = 0;
  bool force = false;
};

// Maps NOT_FOUND and INVALID_ARGUMENT to a bad input file: the CA's files are missing or wrong.
ExitCode PkiExitCode(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsInvalidArgument(status) ? kExitBadInputFile : kExitFailed;
}

int MakeFiles(const Context& context, const PkiOptions& options) {
  pki::Choices choices;
  choices.force = options.force;
  std::string error;
  choices.validity.from = absl::Now() - kClocksDiffer;
  if (!options.from.empty() && !absl::ParseTime(absl::RFC3339_full, options.from, &choices.validity.from, &error)) {
    return Fail(context, kExitUsage, absl::InvalidArgumentError(absl::StrCat("--from: '", options.from, "': ", error)));
  }
  choices.validity.to = (options.from.empty() ? absl::Now() : choices.validity.from) + absl::Hours(24) * options.days;
  const bool init = options.nodes.empty();
  for (const std::string& node : options.nodes) {
    if (absl::Status status = pki::CheckNodeName(node); !status.ok()) return Fail(context, kExitUsage, status);
  }
  const absl::Status status =
      init ? pki::InitFolder(options.folder, choices) : pki::IssueInto(options.folder, options.nodes, choices);
  if (!status.ok()) return Fail(context, PkiExitCode(status), status);
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  std::string text;
  for (const std::string& name : init ? std::vector<std::string>{pki::kAuthorityName} : options.nodes) {
    const std::string certificate = pki::CertificatePath(options.folder, name),
                      key = pki::KeyPath(options.folder, name);
    const absl::StatusOr<std::string> pem = pki::ReadPem(certificate);
    const absl::StatusOr<absl::Time> expires = pem.ok() ? pki::ExpiryOf(*pem) : pem.status();
    if (!expires.ok()) return Fail(context, kExitFailed, expires.status());
    absl::StrAppend(&text, "Wrote ", certificate, " and ", key, "; valid until ",
                    absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", *expires, absl::UTCTimeZone()), ".\n");
    files.push_back({{"name", name},
                     {"certificate", certificate},
                     {"key", key},
                     {"expiry_seconds", static_cast<double>(absl::ToUnixSeconds(*expires))}});
  }
  PrintAs(context, text, {{"files", files}});
  return kExitOk;
}

std::shared_ptr<PkiOptions> AddPkiOptions(CLI::App* command, int days) {
  auto options = std::make_shared<PkiOptions>();
  options->days = days;
  command->add_option("dir", options->folder, "The folder of the files.")->required()->type_name("DIR");
  command->add_option("--days", options->days, "How long the certificates are valid.")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxDays))
      ->capture_default_str();
  command
      ->add_option("--from", options->from,
                   "Start of the validity, as in 2026-01-31T12:00:00Z. Without it: an hour ago, because clocks differ.")
      ->type_name("TIME");
  command->add_flag("--force", options->force, "Replaces existing files.");
  return options;
}

}  // namespace

void AddPkiCommand(CLI::App& app, Context& context) {
  CLI::App* pki = app.add_subcommand(
      "pki", "Makes a certificate authority and certificates of nodes, for tests of mutual TLS and small clusters.");
  pki->require_subcommand(1);
  CLI::App* init = pki->add_subcommand(
      "init",
      "Makes a certificate authority: DIR/ca.pem, which every node needs, and DIR/ca.key, which no node needs.");
  const auto init_options = AddPkiOptions(init, 3650);
  init->callback([&context, init_options] {
    context.run = [&context, init_options] { return MakeFiles(context, *init_options); };
  });
  CLI::App* issue = pki->add_subcommand(
      "issue",
      "Issues certificates by the authority in a folder: DIR/NODE.pem and DIR/NODE.key, which only the node "
      "NODE needs.");
  const auto issue_options = AddPkiOptions(issue, 365);
  issue->add_option("node", issue_options->nodes, "The names of the nodes, as `node` in their configuration says.")
      ->required()
      ->type_name("NODE");
  issue->callback([&context, issue_options] {
    context.run = [&context, issue_options] { return MakeFiles(context, *issue_options); };
  });
}

}  // namespace rails::ctl
