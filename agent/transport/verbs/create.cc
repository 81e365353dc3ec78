// Opens the device and cuts the configured sizes to the device's limits.
#include <sys/epoll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs/verbs_rail.h"
#include "agent/transport/verbs/verbs_transport.h"

namespace railsd {
namespace {

constexpr size_t kMaxNodeBytes = 255;
constexpr uint32_t kMaxInlineBytes = 1024;

absl::Status CheckOptions(const std::string& who, const VerbsOptions& options) {
  const VerbsTuning& tuning = options.tuning;
  const auto wrong = [&](const std::string& what) { return absl::InvalidArgumentError(absl::StrCat(who, ": ", what)); };
  if (options.node.empty() || options.node.size() > kMaxNodeBytes) {
    return wrong(absl::StrCat("node name '", options.node, "' must have 1 to ", kMaxNodeBytes, " bytes"));
  }
  if (options.zones == nullptr) return wrong("there is no table of zones");
  if (options.max_posted_orders == 0 || options.max_receive_events == 0) {
    return wrong("max_posted_orders and max_receive_events must be positive");
  }
  if (tuning.queue_pairs_per_peer == 0 || tuning.queue_pairs_per_peer > verbs::kMaxQueuePairsPerPeer) {
    return wrong(absl::StrCat("queue_pairs_per_peer ", tuning.queue_pairs_per_peer, " is not 1 to ",
                              verbs::kMaxQueuePairsPerPeer));
  }
  if (tuning.send_queue_depth == 0 || tuning.fence_queue_depth == 0) {
    return wrong("send_queue_depth and fence_queue_depth must be positive");
  }
  if (tuning.retry_count > 6) {
    return wrong(absl::StrCat("retry_count ", int{tuning.retry_count},
                              " is not 0 to 6: with 7 a dead peer is never reported by some devices"));
  }
  if (tuning.timeout == 0 || tuning.timeout > 31) {
    return wrong(absl::StrCat("timeout ", int{tuning.timeout}, " is not 1 to 31"));
  }
  if (tuning.service_level > 15) {
    return wrong(absl::StrCat("service_level ", int{tuning.service_level}, " is not 0 to 15"));
  }
  return absl::OkStatus();
}

void Clamp(uint32_t* value, int64_t most, const std::string& what, std::string* said) {
  const auto limit = static_cast<uint32_t>(std::clamp<int64_t>(most, 1, UINT32_MAX));
  if (*value <= limit) return;
  absl::StrAppend(said, said->empty() ? "" : ", ", what, " ", *value, " to ", limit);
  *value = limit;
}

// Cuts the tuning to the device's limits and says in `*said` what was cut.
absl::Status ClampToDevice(const verbs::RdmaDevice& device, VerbsTuning* tuning, std::string* said) {
  const ibv_device_attr& attributes = device.attributes();
  Clamp(&tuning->send_queue_depth, attributes.max_qp_wr - 1, "send_queue_depth", said);
  Clamp(&tuning->fence_queue_depth, attributes.max_srq_wr, "fence_queue_depth", said);
  Clamp(&tuning->completion_queue_depth, attributes.max_cqe, "completion_queue_depth", said);
  Clamp(&tuning->inline_bytes, kMaxInlineBytes, "inline_bytes", said);
  // Fences take at most half of the completion queue, so that sends have room.
  Clamp(&tuning->fence_queue_depth, tuning->completion_queue_depth / 2, "fence_queue_depth", said);
  if (tuning->completion_queue_depth < tuning->fence_queue_depth + 2) {
    return absl::InvalidArgumentError(absl::StrCat(device.who(), ": completion_queue_depth ",
                                                   tuning->completion_queue_depth, " leaves no room for sends"));
  }
  return absl::OkStatus();
}

// Finds the bytes that a queue pair takes inline: only ibv_create_qp() tells, so ask for less until it succeeds.
uint32_t InlineBytes(const verbs::RdmaDevice& device, uint32_t wanted) {
  const verbs::CompletionQueueHandle queue(ibv_create_cq(device.context(), 2, nullptr, nullptr, 0));
  for (; queue != nullptr && wanted > 0; wanted /= 2) {
    ibv_qp_init_attr make{};
    make.send_cq = make.recv_cq = queue.get();
    make.qp_type = IBV_QPT_RC;
    make.cap.max_send_wr = make.cap.max_recv_wr = 1;
    make.cap.max_send_sge = make.cap.max_recv_sge = 1;
    make.cap.max_inline_data = wanted;
    const verbs::QueuePairHandle pair(ibv_create_qp(device.domain(), &make));
    if (pair != nullptr) return wanted;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RailTransport>> CreateVerbsTransport(VerbsOptions options) {
  const std::string who = absl::StrCat("rail ", options.rail.value());
  if (absl::Status status = CheckOptions(who, options); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<verbs::RdmaDevice>> device =
      verbs::RdmaDevice::Open(who, options.device, options.tuning.gid_index);
  if (!device.ok()) return device.status();
  const auto notice = [&](const std::string& text) {
    if (options.on_notice) options.on_notice(absl::StrCat((*device)->who(), ": ", text));
  };
  if (absl::StatusOr<verbs::RdmaDevice::Address> address = (*device)->Refresh(); !address.ok()) {
    // A port that is down may come up later. An active port without an address is an error of the configuration.
    if ((*device)->View().state == "active") return address.status();
    notice(std::string(address.status().message()));
  }
  std::string said;
  if (absl::Status cut = ClampToDevice(**device, &options.tuning, &said); !cut.ok()) return cut;
  const uint32_t inline_bytes = InlineBytes(**device, options.tuning.inline_bytes);
  Clamp(&options.tuning.inline_bytes, inline_bytes, "inline_bytes", &said);
  if (inline_bytes == 0) options.tuning.inline_bytes = 0;
  if (!said.empty()) notice(absl::StrCat("cut to what the device has: ", said));
  if (!(*device)->has_windows() || options.tuning.max_windows == 0) {
    notice("no memory windows of type 2B: zones are weak, their key opens the whole segment to the sending node");
  }
  absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
  if (!wake.ok()) return absl::Status(wake.status().code(), absl::StrCat(who, ": ", wake.status().message()));
  auto rail = std::make_unique<verbs::VerbsRail>(std::move(options), *std::move(device), *std::move(wake));
  if (absl::Status status = rail->Init(); !status.ok()) return status;
  return rail;
}

bool HasVerbs() { return true; }

std::vector<verbs::RdmaPort> DiscoverRdmaPorts() {
  std::vector<verbs::RdmaPort> ports = verbs::ReadRdmaPorts("/sys/class/infiniband", /*with_gids=*/false);
  int count = 0;
  const std::unique_ptr<ibv_device*[], verbs::Destroyer<&ibv_free_device_list>> list(ibv_get_device_list(&count));
  for (int i = 0; list != nullptr && i < count; ++i) {
    ibv_device* const device = list[static_cast<size_t>(i)];
    const verbs::ContextHandle context(ibv_open_device(device));
    if (context == nullptr) continue;
    for (verbs::RdmaPort& port : ports) {
      ibv_port_attr attributes{};
      if (port.device != ibv_get_device_name(device)) continue;
      if (ibv_query_port(context.get(), port.port, &attributes) != 0) continue;
      port.mtu_bytes = verbs::MtuBytes(attributes.active_mtu);
      port.gids = verbs::QueryGids(context.get(), port.port);
    }
  }
  return ports;
}

}  // namespace railsd
