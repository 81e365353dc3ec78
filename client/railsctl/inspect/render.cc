#include "client/railsctl/inspect/render.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/railsctl/format.h"
#include "client/railsctl/rail_counter.h"
#include "client/railsctl/table.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

using Align = Table::Align;

constexpr char kDrainedByPeer[] = "DRAINED BY PEER";

// A counter that should stay 0.
Cell Trouble(uint64_t count) { return Cell(absl::StrCat(count), count == 0 ? Mark::kNone : Mark::kWarn); }

std::string EpochText(const v1::Epoch& epoch) {
  return absl::StrCat(FormatId(epoch.boot_id()).substr(0, 8), ".", epoch.counter());
}

std::string SessionTable(const v1::GetStatusResponse& status, bool color) {
  Table table({{"SESSION", Align::kRight},
               {"PID", Align::kRight},
               {"UID", Align::kRight},
               {"TENANT"},
               {"SEGMENTS", Align::kRight},
               {"MEMORY", Align::kRight},
               {"GROUPS", Align::kRight},
               {"CLIENT"}});
  for (const auto& session : status.sessions()) {
    table.AddRow({absl::StrCat(session.session_id()), absl::StrCat(session.pid()), absl::StrCat(session.uid()),
                  session.tenant(), absl::StrCat(session.segments()), FormatBytes(session.segment_bytes()),
                  absl::StrCat(session.memberships()), session.client_name()});
  }
  return table.Render(color);
}

std::string GroupTable(const v1::GetStatusResponse& status, bool color) {
  Table table({{"GROUP"}, {"TENANT"}, {"EPOCH"}, {"RANKS", Align::kRight}, {"LOCAL RANKS"}, {"RECOVERY"}, {"STATE"}});
  for (const auto& group : status.groups()) {
    Cell state("whole", Mark::kGood);
    if (group.lost_nodes_size() > 0) {
      state = Cell(absl::StrCat("WITHOUT ", absl::StrJoin(group.lost_nodes(), ", ")), Mark::kBad);
    }
    if (group.broken()) state = Cell(absl::StrCat("BROKEN: ", group.why_broken()), Mark::kBad);
    table.AddRow({group.name(), group.tenant(), EpochText(group.epoch()), absl::StrCat(group.world_size()),
                  absl::StrJoin(group.local_ranks(), ","), RecoveryText(group), state});
  }
  for (const auto& group : status.forming_groups()) {
    const auto counted = static_cast<uint32_t>(group.missing_ranks_size()) + group.joined();
    const std::string waits =
        absl::StrCat("forming: ", group.joined(), " joined, waits for ranks ",
                     absl::StrJoin(group.missing_ranks(), ","), counted < group.world_size() ? ",..." : "");
    table.AddRow({group.name(), group.tenant(), "-", absl::StrCat(group.world_size()),
                  absl::StrJoin(group.local_ranks(), ","), "-", Cell(waits, Mark::kWarn)});
  }
  return table.Render(color);
}

std::string JobTable(const google::protobuf::RepeatedPtrField<v1::JobReport>& jobs, bool color) {
  Table table({{"GROUP"},
               {"TENANT"},
               {"SEQ", Align::kRight},
               {"RANK", Align::kRight},
               {"STATE"},
               {"SENT", Align::kRight},
               {"OF", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"OF", Align::kRight},
               {"TIME", Align::kRight},
               {"/BOUND", Align::kRight},
               {"WHY"}});
  for (const auto& job : jobs) {
    const Cell state = JobStateCell(job);
    table.AddRow({job.group(), job.tenant(), absl::StrCat(job.job().seq()), absl::StrCat(job.job().rank()), state,
                  FormatBytes(job.bytes_sent()), FormatBytes(job.bytes_to_send()), FormatBytes(job.bytes_received()),
                  FormatBytes(job.bytes_to_receive()), FormatSeconds(job.elapsed_seconds()),
                  FormatRatio(job.ratio_to_bound()), Cell(job.message(), state.mark)});
  }
  return table.Render(color);
}

// "3", "3 of 8"; marked if nothing is left.
Cell QuotaText(const v1::TenantStatus& tenant, absl::string_view name) {
  for (const auto& quota : tenant.quotas()) {
    if (quota.name() != name) continue;
    const auto text = [name](uint64_t value) {
      return name == "segment_bytes" ? FormatBytes(value) : absl::StrCat(value);
    };
    if (quota.value() == 0) return Cell(name == "jobs_per_second" ? "-" : text(quota.in_use()));
    return Cell(absl::StrCat(text(quota.in_use()), " of ", text(quota.value())),
                quota.in_use() >= quota.value() ? Mark::kWarn : Mark::kNone);
  }
  return Cell("-");
}

