#include "absl/strings/str_cat.h"
#include "sim/network/packet.h"

namespace railsd::sim {

absl::Status CheckPacketOptions(const PacketOptions& options) {
  constexpr uint32_t kMostPacketBytes = 1 << 20;
  constexpr uint64_t kMostQueueBytes = uint64_t{1} << 40;
  if (options.packet_bytes == 0 || options.packet_bytes > kMostPacketBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("packet.packet_bytes is ", options.packet_bytes, "; give 1 to ", kMostPacketBytes));
  }
  if (options.queue_bytes < 2 * uint64_t{options.packet_bytes} || options.queue_bytes > kMostQueueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("packet.queue_bytes is ", options.queue_bytes,
                                                   "; give two packets or more (", 2 * options.packet_bytes, " to ",
                                                   kMostQueueBytes, ")"));
  }
  if (options.queue_mode == QueueMode::kEcn && options.mark_bytes > options.queue_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("packet.mark_bytes is ", options.mark_bytes,
                                                   ", more than packet.queue_bytes ", options.queue_bytes));
  }
  return absl::OkStatus();
}

}  // namespace railsd::sim
