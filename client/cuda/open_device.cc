#include "client/cuda/open_device.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::cuda {
namespace {

// OK if a stream can wait for a word that is set already.
absl::Status TryWait(const Driver& driver, WaitWords& words) {
  Stream stream = nullptr;
  absl::Status status = driver.Check(driver.cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
  if (!status.ok()) return status;
  const WaitWords::Word word = *words.Take();
  words.Set(word);
  status = words.Wait(word, stream);
  const absl::Status ended = driver.Check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  if (status.ok()) status = ended;
  words.Give(word);
  driver.cuStreamDestroy_v2(stream);
  return status;
}

Capability DmaBuf(const Driver& driver, DeviceNumber device) {
  if (driver.cuMemGetHandleForAddressRange == nullptr) {
    return {false, "the driver has no cuMemGetHandleForAddressRange(): it needs CUDA 11.7 or later"};
  }
  int supported = 0;
  const Result result = driver.cuDeviceGetAttribute(&supported, kDmaBufSupported, device);
  if (result == kSuccess && supported != 0) return {true, ""};
  return {false,
          "the driver exports no dma-buf (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0): it needs NVIDIA's open kernel "
          "modules and Linux 5.12 or later"};
}

}  // namespace

absl::StatusOr<std::shared_ptr<OpenDevice>> OpenDevice::Open(const DeviceOptions& options) {
  absl::StatusOr<std::shared_ptr<const Driver>> driver = Driver::Open(options.driver);
  if (!driver.ok()) return driver.status();
  int count = 0;
  absl::Status status = (*driver)->Check((*driver)->cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!status.ok()) return status;
  if (options.ordinal < 0 || options.ordinal >= count) {
    return absl::NotFoundError(absl::StrCat("there is no CUDA device ", options.ordinal, ": this process sees ", count,
                                            " (CUDA_VISIBLE_DEVICES hides devices)"));
  }
  DeviceNumber number = 0;
  status = (*driver)->Check((*driver)->cuDeviceGet(&number, options.ordinal), "cuDeviceGet");
  if (!status.ok()) return status;
  Context context = nullptr;
  status = (*driver)->Check((*driver)->cuDevicePrimaryCtxRetain(&context, number), "cuDevicePrimaryCtxRetain");
  if (!status.ok()) return status;
  auto device = std::make_shared<OpenDevice>(*std::move(driver), number, context);
  device->LookAtCapabilities(options.stream_waits);
  return device;
}

absl::StatusOr<Address> OpenDevice::Allocate(uint64_t bytes, absl::string_view what) const {
  const InContext here(*driver_, context_);
  Address address = 0;
  const absl::Status status = driver_->Check(driver_->cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
  if (status.ok()) return address;
  return absl::Status(status.code(), absl::StrCat(what, " of ", bytes, " bytes: ", status.message()));
}

void OpenDevice::Free(Address address) const {
  if (!owner_.IsThis()) return;
  const InContext here(*driver_, context_);
  driver_->cuMemFree_v2(address);
}

void OpenDevice::LookAtCapabilities(bool stream_waits) {
  char name[128] = {};
  driver_->cuDeviceGetName(name, sizeof(name) - 1, number_);
  capabilities_.device = name;
  driver_->cuDriverGetVersion(&capabilities_.driver_version);
  capabilities_.dma_buf = DmaBuf(*driver_, number_);
  if (!stream_waits) {
    capabilities_.stream_waits.reason = "DeviceOptions::stream_waits is false";
    return;
  }
  const InContext here(*driver_, context_);
  absl::StatusOr<std::unique_ptr<WaitWords>> words = WaitWords::Make(*driver_);
  absl::Status status = words.status();
  // CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS is 0 on drivers that can do it by the second version of the calls, so
  // trying is the only way to know.
  if (status.ok()) status = TryWait(*driver_, **words);
  capabilities_.stream_waits = {status.ok(), std::string(status.message())};
  if (status.ok()) words_ = *std::move(words);
}

}  // namespace rails::cuda