// The devices of RDMA rails.
std::string DeviceTable(const v1::ListRailsResponse& rails, bool color) {
  Table table({{"RAIL", Align::kRight},
               {"DEVICE"},
               {"PORT"},
               {"LINK"},
               {"GID"},
               {"MTU", Align::kRight},
               {"QUEUE PAIRS", Align::kRight},
               {"WORK REQUESTS", Align::kRight},
               {"COMPLETIONS", Align::kRight},
               {"FENCES SENT", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"ZONE KEYS"},
               {"WEAK ZONES", Align::kRight},
               {"ENDPOINT ERRORS", Align::kRight}});
  for (const auto& rail : rails.rails()) {
    if (!rail.has_device()) continue;
    const v1::RailDevice& device = rail.device();
    table.AddRow({absl::StrCat(rail.index()), absl::StrCat(device.name(), "/", device.port()),
                  Cell(device.state(), device.state() == "active" ? Mark::kGood : Mark::kBad), device.link_layer(),
                  absl::StrCat(device.gid_index(), ": ", device.gid()), absl::StrCat(device.mtu_bytes()),
                  absl::StrCat(device.queue_pairs()), absl::StrCat(Counter(rail, "work_requests")),
                  absl::StrCat(Counter(rail, "completions")), absl::StrCat(Counter(rail, "tx_fences")),
                  absl::StrCat(Counter(rail, "rx_fences")),
                  device.windows() ? Cell("windows") : Cell("weak", Mark::kWarn), Trouble(Counter(rail, "weak_zones")),
                  Trouble(Counter(rail, "endpoint_errors"))});
  }
  return table.empty() ? "" : absl::StrCat("\n", table.Render(color));
}

}  // namespace

Cell JobStateCell(const v1::JobReport& job) {
  if (job.replayable()) return Cell("replayable");
  if (job.state() == v1::JOB_STATE_FAILED) return Cell(absl::StrCat("FAILED ", CodeName(job.code())), Mark::kBad);
  return Cell(JobStateName(job.state()), job.state() == v1::JOB_STATE_DONE ? Mark::kGood : Mark::kNone);
}

uint32_t PeersMissing(const v1::RailStatus& rail) {
  const uint32_t reached = rail.peers_up() + rail.peers_drained();
  return rail.peers_known() - std::min(rail.peers_known(), reached);
}

Cell PathStateCell(const v1::PeerStatus& peer, int rail) {
  if (peer.rail_count() > 0 && static_cast<uint32_t>(rail) >= peer.rail_count()) return Cell("MISSING", Mark::kWarn);
  const bool connected = rail < peer.rails_up_size() && peer.rails_up(rail);
  const v1::RailState state = rail < peer.rail_states_size() ? peer.rail_states(rail) : v1::RAIL_STATE_UNSPECIFIED;
  if (state == v1::RAIL_STATE_DRAINED_BY_PEER) return Cell(kDrainedByPeer, Mark::kWarn);
  if (!connected || state == v1::RAIL_STATE_DOWN) return Cell("DOWN", Mark::kBad);
  if (state == v1::RAIL_STATE_SUSPECT) return Cell("SUSPECT", Mark::kWarn);
  if (state == v1::RAIL_STATE_PROBING) return Cell("PROBING", Mark::kWarn);
  return Cell("up", Mark::kGood);
}

Cell RailStateCell(const v1::RailStatus& rail) {
  if (rail.health().drained()) return Cell("DRAINED", Mark::kWarn);
  if (rail.health().state() == v1::RAIL_STATE_DOWN) return Cell("DOWN", Mark::kBad);
  if (rail.health().state() == v1::RAIL_STATE_PROBING) return Cell("PROBING", Mark::kWarn);
  if (rail.health().state() == v1::RAIL_STATE_SUSPECT) return Cell("SUSPECT", Mark::kWarn);
  if (rail.health().state() == v1::RAIL_STATE_DRAINED_BY_PEER) return Cell(kDrainedByPeer, Mark::kWarn);
  if (rail.peers_known() == 0) return Cell("no peers");
  if (PeersMissing(rail) == 0) return Cell("up", Mark::kGood);
  if (rail.peers_up() == 0) return Cell("DOWN", Mark::kBad);
  return Cell("DEGRADED", Mark::kWarn);
}

