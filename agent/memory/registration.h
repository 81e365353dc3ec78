// The registration of a segment with a network device, which then reads and writes it by itself.
#ifndef RAILSD_AGENT_MEMORY_REGISTRATION_H_
#define RAILSD_AGENT_MEMORY_REGISTRATION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace railsd {

class Segment;

// Keeps a segment registered with one rail's device while it exists. Immutable.
class Registration {
 public:
  virtual ~Registration() = default;
  // Names the memory in this device's own work requests.
  virtual uint32_t local_key() const = 0;
  // Bytes that the device has written may land after its completion is in the memory of the host. The rail then reads
  // the memory back before it reports that they are there.
  virtual bool needs_flush() const { return false; }
};

// One per rail. Any thread; Register() may take long (it pins memory) and is never called on a chunk's path.
class MemoryRegistrar {
 public:
  virtual ~MemoryRegistrar() = default;
  // RESOURCE_EXHAUSTED when the device or the memory lock limit (named, with how to raise it) is exhausted;
  // UNIMPLEMENTED, naming the device, for a kind of memory that it cannot register.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(const Segment& segment) = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_MEMORY_REGISTRATION_H_
