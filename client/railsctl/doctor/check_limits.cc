// Checks the system's limits for the daemon (locked memory, huge pages, descriptors) and its clock.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/rails.h"
#include "client/railsctl/format.h"

namespace rails::ctl::doctor {
namespace {

std::string LimitText(uint64_t bytes) { return bytes == kUnlimited ? "without limit" : FormatBytes(bytes); }

}  // namespace

uint64_t DescriptorsNeeded(const DaemonSize& size) {
  // A peer has one link and, over TCP, two data connections a rail. A session has its connection, its process and the
  // doorbell of its ring.
  const uint64_t steady =
      22 + 6 * size.rails + size.peers * (1 + (size.tcp ? 2 * size.rails : 0)) + 3 * size.sessions + size.segments;
  // Half-open connections (64 is the default of limits.max_half_open, and there is room for two of each peer), second
  // connections and probes of links, calls.
  const uint64_t half_open = std::max<uint64_t>(64, 2 * size.peers);
  const uint64_t connecting = 128 + (size.tcp ? half_open * size.rails : 0) + 2 * size.peers;
  return steady + connecting;
}

Findings CheckMemlock(const Facts& facts) {
  const std::vector<Rail> rails = RailsOf(facts);
  const bool verbs =
      std::any_of(rails.begin(), rails.end(), [](const Rail& rail) { return rail.verbs; }) || facts.config.auto_rails;
  const bool seen = facts.process.pid != 0;
  const bool unlimited = seen && (facts.process.may_lock_memory || facts.process.memlock_bytes == kUnlimited);
  const uint64_t limit = seen ? facts.process.memlock_bytes : facts.own_memlock_bytes;
  const std::string who = seen ? absl::StrCat("the daemon (process ", facts.process.pid, ")") : "this shell";
  if (unlimited || limit == kUnlimited) {
    return {{"memlock", Level::kOk,
             absl::StrCat(who, " may lock memory ",
                          seen && facts.process.may_lock_memory ? "without limit, by CAP_IPC_LOCK" : "without limit"),
             "", ""}};
  }
  const std::string found = absl::StrCat(who, " may lock ", LimitText(limit), " of memory");
  const std::string fix =
      "LimitMEMLOCK=infinity in the unit (the package's has it), or the capability IPC_LOCK in a container; then "
      "restart railsd.";
  if (!verbs) return {{"memlock", Level::kNote, found, "Rails over TCP lock no memory; rails over verbs would.", fix}};
  if (!seen) {
    return {{"memlock", Level::kNote, found,
             "A daemon that this shell starts inherits it; rails over verbs lock every registered segment.", fix}};
  }
  return {{"memlock", Level::kError, found,
           "Rails over verbs lock every segment that trainers register; beyond the limit they are refused.", fix}};
}

Findings CheckHugePages(const Facts& facts) {
  const Machine& machine = facts.machine;
  if (machine.huge_page_bytes == 0) return {};
  const std::string size = FormatBytes(machine.huge_page_bytes);
  if (machine.huge_pages == 0) {
    return {{"hugepages", Level::kNote, absl::StrCat("no huge pages of ", size, " are set aside"),
             "Segments with `huge_pages` are refused; with them a device translates fewer pages of a large buffer.",
             absl::StrCat("`sysctl -w vm.nr_hugepages=N`, N times ", size,
                          " for all buffers of the node's ranks; soon after the boot, before memory is fragmented.")}};
  }
  const std::string found =
      absl::StrCat(machine.huge_pages_free, " of ", machine.huge_pages, " huge pages of ", size, " are free");
  if (machine.huge_pages_free == 0) {
    return {{"hugepages", Level::kNote, found, "The next segment with `huge_pages` is refused.",
             "This is normal while trainers hold them; otherwise raise vm.nr_hugepages."}};
  }
  return {{"hugepages", Level::kOk, found, "", ""}};
}

Findings CheckTlsData(const Facts& facts) {
  if (!facts.config.tls_data) return {};
  const std::vector<std::string> ready = absl::StrSplit(facts.machine.tcp_upper_layers, ' ');
  if (std::find(ready.begin(), ready.end(), "tls") != ready.end()) {
    return {{"tls", Level::kOk, "the kernel encrypts the data connections of rails over TCP", "", ""}};
  }
  return {{"tls", Level::kError,
           "tls.data: kernel, and the kernel has no TLS for sockets (its module tls is not loaded)",
           "The daemon does not start.",
           "`modprobe tls`, and the word tls in /etc/modules-load.d/railsd.conf; or tls.data: off on all nodes."}};
}

Findings CheckOpenFiles(const Facts& facts) {
  if (facts.process.pid == 0 || !facts.running()) return {};
  const auto& overview = facts.overview;
  const bool tcp = std::any_of(overview.rails().begin(), overview.rails().end(),
                               [](const v1::RailStatus& rail) { return !rail.has_device(); });
  DaemonSize size = {.peers = static_cast<uint64_t>(overview.peers_size()),
                     .rails = static_cast<uint64_t>(overview.rails_size()),
                     .sessions = std::max<uint64_t>(64, static_cast<uint64_t>(overview.status().sessions_size())),
                     .tcp = tcp};
  for (const v1::SessionStatus& session : overview.status().sessions()) size.segments += session.segments();
  size.segments = std::max(size.segments, 4 * size.sessions);
  const uint64_t needed = DescriptorsNeeded(size);
  const std::string limit =
      facts.process.open_files == kUnlimited ? "any number of files" : absl::StrCat(facts.process.open_files, " files");
  const std::string found = absl::StrCat("the daemon may open ", limit, "; ", FormatCount(size.peers, "peer"), ", ",
                                         FormatCount(size.rails, "rail"), ", ", size.sessions, " sessions and ",
                                         size.segments, " segments need up to ", needed);
  if (facts.process.open_files >= needed) return {{"files", Level::kOk, found, "", ""}};
  return {{"files", Level::kError, found, "The daemon refuses connections when it has no descriptor left.",
           "LimitNOFILE=1048576 in the unit (the package's has it), or `docker run --ulimit nofile=1048576`; then "
           "restart railsd."}};
}

Findings CheckClock(const Facts& facts) {
  const std::string fix = "`timedatectl`; install and start chrony or systemd-timesyncd.";
  const std::string means =
      "Jobs do not depend on it, but logs, metrics and traces of several nodes cannot be compared.";
  if (!facts.clock.known)
    return {{"clock", Level::kNote, "the kernel does not say whether the clock is synchronised", means, fix}};
  if (!facts.clock.synchronised) return {{"clock", Level::kWarning, "the clock is not synchronised", means, fix}};
  const std::string error = FormatSeconds(static_cast<double>(facts.clock.max_error_us) * 1e-6);
  if (facts.clock.max_error_us > 1'000'000) {
    return {{"clock", Level::kWarning, absl::StrCat("the clock may be wrong by ", error), means, fix}};
  }
  return {{"clock", Level::kOk, absl::StrCat("synchronised, within ", error), "", ""}};
}

}  // namespace rails::ctl::doctor
