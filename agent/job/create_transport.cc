#include "agent/job/create_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/tcp_transport.h"

namespace railsd {
namespace {

absl::StatusOr<std::unique_ptr<RailTransport>> CreateTcp(const AgentOptions& options, RailIndex rail,
                                                         size_t max_posted_orders) {
  const RailSpec& spec = options.rails[rail.value()];
  TcpOptions tcp;
  tcp.rail = rail;
  tcp.node = options.node;
  tcp.boot = options.boot;
  tcp.listen_address = spec.address;
  tcp.interface = spec.interface;
  tcp.speed_bytes_per_s = spec.speed_bytes_per_s;
  tcp.frame_bytes = options.frame_bytes;
  tcp.max_posted_orders = max_posted_orders;
  tcp.on_notice = [log = options.log, name = spec.name](const std::string& notice) {
    log->info("rail_notice rail={} text=\"{}\"", name, notice);
  };
  return CreateTcpTransport(std::move(tcp));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RailTransport>> CreateTransport(const AgentOptions& options, RailIndex rail,
                                                               size_t max_posted_orders, SignalSink* /*signals*/) {
  const RailSpec& spec = options.rails[rail.value()];
  switch (spec.kind) {
    case RailKind::kTcp:
      return CreateTcp(options, rail, max_posted_orders);
    case RailKind::kVerbs:
      break;
  }
  return absl::UnimplementedError(absl::StrCat(
      "device ", spec.device, ": this railsd was built without RDMA verbs (libibverbs); use rails over TCP"));
}

}  // namespace railsd
