// Checks the configuration file and the access to the daemon's sockets.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/railsctl/doctor/checks.h"

namespace rails::ctl::doctor {
namespace {

std::string Describe(const Socket& socket) {
  return absl::StrFormat("%s has mode %04o and group %s", socket.name, socket.mode & 07777, socket.group);
}

Finding NotUsable(const Socket& socket, const Facts& facts) {
  const bool operators = socket.name == "operator.sock";
  const bool by_group = (socket.mode & 0060) == 0060 && socket.gid != 0;
  const std::string group = by_group ? socket.group : operators ? "rails-operators" : "rails";
  return {
      "sockets", Level::kWarning, absl::StrCat(facts.user.name, " may not use ", socket.name, ": ", Describe(socket)),
      operators ? "Operator calls of this user are refused." : "Trainers of this user cannot connect.",
      by_group ? absl::StrCat("`usermod -aG ", group, " ", facts.user.name, "`, then log in again.")
               : absl::StrCat(
                     "Set ",
                     operators ? "operator_mode: \"0660\", operator_group: " : "socket_mode: \"0660\", socket_group: ",
                     group, " in the configuration, and `usermod -aG ", group, " ", facts.user.name, "`.")};
}

}  // namespace

Findings CheckConfiguration(const Facts& facts) {
  const Configuration& config = facts.config;
  const std::string check = absl::StrCat("`railsd --config ", config.path, " --check-config`");
  if (!config.exists) {
    // If a daemon runs, its file probably exists, and this user may not read it.
    const Level level = config.given ? Level::kError : facts.running() ? Level::kNote : Level::kWarning;
    return {{"config", level, absl::StrCat(config.path, " does not exist, or may not be read by ", facts.user.name),
             "The configuration was not checked.",
             "Name the file with --config; /usr/share/doc/railsd/railsd.example.yaml explains every key."}};
  }
  if (config.program.empty()) {
    return {{"config", Level::kNote, absl::StrCat(config.path, " was not checked: there is no program railsd here"),
             "Doctor looks for it beside railsctl and in PATH.",
             "Install the package railsd, or run doctor on the node."}};
  }
  if (!config.verdict.ok()) {
    const std::string mistakes = absl::StrReplaceAll(config.verdict.message(), {{"\n", "; "}});
    return {{"config", Level::kError, mistakes, "A daemon does not start with this file.",
             absl::StrCat("Correct it, then ", check, ".")}};
  }
  Findings findings;
  const std::string& node = facts.overview.status().node();
  if (facts.running() && node != config.node) {
    findings.push_back({"config", Level::kNote,
                        absl::StrCat(config.path, " says node ", config.node, ", the daemon is node ", node),
                        "The daemon was given another name, or another file.", "See its command line."});
  }
  const std::string& in_force = facts.overview.status().config_hash();
  if (facts.running() && node == config.node && !config.hash.empty() && !in_force.empty() && config.hash != in_force) {
    findings.push_back(
        {"config", Level::kWarning,
         absl::StrCat(config.path, " is not what the daemon runs with (", config.hash, ", in force is ", in_force, ")"),
         "The file was changed after the daemon read it.",
         "`railsctl reload` applies what can change while it runs, and names what needs a restart."});
  }
  if (!facts.running() && !config.here.ok()) {
    findings.push_back({"config", Level::kError, std::string(config.here.message()),
                        "A daemon does not start with this file on this machine.",
                        "`ip -brief address` and `railsd --list-devices` show what there is; correct the file, or "
                        "bring up the missing rail or address."});
  }
  if (findings.empty()) {
    findings.push_back({"config", Level::kOk, absl::StrCat(config.path, " has no mistakes"), "", ""});
  }
  return findings;
}

Findings CheckSockets(const Facts& facts) {
  Findings findings;
  std::vector<std::string> good;
  for (const Socket& socket : facts.sockets) {
    if (!socket.exists) {
      if (facts.running()) {
        findings.push_back({"sockets", Level::kError,
                            absl::StrCat(facts.socket_dir, "/", socket.name, " is missing, though the daemon runs"),
                            "It was removed after the daemon made it.", "`systemctl restart railsd`."});
      }
      continue;
    }
    const bool operators = socket.name == "operator.sock";
    if (operators && (socket.mode & 0002) != 0) {
      findings.push_back({"sockets", Level::kWarning, Describe(socket),
                          "Every user of this node may drain rails and change the log level.",
                          "operator_mode: \"0660\", operator_group: rails-operators in the configuration."});
    } else if (!socket.usable) {
      findings.push_back(NotUsable(socket, facts));
    } else if (!operators && (socket.mode & 0002) != 0) {
      findings.push_back({"sockets", Level::kNote, Describe(socket), "Every user of this node may run jobs.",
                          "To allow only a group: socket_mode: \"0660\", socket_group: rails in the configuration."});
    } else {
      good.push_back(Describe(socket));
    }
  }
  if (findings.empty() && !good.empty()) {
    findings.push_back({"sockets", Level::kOk, absl::StrJoin(good, ", "), "", ""});
  }
  return findings;
}

}  // namespace rails::ctl::doctor
