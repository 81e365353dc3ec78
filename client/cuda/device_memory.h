// Memory of a device: allocated here, or named by the caller.
#ifndef RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_
#define RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/cuda/open_device.h"
#include "rails/cuda.h"

namespace rails::cuda {

// Immutable.
class DeviceMemory final : public Memory {
 public:
  // `device` identifies the device. `free`, if any, gives the memory back at the end.
  DeviceMemory(const void* device, Address address, uint64_t length_bytes, std::function<void()> free)
      : device_(device), address_(address), length_bytes_(length_bytes), free_(std::move(free)) {}
  // RESOURCE_EXHAUSTED: the device has not enough.
  static absl::StatusOr<std::shared_ptr<DeviceMemory>> Allocate(const std::shared_ptr<OpenDevice>& device,
                                                                uint64_t length_bytes) {
    const Driver& driver = device->driver();
    const InContext here(driver, device->context());
    Address address = 0;
    if (absl::Status status = driver.Check(driver.cuMemAlloc_v2(&address, length_bytes), "cuMemAlloc"); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("allocating ", length_bytes, " bytes of the device: ", status.message()));
    }
    return std::make_shared<DeviceMemory>(device.get(), address, length_bytes, [device, address] {
      const InContext in(device->driver(), device->context());
      device->driver().cuMemFree_v2(address);
    });
  }
  ~DeviceMemory() override {
    if (free_ != nullptr) free_();
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  absl::Span<std::byte> bytes() const override { return {}; }
  uint32_t id() const override { return 0; }
  Address address() const override { return address_; }
  uint64_t length_bytes() const override { return length_bytes_; }
  const void* device() const { return device_; }

 private:
  const void* const device_;
  const Address address_;
  const uint64_t length_bytes_;
  const std::function<void()> free_;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_
