// Pinned memory that the daemon shares, in buffers: each has room for one slice in each direction.
#ifndef RAILS_CLIENT_CUDA_SLOTS_H_
#define RAILS_CLIENT_CUDA_SLOTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cuda/open_device.h"
#include "client/cuda/slices.h"
#include "rails/client.h"

namespace rails::cuda {

// Used by one thread.
class Buffers {
 public:
  // Allocates and pins. `bytes`: of one direction of a buffer. RESOURCE_EXHAUSTED: memory, or the daemon's quota.
  static absl::StatusOr<std::unique_ptr<Buffers>> Make(Client& client, std::shared_ptr<OpenDevice> device,
                                                       uint64_t bytes, uint32_t count);
  // No copy of the device uses a buffer any more. A job of the daemon may, which holds the segment.
  ~Buffers();

  bool full() const { return free_.empty(); }
  // Not while full().
  uint32_t Take();
  void Give(uint32_t buffer) { free_.push_back(buffer); }
  BufferSpan Send(uint32_t buffer) const { return {segment_, buffer * 2 * bytes_}; }
  BufferSpan Receive(uint32_t buffer) const { return {segment_, (buffer * 2 + 1) * bytes_}; }

 private:
  Buffers(std::shared_ptr<OpenDevice> device, std::shared_ptr<Segment> segment, uint64_t bytes, uint32_t count);

  const std::shared_ptr<OpenDevice> device_;
  const std::shared_ptr<Segment> segment_;
  const uint64_t bytes_;
  std::vector<uint32_t> free_;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_SLOTS_H_
