// Memory of the device that a group's worker may neither allocate nor free: both may wait for the whole device, on
// which streams wait for the worker.
#ifndef RAILS_CLIENT_CUDA_SCRATCH_H_
#define RAILS_CLIENT_CUDA_SCRATCH_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cuda/device_memory.h"
#include "client/cuda/open_device.h"

namespace rails::cuda {

// For all groups of a device. Thread-safe.
class Scratch {
 public:
  using Held = std::vector<std::shared_ptr<DeviceMemory>>;
  explicit Scratch(std::shared_ptr<OpenDevice> device) : device_(std::move(device)) {}

  // At least `bytes`, for bytes that are gathered before ranks of the same node read them. Such memory is freed only at
  // the end, because other processes may have it open. Called by threads that submit.
  absl::StatusOr<std::shared_ptr<DeviceMemory>> Take(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      const auto fits =
          std::find_if(free_.begin(), free_.end(), [&](const auto& m) { return m->length_bytes() >= bytes; });
      if (fits != free_.end()) {
        std::shared_ptr<DeviceMemory> memory = std::move(*fits);
        free_.erase(fits);
        return memory;
      }
    }
    const uint64_t length_bytes = std::bit_ceil(std::max<uint64_t>(bytes, 4096));
    const absl::StatusOr<Address> address = device_->Allocate(length_bytes, "memory for a rank of this node");
    if (!address.ok()) return address.status();
    return std::make_shared<DeviceMemory>(device_.get(), *address, length_bytes,
                                          [device = device_, at = *address] { device->Free(at); });
  }
  void Give(Held memory) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (auto& one : memory) free_.push_back(std::move(one));
  }
  // Keeps the memory of an ended job, whose last reference this may be, until Release(), which threads that submit
  // call.
  void Keep(AllToAllv ended) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    kept_.push_back(std::move(ended));
  }
  void Release() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<AllToAllv> dropped;  // outlives the lock
    absl::MutexLock lock(&mutex_);
    dropped.swap(kept_);
  }

 private:
  const std::shared_ptr<OpenDevice> device_;
  absl::Mutex mutex_;
  Held free_ ABSL_GUARDED_BY(mutex_);
  std::vector<AllToAllv> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_SCRATCH_H_