std::string RenderStatus(const v1::GetStatusResponse& status, bool color) {
  std::string out;
  const auto line = [&out](absl::string_view name, absl::string_view value) {
    absl::StrAppendFormat(&out, "%-9s %s\n", name, value);
  };
  line("node", status.node());
  line("state", status.draining() ? Paint("DRAINING: new jobs are refused", Mark::kBad, color)
                                  : Paint("serving", Mark::kGood, color));
  line("version", status.version());
  line("boot id", FormatId(status.boot_id()));
  line("config", status.config_hash());
  line("uptime", FormatSeconds(status.uptime_seconds()));
  line("peer TLS", status.tls() ? Paint("on", Mark::kGood, color)
                                : Paint("OFF: peers are neither encrypted nor authenticated", Mark::kWarn, color));
  line("jobs", absl::StrCat(status.jobs_active(), " active, ", status.jobs_done(), " done, ",
                            Paint(absl::StrCat(status.jobs_failed(), " failed"),
                                  status.jobs_failed() == 0 ? Mark::kNone : Mark::kWarn, color)));
  line("sessions", absl::StrCat(status.sessions_size()));
  line("groups", absl::StrCat(status.groups_size()));
  if (status.sessions_size() > 0) absl::StrAppend(&out, "\n", SessionTable(status, color));
  if (status.groups_size() + status.forming_groups_size() > 0) absl::StrAppend(&out, "\n", GroupTable(status, color));
  return out;
}

std::string RenderTenants(const v1::GetStatusResponse& status, bool color) {
  Table table({{"TENANT"},
               {"WEIGHT", Align::kRight},
               {"PRIORITY", Align::kRight},
               {"SESSIONS", Align::kRight},
               {"SEGMENTS", Align::kRight},
               {"MEMORY", Align::kRight},
               {"JOBS", Align::kRight},
               {"JOBS/S", Align::kRight},
               {"DONE", Align::kRight},
               {"FAILED", Align::kRight},
               {"SENT", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"REFUSED"}});
  for (const auto& tenant : status.tenants()) {
    const auto use = [&tenant](const char* name) { return QuotaText(tenant, name); };
    std::vector<std::string> refused;
    for (const auto& quota : tenant.quotas()) {
      if (quota.refused() > 0) refused.push_back(absl::StrCat(quota.name(), " ", quota.refused()));
    }
    table.AddRow({Cell(tenant.name()), Cell(absl::StrCat(tenant.weight())), Cell(absl::StrCat(tenant.priority())),
                  use("sessions"), use("segments"), use("segment_bytes"), use("jobs"), use("jobs_per_second"),
                  Cell(absl::StrCat(tenant.jobs_done())), Trouble(tenant.jobs_failed()),
                  Cell(FormatBytes(tenant.bytes_sent())), Cell(FormatBytes(tenant.bytes_received())),
                  Cell(absl::StrJoin(refused, ", "), Mark::kWarn)});
  }
  return table.Render(color);
}

std::string RenderRails(const v1::ListRailsResponse& rails, bool color) {
  if (rails.rails_size() == 0) return "no rails\n";
  Table table({{"RAIL", Align::kRight},
               {"NAME"},
               {"STATE"},
               {"PEERS", Align::kRight},
               {"ADDRESS"},
               {"SPEED", Align::kRight},
               {"MEASURED", Align::kRight},
               {"QUEUED", Align::kRight},
               {"IN FLIGHT", Align::kRight},
               {"SENT", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"ERRORS", Align::kRight},
               {"DISCONNECTS", Align::kRight},
               {"FAILED CONNECTS", Align::kRight},
               {"FLAPS", Align::kRight},
               {"WHY"}});
  for (const auto& rail : rails.rails()) {
    // When nodes start together, some of their first connects fail. Failures matter only while a peer is not connected.
    const uint64_t failed_connects = Counter(rail, "refused_connections") + Counter(rail, "connect_failures");
    const std::string address =
        rail.interface().empty() ? rail.address() : absl::StrCat(rail.address(), "%", rail.interface());
    table.AddRow({absl::StrCat(rail.index()), rail.name(), RailStateCell(rail),
                  absl::StrCat(rail.peers_up(), "/", rail.peers_known() - rail.peers_drained()), address,
                  FormatBitRate(static_cast<double>(rail.speed_bytes_per_second())),
                  FormatBitRate(static_cast<double>(rail.measured_bytes_per_second())),
                  FormatBytes(rail.queued_bytes()), FormatBytes(rail.in_flight_bytes()),
                  FormatBytes(Counter(rail, "tx_payload_bytes")), FormatBytes(Counter(rail, "rx_payload_bytes")),
                  Trouble(Counter(rail, "protocol_errors")), Trouble(Counter(rail, "disconnects")),
                  PeersMissing(rail) > 0 ? Trouble(failed_connects) : Cell(absl::StrCat(failed_connects)),
                  Trouble(rail.health().flaps()), Cell(rail.health().why(), Mark::kWarn)});
  }
  return absl::StrCat(table.Render(color), DeviceTable(rails, color));
}

