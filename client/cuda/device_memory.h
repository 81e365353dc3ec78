// Memory of a device: allocated here, or named by the caller.
#ifndef RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_
#define RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "rails/cuda.h"

namespace rails::cuda {

// Immutable.
class DeviceMemory final : public Memory {
 public:
  // `device` identifies the device. `free`, if any, gives the memory back at the end.
  DeviceMemory(const void* device, Address address, uint64_t length_bytes, std::function<void()> free)
      : device_(device), address_(address), length_bytes_(length_bytes), free_(std::move(free)) {}
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
