#include "client/cuda/buffers.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::cuda {

absl::StatusOr<std::unique_ptr<Buffers>> Buffers::Make(Client& client, std::shared_ptr<OpenDevice> device,
                                                       uint64_t bytes, uint32_t count) {
  bytes = (bytes + 4095) / 4096 * 4096;
  absl::StatusOr<std::shared_ptr<Segment>> segment =
      client.CreateSegment(bytes * 2 * count, {.name = "rails-cuda-staging"});
  if (!segment.ok()) {
    return absl::Status(segment.status().code(),
                        absl::StrCat("staging of ", count, " slices: ", segment.status().message()));
  }
  const absl::Span<std::byte> memory = (*segment)->bytes();
  const InContext here(device->driver(), device->context());
  const absl::Status status = device->driver().Check(
      device->driver().cuMemHostRegister_v2(memory.data(), memory.size(), kHostRegisterPortable), "cuMemHostRegister");
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("pinning ", memory.size(), " bytes for staging: ", status.message()));
  }
  return std::unique_ptr<Buffers>(new Buffers(std::move(device), *std::move(segment), bytes, count));
}

Buffers::Buffers(std::shared_ptr<OpenDevice> device, std::shared_ptr<Segment> segment, uint64_t bytes, uint32_t count)
    : device_(std::move(device)), segment_(std::move(segment)), bytes_(bytes) {
  for (uint32_t buffer = count; buffer > 0; --buffer) free_.push_back(buffer - 1);
}

Buffers::~Buffers() {
  const InContext here(device_->driver(), device_->context());
  device_->driver().cuMemHostUnregister(segment_->bytes().data());
}

uint32_t Buffers::Take() {
  const uint32_t buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace rails::cuda