std::string RenderRailRates(const v1::ListRailsResponse& before, const v1::ListRailsResponse& after, double seconds,
                            bool color) {
  Table table({{"RAIL", Align::kRight},
               {"NAME"},
               {"STATE"},
               {"SENDING", Align::kRight},
               {""},
               {"RECEIVING", Align::kRight},
               {""},
               {"QUEUED", Align::kRight},
               {"IN FLIGHT", Align::kRight}});
  constexpr size_t kBarWidth = 16;
  for (const auto& rail : after.rails()) {
    const auto old = std::find_if(before.rails().begin(), before.rails().end(),
                                  [&](const v1::RailStatus& other) { return other.index() == rail.index(); });
    double tx = 0, rx = 0;
    // A restart of the daemon resets its counters. The next refresh shows right rates again.
    if (old != before.rails().end() && seconds > 0 &&
        Counter(rail, "tx_payload_bytes") >= Counter(*old, "tx_payload_bytes") &&
        Counter(rail, "rx_payload_bytes") >= Counter(*old, "rx_payload_bytes")) {
      tx = static_cast<double>(Counter(rail, "tx_payload_bytes") - Counter(*old, "tx_payload_bytes")) / seconds;
      rx = static_cast<double>(Counter(rail, "rx_payload_bytes") - Counter(*old, "rx_payload_bytes")) / seconds;
    }
    const auto speed = static_cast<double>(rail.speed_bytes_per_second());
    table.AddRow({absl::StrCat(rail.index()), rail.name(), RailStateCell(rail), FormatBitRate(tx),
                  Bar(tx, speed, kBarWidth), FormatBitRate(rx), Bar(rx, speed, kBarWidth),
                  FormatBytes(rail.queued_bytes()), FormatBytes(rail.in_flight_bytes())});
  }
  return table.Render(color);
}

std::string RenderDrain(const v1::RailStatus& rail, bool color) {
  if (!rail.health().drained()) {
    const std::string& why = rail.health().why();
    return absl::StrCat(rail.name(), " is not drained", why.empty() ? "" : absl::StrCat("; ", why), ".\n");
  }
  return absl::StrCat(rail.name(), " is ", Paint("DRAINED", Mark::kWarn, color), "; ",
                      FormatBytes(rail.queued_bytes() + rail.in_flight_bytes()), " of this node are still on it.\n");
}

std::string RenderReload(const v1::ReloadResponse& reload, bool color) {
  if (reload.applied_size() + reload.needs_restart_size() == 0) {
    return absl::StrCat("The file says what is in force already (config ", reload.config_hash(), ").\n");
  }
  Table table({{"KEY"}, {"BEFORE"}, {"IN FILE"}, {"WHAT"}});
  const auto add = [&](const v1::ConfigChange& change, const Cell& what) {
    const auto text = [](const std::string& value) { return Cell(value.empty() ? "absent" : value); };
    table.AddRow({Cell(change.key()), text(change.before()), text(change.after()), what});
  };
  for (const auto& change : reload.applied()) add(change, Cell("applied", Mark::kGood));
  for (const auto& change : reload.needs_restart()) add(change, Cell("NEEDS A RESTART", Mark::kWarn));
  return table.Render(color);
}

std::string RenderPeers(const v1::ListPeersResponse& peers, bool color) {
  if (peers.peers_size() == 0) return "no peers\n";
  Table table({{"NODE"}, {"STATE"}, {"RAILS"}, {"BOOT ID"}, {"RAIL ADDRESSES"}, {"WHY"}});
  for (const auto& peer : peers.peers()) {
    std::string rails;
    bool all_up = true, fault = false;
    for (int i = 0; i < peer.rails_up_size(); ++i) {
      const Cell path = PathStateCell(peer, i);
      all_up = all_up && path.mark == Mark::kGood;
      fault = fault || (path.mark != Mark::kGood && path.text != kDrainedByPeer);
      absl::StrAppend(&rails, rails.empty() ? "" : " ", i, ":", path.text);
    }
    const Cell state = !peer.up() ? Cell("DOWN", Mark::kBad)
                       : fault    ? Cell("DEGRADED", Mark::kWarn)
                                  : Cell("up", Mark::kGood);
    table.AddRow({peer.node(), state, Cell(rails, all_up ? Mark::kNone : Mark::kWarn),
                  peer.boot_id() == 0 ? "-" : FormatId(peer.boot_id()), absl::StrJoin(peer.rail_addresses(), " "),
                  Cell(peer.why().empty() && !peer.dial_failure().empty()
                           ? absl::StrCat("the last dial failed: ", peer.dial_failure())
                           : peer.why(),
                       Mark::kWarn)});
  }
  return table.Render(color);
}

std::string RenderJobs(const v1::ListJobsResponse& jobs, bool color) {
  std::string out = jobs.active_size() == 0 ? "no active jobs\n" : JobTable(jobs.active(), color);
  if (jobs.finished_size() > 0) absl::StrAppend(&out, "\nfinished, latest first\n", JobTable(jobs.finished(), color));
  return out;
}

}  // namespace rails::ctl
