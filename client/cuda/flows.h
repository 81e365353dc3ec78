// The flows of a job as bytes of devices and segments, checked once.
#ifndef RAILS_CLIENT_CUDA_FLOWS_H_
#define RAILS_CLIENT_CUDA_FLOWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rails/cuda.h"

namespace rails::cuda {

// Bytes in one slice of memory.
struct Part {
  Range range{};        // where the daemon reaches them; a null segment: nowhere, they are staged
  Address address = 0;  // on the device; 0: they are in the host's memory
  uint64_t length_bytes = 0;

  bool staged() const { return range.segment == nullptr; }
  bool on_device() const { return address != 0; }
  // A unified address.
  Address begin() const {
    return on_device() ? address : reinterpret_cast<Address>(range.segment->bytes().data()) + range.offset_bytes;
  }
};

// The bytes exchanged with one other rank.
struct Flow {
  uint32_t rank = 0;
  uint64_t total_bytes = 0;
  uint64_t room_bytes = 0;  // of `parts`: the capacity, if the source may send less than that
  bool staged = false;      // some bytes are
  bool local = false;       // the receiver's device copies them from the sender's: local_peers.h
  std::vector<Part> parts{};
};

// A copy by the device. Addresses of the host are unified addresses, too.
struct Copy {
  Address to = 0, from = 0;
  uint64_t bytes = 0;
};

struct Flows {
  std::vector<Flow> sends{}, receives{};
  std::vector<Copy> own{};  // from this rank to itself; empty for bytes that stay in place
  uint64_t own_bytes = 0;   // with those
};

// The flows of `exchange` for a rank of a group. Ranges of device memory must be of `device`, which made their Memory.
// INVALID_ARGUMENT names the field and its value.
absl::StatusOr<Flows> CheckExchange(const AllToAllv& exchange, uint32_t world_size, uint32_t rank, const void* device);

// The copies from `from` to `to`, as far as both go. Leaves out bytes that are in place.
std::vector<Copy> CopiesBetween(const Flow& from, const Flow& to);

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_FLOWS_H_
