#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cuda/device_memory.h"
#include "client/cuda/group.h"
#include "client/cuda/open_device.h"
#include "rails/cuda.h"

namespace rails::cuda {
namespace {

class DeviceHandle final : public Device {
 public:
  DeviceHandle(Client* client, std::shared_ptr<OpenDevice> device) : client_(*client), device_(std::move(device)) {}

  const Capabilities& capabilities() const override { return device_->capabilities(); }

  absl::StatusOr<std::shared_ptr<Memory>> Allocate(uint64_t length_bytes) override {
    if (absl::Status status = device_->owner().Check(); !status.ok()) return status;
    if (length_bytes == 0) return absl::InvalidArgumentError("length_bytes is 0; it must be positive");
    const Driver& driver = device_->driver();
    const InContext here(driver, device_->context());
    Address address = 0;
    if (absl::Status status = driver.Check(driver.cuMemAlloc_v2(&address, length_bytes), "cuMemAlloc"); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("allocating ", length_bytes, " bytes of the device: ", status.message()));
    }
    return std::make_shared<DeviceMemory>(device_.get(), address, length_bytes, [device = device_, address] {
      if (!device->owner().IsThis()) return;
      const InContext in(device->driver(), device->context());
      device->driver().cuMemFree_v2(address);
    });
  }

  absl::StatusOr<std::shared_ptr<Memory>> Import(Address address, uint64_t length_bytes) override {
    if (absl::Status status = device_->owner().Check(); !status.ok()) return status;
    const Driver& driver = device_->driver();
    const InContext here(driver, device_->context());
    Address base = 0;
    size_t bytes = 0;
    if (driver.cuMemGetAddressRange_v2(&base, &bytes, address) != kSuccess) {
      return absl::InvalidArgumentError(absl::StrCat("address 0x", absl::Hex(address),
                                                     " is no memory of this device: name a range that was allocated "
                                                     "there (cudaMalloc(), a tensor's data_ptr())"));
    }
    const uint64_t offset = address - base;
    if (length_bytes == 0 || length_bytes > bytes - offset) {
      return absl::InvalidArgumentError(absl::StrCat("length_bytes ", length_bytes, " at address 0x",
                                                     absl::Hex(address), ": its allocation has ", bytes - offset,
                                                     " bytes from there on"));
    }
    return std::make_shared<DeviceMemory>(device_.get(), address, length_bytes, nullptr);
  }

  absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options, Staging staging) override {
    if (absl::Status status = device_->owner().Check(); !status.ok()) return status;
    return GroupHandle::Join(client_, device_, std::move(options), staging);
  }

 private:
  Client& client_;
  const std::shared_ptr<OpenDevice> device_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> Device::Open(Client& client, DeviceOptions options) {
  absl::StatusOr<std::shared_ptr<OpenDevice>> device = OpenDevice::Open(options);
  if (!device.ok()) return device.status();
  return std::make_shared<DeviceHandle>(&client, *std::move(device));
}

}  // namespace rails::cuda
