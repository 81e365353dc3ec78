#include "agent/engine/create_transport.h"

#include <spdlog/logger.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/base/log_value.h"
#include "agent/transport/tcp/kernel_tls.h"
#include "agent/transport/tcp/tcp_transport.h"
#include "agent/transport/verbs/verbs_transport.h"

namespace railsd {
namespace {

std::function<void(const std::string&)> LogNotices(const AgentOptions& options, RailIndex rail) {
  return [log = options.log, name = options.rails[rail.value()].name](const std::string& notice) {
    log->info("rail_notice rail={} text={}", name, LogValue(notice));
  };
}

absl::StatusOr<std::unique_ptr<RailTransport>> CreateTcp(const AgentOptions& options, RailIndex rail,
                                                         size_t max_posted_orders, ZoneTable* zones) {
  const RailSpec& spec = options.rails[rail.value()];
  if (options.tls_data) {
    if (absl::Status status = tcp::CheckKernelTls(); !status.ok()) return status;
  }
  TcpOptions tcp;
  tcp.rail = rail;
  tcp.node = options.node;
  tcp.boot = options.boot;
  tcp.listen_address = spec.address;
  tcp.interface = spec.interface;
  tcp.speed_bytes_per_s = spec.speed_bytes_per_s;
  tcp.frame_bytes = options.frame_bytes;
  tcp.max_posted_orders = max_posted_orders;
  tcp.stall = options.health.stall;
  tcp.max_half_open = options.limits.max_half_open;
  tcp.handshake_time = options.rail_handshake;
  tcp.refused = options.refused;
  tcp.tls = options.tls_data;
  tcp.zones = zones;
  tcp.on_notice = LogNotices(options, rail);
  return CreateTcpTransport(std::move(tcp));
}

absl::StatusOr<std::unique_ptr<RailTransport>> CreateVerbs(const AgentOptions& options, RailIndex rail,
                                                           size_t max_posted_orders, ZoneTable* zones,
                                                           SignalSink* signals) {
  if (options.tls_data) {
    return absl::InvalidArgumentError(absl::StrCat("tls.data: kernel is for rails over TCP, and rail ", rail.value(),
                                                   " is over RDMA verbs; set tls.data: off"));
  }
  VerbsOptions verbs;
  verbs.rail = rail;
  verbs.node = options.node;
  verbs.boot = options.boot;
  verbs.device = options.rails[rail.value()].device;
  verbs.tuning = options.verbs;
  verbs.max_posted_orders = max_posted_orders;
  verbs.signals = signals;
  verbs.zones = zones;
  verbs.on_notice = LogNotices(options, rail);
  return CreateVerbsTransport(std::move(verbs));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RailTransport>> CreateTransport(const AgentOptions& options, RailIndex rail,
                                                               size_t max_posted_orders, ZoneTable* zones,
                                                               SignalSink* signals) {
  switch (options.rails[rail.value()].kind) {
    case RailKind::kTcp:
      return CreateTcp(options, rail, max_posted_orders, zones);
    case RailKind::kVerbs:
      return CreateVerbs(options, rail, max_posted_orders, zones, signals);
  }
  return absl::InternalError("a rail of an unknown kind");
}

}  // namespace railsd
