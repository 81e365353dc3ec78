// Memory of one device: allocating it, and giving it to the daemon as dma-bufs.
#ifndef RAILS_CLIENT_CUDA_ALLOCATIONS_H_
#define RAILS_CLIENT_CUDA_ALLOCATIONS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cuda/device_memory.h"
#include "client/cuda/open_device.h"
#include "rails/client.h"

namespace rails::cuda {

// Thread-safe.
class Allocations {
 public:
  Allocations(Client* client, std::shared_ptr<OpenDevice> device) : client_(*client), device_(std::move(device)) {}

  // Finds out, with a small allocation, whether the daemon takes memory of the device. OK, or why it does not.
  absl::Status Try() ABSL_LOCKS_EXCLUDED(mutex_);
  // Without Share(), all memory is staged, for the reason `why_not`.
  void Stage(std::string why_not) ABSL_LOCKS_EXCLUDED(mutex_);

  // RESOURCE_EXHAUSTED: the device has not enough.
  absl::StatusOr<std::shared_ptr<DeviceMemory>> Allocate(uint64_t length_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // INVALID_ARGUMENT: the bytes are not all in one allocation of this device.
  absl::StatusOr<std::shared_ptr<DeviceMemory>> Import(Address address, uint64_t length_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // An allocation that the daemon has, while memory of it is in use.
  struct Shared {
    uint64_t buffer_id = 0;  // the driver's number of the allocation: its address may have another one later
    std::weak_ptr<Segment> segment{};
  };

  // `keep`: the allocation stays registered for a while when nothing uses it.
  SharedAllocation Share(Address base, uint64_t bytes, bool keep) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<Segment>> Export(Address base, uint64_t bytes);

  Client& client_;
  const std::shared_ptr<OpenDevice> device_;
  absl::Mutex mutex_;  // held while an allocation is registered, which then is registered once
  std::string why_not_ ABSL_GUARDED_BY(mutex_);
  std::map<Address, Shared> shared_ ABSL_GUARDED_BY(mutex_);  // by base
  // The last ones that were imported stay registered: doing it again for each job would take milliseconds.
  std::deque<std::shared_ptr<Segment>> recent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_ALLOCATIONS_H_
