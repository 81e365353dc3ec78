// Checks the daemon's answers about itself and its rails.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/rails.h"
#include "client/railsctl/format.h"
#include "client/railsctl/inspect/render.h"
#include "common/json/names.h"

namespace rails::ctl::doctor {
namespace {

constexpr double kCertificateSoonSeconds = 14 * 86400.0;

Finding NotRunning(const Facts& facts) {
  const bool sockets =
      std::any_of(facts.sockets.begin(), facts.sockets.end(), [](const Socket& s) { return s.exists; });
  const std::string why(facts.answered.message());
  if (absl::IsPermissionDenied(facts.answered)) {
    return {
        "daemon", Level::kError, why, "Without the operator's socket, doctor checks only the machine.",
        absl::StrCat("Run doctor as root, or `usermod -aG rails-operators ", facts.user.name, "` and log in again.")};
  }
  if (absl::IsDeadlineExceeded(facts.answered)) {
    return {"daemon", Level::kError, why, "The daemon runs, but its engine hangs or gets no processor time.",
            "Record the stacks of its threads (`gdb -p PID -batch -ex 'thread apply all bt'`), then `systemctl restart "
            "railsd`."};
  }
  if (sockets) {
    return {"daemon", Level::kError, why, "Its sockets are there: a daemon ran here and ended without removing them.",
            "`systemctl status railsd`, `journalctl -u railsd`; then `systemctl restart railsd`."};
  }
  return {"daemon", Level::kWarning, absl::StrCat("no daemon runs on ", facts.socket_dir),
          "Doctor checked only the machine and the configuration.",
          "`systemctl start railsd`; or name its directory with --socket-dir."};
}

// True if the rail misses only peers whose links are down.
bool WaitsForLinks(const v1::RailStatus& rail, const google::protobuf::RepeatedPtrField<v1::PeerStatus>& peers) {
  if (rail.health().state() == v1::RAIL_STATE_DOWN || PeersMissing(rail) == 0) return false;
  bool any_down = false;
  for (const v1::PeerStatus& peer : peers) {
    any_down = any_down || !peer.up();
    const int r = static_cast<int>(rail.index());
    if (peer.up() && r < peer.rails_up_size() && !peer.rails_up(r)) return false;
  }
  return any_down;
}

Finding JudgeRail(const v1::RailStatus& rail) {
  const Cell state = RailStateCell(rail);
  const std::string why = rail.health().why().empty() ? "" : absl::StrCat(": ", rail.health().why());
  const std::string found = absl::StrCat(rail.name(), " is ", state.text, why);
  const bool dead_link = rail.has_device() && rail.device().state() != "active";
  if (rail.health().drained()) {
    return {"rails", Level::kWarning, found, "An operator has drained it; it carries no new work.",
            absl::StrCat("`railsctl undrain ", rail.name(), "` when its repair is done.")};
  }
  if (state.mark == Mark::kBad || dead_link) {
    return {"rails", Level::kError, dead_link ? absl::StrCat(found, "; the port is ", rail.device().state()) : found,
            "Other rails carry its share, if any is up; jobs take longer.",
            "The interface, its address, cable and switch port: `ip addr`, `ethtool`, `rdma link`, `dmesg`."};
  }
  if (rail.health().state() == v1::RAIL_STATE_DRAINED_BY_PEER) {
    return {"rails", Level::kNote, found, "It carries nothing until a peer undrains its end.",
            absl::StrCat("`railsctl undrain ", rail.name(), "` at the peers when their repair is done.")};
  }
  if (PeersMissing(rail) > 0) {
    return {"rails", Level::kError,
            absl::StrCat(rail.name(), " reaches ", rail.peers_up(), " of ",
                         FormatCount(rail.peers_known() - rail.peers_drained(), "peer")),
            "Bytes for the others take the other rails.", "See the findings on peers."};
  }
  if (state.mark == Mark::kWarn) {
    return {"rails", Level::kWarning, found, "It failed a while ago, and is tried again before it is used.",
            "`railsctl rails` counts its failures (FLAPS); drain it when they go on."};
  }
  return {"rails", Level::kOk,
          absl::StrCat(
              rail.name(), ": ", state.text, ", ", FormatBitRate(static_cast<double>(rail.speed_bytes_per_second())),
              rail.measured_bytes_per_second() == 0
                  ? ""
                  : absl::StrCat(", measured ", FormatBitRate(static_cast<double>(rail.measured_bytes_per_second())))),
          "", ""};
}

// Judges the certificate that the daemon shows to its peers. The daemon starts only with a certificate of its node.
Finding JudgeCertificate(const v1::GetStatusResponse& status, double now_seconds) {
  const double left = status.tls_certificate_expiry_seconds() - now_seconds;
  const std::string fix =
      "Issue a new one into the files that `tls` in its configuration names; the daemon reads it while it runs "
      "(deploy/RUNBOOK.md).";
  if (left <= 0) {
    return {"daemon", Level::kError, absl::StrCat("its certificate expired ", FormatSeconds(-left), " ago"),
            "No peer accepts a new connection. Connections that are up stay until they break.", fix};
  }
  if (left < kCertificateSoonSeconds) {
    return {"daemon", Level::kWarning, absl::StrCat("its certificate expires in ", FormatSeconds(left)),
            "After that, no peer accepts a new connection.", fix};
  }
  return {"daemon", Level::kOk, absl::StrCat("mutual TLS; its certificate expires in ", FormatSeconds(left)), "", ""};
}

}  // namespace

Findings CheckDaemon(const Facts& facts) {
  if (!facts.running()) return {NotRunning(facts)};
  const v1::GetStatusResponse& status = facts.overview.status();
  Findings findings;
  if (!facts.health.ok()) {
    findings.push_back({"daemon", Level::kError, absl::StrCat("the health service: ", facts.health.message()),
                        "Probes of Kubernetes and of Docker fail.", "`journalctl -u railsd`."});
  } else if (!facts.live) {
    findings.push_back({"daemon", Level::kError, "a thread of the daemon hangs: `live` is NOT_SERVING",
                        "Its rail, or all work of the daemon, waits for it.",
                        "Record the stacks of its threads (`gdb -p PID -batch -ex 'thread apply all bt'`), then "
                        "`systemctl restart railsd`; the watchdog does so by itself."});
  } else if (status.draining() || !facts.serving) {
    findings.push_back({"daemon", Level::kWarning,
                        absl::StrCat("node ", status.node(), " takes no new work: it is drained"),
                        "Running jobs end, new ones are refused.",
                        "This is normal before an update. `railsctl undrain --node` ends it."});
  } else {
    findings.push_back(
        {"daemon", Level::kOk,
         absl::StrCat("node ", status.node(), " serves, up for ", FormatSeconds(status.uptime_seconds())), "", ""});
  }
  if (status.tls()) {
    findings.push_back(JudgeCertificate(status, facts.overview.time_seconds()));
  } else if (facts.overview.peers_size() > 0) {
    findings.push_back({"daemon", Level::kNote, "links between nodes are neither encrypted nor authenticated",
                        "Any program that reaches the control address can act as a peer.",
                        "Give the nodes certificates (docs/tls.md), or keep control.listen and the rails on a network "
                        "that only the nodes reach."});
  }
  return findings;
}

Findings CheckRails(const Facts& facts) {
  Findings findings;
  if (!facts.running()) return findings;
  std::vector<std::string> waiting;
  const auto& peers = facts.overview.peers();
  for (const v1::RailStatus& rail : facts.overview.rails()) {
    const bool paired = peers.empty() || std::any_of(peers.begin(), peers.end(), [&rail](const v1::PeerStatus& peer) {
                          const auto index = static_cast<int>(rail.index());
                          return CommonRails(peer, index + 1) > index;
                        });
    if (!paired) continue;  // CheckRailCounts() has reported it
    const bool well = !rail.health().drained() && (!rail.has_device() || rail.device().state() == "active");
    if (well && WaitsForLinks(rail, facts.overview.peers())) {
      waiting.push_back(rail.name());
    } else {
      findings.push_back(JudgeRail(rail));
    }
  }
  if (waiting.empty()) return findings;
  std::vector<std::string> nodes;
  for (const v1::PeerStatus& peer : facts.overview.peers()) {
    if (!peer.up()) nodes.push_back(peer.node());
  }
  findings.push_back({"rails", Level::kNote,
                      absl::StrCat(absl::StrJoin(waiting, ", "), ": not connected to ", absl::StrJoin(nodes, ", "),
                                   ", as long as there is no link"),
                      "Rails connect when the daemons' link is up.", "See the findings on peers."});
  return findings;
}

Findings CheckVersions(const Facts& facts) {
  Findings findings;
  if (!facts.running()) {
    if (facts.config.program.empty()) return {};
    if (facts.config.program_version == facts.version) {
      return {{"versions", Level::kOk, absl::StrCat("railsd and railsctl ", facts.version), "", ""}};
    }
    return {{"versions", Level::kWarning,
             absl::StrCat(facts.config.program, " is ", facts.config.program_version, ", railsctl is ", facts.version),
             "railsctl fits the daemon of its own version.", "Install both in one version."}};
  }
  const std::string& daemon = facts.overview.status().version();
  if (daemon != facts.version) {
    findings.push_back(
        {"versions", Level::kWarning, absl::StrCat("the daemon is ", daemon, ", railsctl is ", facts.version),
         "railsctl may show too little, or make calls that the daemon does not have.",
         "Install both in one version; `systemctl restart railsd` if its package has been updated since it "
         "was started."});
  }
  if (!facts.config.program_version.empty() && facts.config.program_version != daemon) {
    findings.push_back({"versions", Level::kWarning,
                        absl::StrCat("the daemon that runs is ", daemon, ", ", facts.config.program, " is ",
                                     facts.config.program_version),
                        "The program was updated, and the old one still runs.",
                        "`systemctl restart railsd`, between jobs."});
  }
  std::vector<std::string> others;
  for (const v1::PeerStatus& peer : facts.overview.peers()) {
    if (!peer.version().empty() && peer.version() != daemon)
      others.push_back(absl::StrCat(peer.node(), " ", peer.version()));
  }
  if (!others.empty()) {
    findings.push_back({"versions", Level::kWarning,
                        absl::StrCat("the daemon is ", daemon, ", its peers differ: ", absl::StrJoin(others, ", ")),
                        "They work together as long as each accepts the other's HELLO. An update has not ended.",
                        "Finish the update, or undo it, node by node."});
  }
  if (findings.empty()) {
    findings.push_back({"versions", Level::kOk, absl::StrCat(daemon, " everywhere"), "", ""});
  }
  return findings;
}

}  // namespace rails::ctl::doctor
