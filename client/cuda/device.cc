#include <utility>

#include "client/cuda/allocations.h"
#include "client/cuda/group.h"
#include "client/cuda/open_device.h"
#include "rails/cuda.h"

namespace rails::cuda {
namespace {

class DeviceHandle final : public Device {
 public:
  DeviceHandle(Client* client, std::shared_ptr<OpenDevice> device, bool dma_buf)
      : client_(*client),
        device_(std::move(device)),
        scratch_(std::make_shared<Scratch>(device_)),
        allocations_(client, device_),
        capabilities_(device_->capabilities()) {
    const absl::Status status =
        dma_buf ? allocations_.Try() : absl::UnimplementedError("DeviceOptions::dma_buf is false");
    if (status.ok()) return;
    capabilities_.dma_buf = {false, std::string(status.message())};
    allocations_.Stage(capabilities_.dma_buf.reason);
  }

  const Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<std::shared_ptr<Memory>> Allocate(uint64_t length_bytes) override {
    if (absl::Status status = device_->owner().Check(); !status.ok()) return status;
    return allocations_.Allocate(length_bytes);
  }
  absl::StatusOr<std::shared_ptr<Memory>> Import(Address address, uint64_t length_bytes) override {
    if (absl::Status status = device_->owner().Check(); !status.ok()) return status;
    return allocations_.Import(address, length_bytes);
  }
  absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options, Staging staging) override {
    if (absl::Status status = device_->owner().Check(); !status.ok()) return status;
    return GroupHandle::Join(client_, device_, scratch_, std::move(options), staging);
  }

 private:
  Client& client_;
  const std::shared_ptr<OpenDevice> device_;
  const std::shared_ptr<Scratch> scratch_;
  Allocations allocations_;
  Capabilities capabilities_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> Device::Open(Client& client, DeviceOptions options) {
  absl::StatusOr<std::shared_ptr<OpenDevice>> device = OpenDevice::Open(options);
  if (!device.ok()) return device.status();
  return std::make_shared<DeviceHandle>(&client, *std::move(device), options.dma_buf);
}

}  // namespace rails::cuda
