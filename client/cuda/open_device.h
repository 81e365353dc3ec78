// One opened device: driver, primary context, and what is made of them.
#ifndef RAILS_CLIENT_CUDA_OPEN_DEVICE_H_
#define RAILS_CLIENT_CUDA_OPEN_DEVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cuda/driver.h"
#include "client/cuda/wait_words.h"
#include "client/src/owner_process.h"
#include "rails/cuda.h"

namespace rails::cuda {

// Holds the device's primary context. Immutable but for the words; any thread. In a forked child the driver does not
// work, so nothing there may call it, not even to give something back.
class OpenDevice {
 public:
  static absl::StatusOr<std::shared_ptr<OpenDevice>> Open(const DeviceOptions& options);
  OpenDevice(std::shared_ptr<const Driver> driver, DeviceNumber number, Context context)
      : driver_(std::move(driver)), number_(number), context_(context) {}
  ~OpenDevice() {
    if (owner_.IsThis()) driver_->cuDevicePrimaryCtxRelease_v2(number_);
  }
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;

  const internal::OwnerProcess& owner() const { return owner_; }
  const Driver& driver() const { return *driver_; }
  Context context() const { return context_; }
  DeviceNumber number() const { return number_; }
  const Capabilities& capabilities() const { return capabilities_; }
  // RESOURCE_EXHAUSTED: the device has not enough. `what`: for errors. Free() waits for work of the device.
  absl::StatusOr<Address> Allocate(uint64_t bytes, absl::string_view what) const;
  void Free(Address address) const;
  // Null without Capabilities::stream_waits.
  WaitWords* words() const { return words_.get(); }

 private:
  void LookAtCapabilities(bool stream_waits);

  const internal::OwnerProcess owner_{};
  const std::shared_ptr<const Driver> driver_;
  const DeviceNumber number_;
  const Context context_;
  Capabilities capabilities_;
  std::unique_ptr<WaitWords> words_;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_OPEN_DEVICE_H_
