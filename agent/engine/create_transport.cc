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

}  // namespace

TransportFactory::TransportFactory(const AgentOptions& options, ZoneTable* zones) : options_(options), zones_(zones) {}
TransportFactory::~TransportFactory() = default;

absl::StatusOr<std::unique_ptr<RailTransport>> TransportFactory::Create(RailIndex rail, size_t max_posted_orders,
                                                                        SignalSink* signals) {
  switch (options_.rails[rail.value()].kind) {
    case RailKind::kTcp:
      return CreateTcp(rail, max_posted_orders);
    case RailKind::kVerbs:
      return CreateVerbs(rail, max_posted_orders, signals);
  }
  return absl::InternalError("a rail of an unknown kind");
}

absl::StatusOr<std::unique_ptr<RailTransport>> TransportFactory::CreateTcp(RailIndex rail,
                                                                           size_t max_posted_orders) const {
  const RailSpec& spec = options_.rails[rail.value()];
  if (options_.tls_data) {
    if (absl::Status status = tcp::CheckKernelTls(); !status.ok()) return status;
  }
  TcpOptions tcp;
  tcp.rail = rail;
  tcp.node = options_.node;
  tcp.boot = options_.boot;
  tcp.listen_address = spec.address;
  tcp.interface = spec.interface;
  tcp.speed_bytes_per_s = spec.speed_bytes_per_s;
  tcp.frame_bytes = options_.frame_bytes;
  tcp.max_posted_orders = max_posted_orders;
  tcp.stall = options_.health.stall;
  tcp.max_half_open = options_.limits.max_half_open;
  tcp.handshake_time = options_.rail_handshake;
  tcp.refused = options_.refused;
  tcp.tls = options_.tls_data;
  tcp.zones = zones_;
  tcp.on_notice = LogNotices(options_, rail);
  return CreateTcpTransport(std::move(tcp));
}

absl::StatusOr<std::unique_ptr<RailTransport>> TransportFactory::CreateVerbs(RailIndex rail, size_t max_posted_orders,
                                                                             SignalSink* signals) {
  if (options_.tls_data) {
    return absl::InvalidArgumentError(absl::StrCat("tls.data: kernel is for rails over TCP, and rail ", rail.value(),
                                                   " is over RDMA verbs; set tls.data: off"));
  }
  if (events_ == nullptr) {
    absl::StatusOr<std::shared_ptr<verbs::DeviceEvents>> events = CreateVerbsEventThread();
    if (!events.ok()) return events.status();
    events_ = *std::move(events);
  }
  VerbsOptions options;
  options.rail = rail;
  options.node = options_.node;
  options.boot = options_.boot;
  options.device = options_.rails[rail.value()].device;
  options.tuning = options_.verbs;
  options.max_posted_orders = max_posted_orders;
  options.signals = signals;
  options.zones = zones_;
  options.events = events_;
  options.on_notice = LogNotices(options_, rail);
  return CreateVerbsTransport(std::move(options));
}

}  // namespace railsd
