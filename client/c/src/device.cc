// Devices and their memory.
#include <memory>
#include <utility>

#include "client/c/src/error.h"
#include "client/c/src/handles.h"
#include "client/c/src/options.h"

namespace rails::c {
namespace {

absl::Status OpenDevice(rails_client* client, const rails_device_options* given, rails_device** device) {
  if (absl::Status status = Require(client, "client"); !status.ok()) return status;
  if (absl::Status status = Require(device, "device"); !status.ok()) return status;
  const absl::StatusOr<rails_device_options> read = Read(given, "options");
  if (!read.ok()) return read.status();
  if ((read->flags & ~(RAILS_DEVICE_STAGED | RAILS_DEVICE_BLOCKING)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("options->flags ", read->flags, " has an unknown bit"));
  }
  cuda::DeviceOptions options{.ordinal = read->ordinal};
  options.dma_buf = (read->flags & RAILS_DEVICE_STAGED) == 0;
  options.stream_waits = (read->flags & RAILS_DEVICE_BLOCKING) == 0;
  options.driver = Text(read->driver, options.driver.c_str());
  absl::StatusOr<std::shared_ptr<cuda::Device>> opened = cuda::Device::Open(*client->client, std::move(options));
  if (!opened.ok()) return opened.status();
  *device = new rails_device{*std::move(opened), client->ends};
  return absl::OkStatus();
}

absl::Status Give(absl::StatusOr<std::shared_ptr<cuda::Memory>> made, rails_segment** segment) {
  if (!made.ok()) return made.status();
  *segment = new rails_segment{*std::move(made)};
  return absl::OkStatus();
}

}  // namespace
}  // namespace rails::c

using rails::c::Guard;
using rails::c::Require;

rails_error* rails_device_open(rails_client* client, const rails_device_options* options, rails_device** device) {
  return Guard([&] { return rails::c::OpenDevice(client, options, device); });
}

const char* rails_device_name(const rails_device* device) { return device->device->capabilities().device.c_str(); }

const char* rails_device_blocks(const rails_device* device) {
  const rails::cuda::Capability& waits = device->device->capabilities().stream_waits;
  return waits.present ? nullptr : waits.reason.c_str();
}

const char* rails_device_staged(const rails_device* device) {
  const rails::cuda::Capability& dma_buf = device->device->capabilities().dma_buf;
  return dma_buf.present ? nullptr : dma_buf.reason.c_str();
}

rails_error* rails_device_alloc(rails_device* device, uint64_t length_bytes, rails_segment** segment) {
  return Guard([&] {
    if (absl::Status status = Require(device, "device"); !status.ok()) return status;
    if (absl::Status status = Require(segment, "segment"); !status.ok()) return status;
    return rails::c::Give(device->device->Allocate(length_bytes), segment);
  });
}

rails_error* rails_device_import(rails_device* device, uint64_t address, uint64_t length_bytes,
                                 rails_segment** segment) {
  return Guard([&] {
    if (absl::Status status = Require(device, "device"); !status.ok()) return status;
    if (absl::Status status = Require(segment, "segment"); !status.ok()) return status;
    return rails::c::Give(device->device->Import(address, length_bytes), segment);
  });
}

uint64_t rails_device_address(const rails_segment* segment) {
  const auto* const memory = dynamic_cast<const rails::cuda::Memory*>(segment->segment.get());
  return memory != nullptr ? memory->address() : 0;
}

void rails_device_free(rails_device* device) { delete device; }
