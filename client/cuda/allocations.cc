#include "client/cuda/allocations.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/unique_fd.h"

namespace rails::cuda {
namespace {

constexpr size_t kRecent = 16;
constexpr uint64_t kTrialBytes = 2 << 20;  // a whole page of the device

}  // namespace

absl::Status Allocations::Try() {
  const Driver& driver = device_->driver();
  const InContext here(driver, device_->context());
  if (!device_->capabilities().dma_buf.present) {
    return absl::UnimplementedError(device_->capabilities().dma_buf.reason);
  }
  int ordering = 0, flushes = 0;
  driver.cuDeviceGetAttribute(&ordering, kRdmaWritesOrdering, device_->number());
  driver.cuDeviceGetAttribute(&flushes, kRdmaFlushOptions, device_->number());
  if (ordering < kFlushToOwner && ((flushes & 1) == 0 || driver.cuFlushGPUDirectRDMAWrites == nullptr)) {
    return absl::UnimplementedError("the device cannot flush the writes of other devices into its memory");
  }
  Address base = 0;
  absl::Status status = driver.Check(driver.cuMemAlloc_v2(&base, kTrialBytes), "cuMemAlloc");
  if (!status.ok()) return status;
  status = Export(base, kTrialBytes).status();
  driver.cuMemFree_v2(base);
  return status;
}

void Allocations::Stage(std::string why_not) {
  absl::MutexLock lock(&mutex_);
  why_not_ = std::move(why_not);
}

absl::StatusOr<std::shared_ptr<DeviceMemory>> Allocations::Allocate(uint64_t length_bytes) {
  if (length_bytes == 0) return absl::InvalidArgumentError("length_bytes is 0; it must be positive");
  const absl::StatusOr<Address> address = device_->Allocate(length_bytes, "memory of the device");
  if (!address.ok()) return address.status();
  const InContext here(device_->driver(), device_->context());
  return std::make_shared<DeviceMemory>(
      device_.get(), *address, length_bytes, [device = device_, at = *address] { device->Free(at); },
      Share(*address, length_bytes, /*keep=*/false));
}

absl::StatusOr<std::shared_ptr<DeviceMemory>> Allocations::Import(Address address, uint64_t length_bytes) {
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
  if (length_bytes == 0) return absl::InvalidArgumentError("length_bytes is 0; it must be positive");
  if (length_bytes > bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat("length_bytes ", length_bytes, " at address 0x", absl::Hex(address),
                                                   ": its allocation has ", bytes - offset, " bytes from there on"));
  }
  return std::make_shared<DeviceMemory>(device_.get(), address, length_bytes, nullptr,
                                        Share(base, bytes, /*keep=*/true));
}

SharedAllocation Allocations::Share(Address base, uint64_t bytes, bool keep) {
  absl::MutexLock lock(&mutex_);
  if (!why_not_.empty()) return {nullptr, 0, why_not_};
  const Driver& driver = device_->driver();
  uint64_t buffer_id = 0;
  absl::Status status =
      driver.Check(driver.cuPointerGetAttribute(&buffer_id, kPointerBufferId, base), "cuPointerGetAttribute");
  if (!status.ok()) return {nullptr, 0, std::string(status.message())};
  std::erase_if(shared_, [](const auto& one) { return one.second.segment.expired(); });
  if (const auto found = shared_.find(base); found != shared_.end() && found->second.buffer_id == buffer_id) {
    if (std::shared_ptr<Segment> segment = found->second.segment.lock()) return {std::move(segment), base, ""};
  } else if (found != shared_.end()) {
    std::erase(recent_, found->second.segment.lock());  // its memory was freed
  }
  absl::StatusOr<std::shared_ptr<Segment>> segment = Export(base, bytes);
  if (!segment.ok()) return {nullptr, 0, std::string(segment.status().message())};
  shared_[base] = {buffer_id, *segment};
  if (keep) recent_.push_back(*segment);
  if (recent_.size() > kRecent) recent_.pop_front();
  return {*std::move(segment), base, ""};
}

absl::StatusOr<std::shared_ptr<Segment>> Allocations::Export(Address base, uint64_t bytes) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (base % page != 0) {
    return absl::UnimplementedError(absl::StrCat("its allocation at 0x", absl::Hex(base),
                                                 " does not begin at a page, so it cannot be exported: allocate more "
                                                 "at once"));
  }
  const uint64_t whole = (bytes + page - 1) / page * page;
  const Driver& driver = device_->driver();
  int fd = -1;
  absl::Status status = driver.Check(driver.cuMemGetHandleForAddressRange(&fd, base, whole, kAddressRangeDmaBuf, 0),
                                     "cuMemGetHandleForAddressRange");
  if (!status.ok()) return status;
  const internal::UniqueFd owned(fd);
  return client_.ImportSegment(fd, bytes);
}

}  // namespace rails::cuda
