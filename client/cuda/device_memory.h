// Memory of a device: allocated here, or named by the caller.
#ifndef RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_
#define RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "rails/cuda.h"

namespace rails::cuda {

// An allocation that the daemon has as a dma-buf.
struct SharedAllocation {
  std::shared_ptr<Segment> segment{};  // null: it has not
  Address base = 0;                    // of the segment's first byte
  std::string why_not{};
};

// Immutable.
class DeviceMemory final : public Memory {
 public:
  // `device` identifies the device. `free`, if any, gives the memory back at the end. `shared`: the segment that has
  // it.
  DeviceMemory(const void* device, Address address, uint64_t length_bytes, std::function<void()> free,
               SharedAllocation shared = {})
      : device_(device),
        address_(address),
        length_bytes_(length_bytes),
        free_(std::move(free)),
        shared_(std::move(shared)) {}
  ~DeviceMemory() override {
    if (free_ != nullptr) free_();
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  absl::Span<std::byte> bytes() const override { return {}; }
  uint32_t id() const override { return 0; }
  Address address() const override { return address_; }
  uint64_t length_bytes() const override { return length_bytes_; }
  const std::string& staged_because() const override { return shared_.why_not; }
  const void* device() const { return device_; }
  // Bytes of it, as the daemon reaches them. Without a segment: it does not.
  Range Shared(uint64_t offset_bytes, uint64_t length_bytes) const {
    if (shared_.segment == nullptr) return {};
    return {shared_.segment, address_ + offset_bytes - shared_.base, length_bytes};
  }

 private:
  const void* const device_;
  const Address address_;
  const uint64_t length_bytes_;
  const std::function<void()> free_;
  const SharedAllocation shared_;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_DEVICE_MEMORY_H_
