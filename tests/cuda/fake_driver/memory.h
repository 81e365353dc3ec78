// Device memory, and registered host memory. The state's mutex guards all of it.
#ifndef RAILS_TESTS_CUDA_FAKE_DRIVER_MEMORY_H_
#define RAILS_TESTS_CUDA_FAKE_DRIVER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "races.h"

namespace fake_cuda {

// CUresult
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kContextIsDestroyed = 709,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotPermitted = 800,
  kNotSupported = 801,
};

inline constexpr uint64_t kPage = 4096;

// Bytes of device memory: a memfd.
struct Allocation {
  Allocation(int file, unsigned char* data, size_t bytes) : file(file), data(data), bytes(bytes) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  // Returns null if the system has no memory or no descriptor.
  static std::shared_ptr<Allocation> Make(size_t bytes);
  // Memory of another process; takes over its descriptor `file`. Accesses of that process are unknown here.
  static std::shared_ptr<Allocation> Open(int file, size_t bytes);
  uint64_t serial() const { return serial_; }  // never used again in the process
  size_t mapped_bytes() const { return (bytes + kPage - 1) / kPage * kPage; }

  const int file;
  unsigned char* const data;
  const size_t bytes;
  bool opened = false;  // of another process
  History history;      // positions are offsets

 private:
  static uint64_t NextSerial();
  const uint64_t serial_ = NextSerial();
};

// Addresses that operations may name: device memory mapped at them, or registered host memory.
struct Region {
  uint64_t address = 0;
  size_t bytes = 0;
  std::shared_ptr<Allocation> allocation{};  // null: host memory
  bool removed = false;                      // freed, closed or unregistered
  int queued = 0;                            // operations on it that have not finished
  int running = 0;                           // those of them that access its bytes now
};

// The bytes of one side of an operation.
struct Span {
  uint64_t address = 0;
  size_t bytes = 0;
  unsigned char* data = nullptr;
  std::shared_ptr<Region> region{};  // null: host memory that is not registered
  History* history = nullptr;        // null without a region
  uint64_t position = 0;             // in the history

  bool device() const { return region != nullptr && region->allocation != nullptr; }
  bool pinned() const { return region != nullptr && region->allocation == nullptr; }
  bool Overlaps(const Span& other) const;
  std::string Describe() const;
};

class Memory {
 public:
  // Returns nullopt, and says in `problem` why, if a range is neither within one region nor outside of all.
  std::optional<Span> Locate(uint64_t address, size_t bytes, std::string* problem);
  std::shared_ptr<Region> FindDevice(uint64_t address) const;
  std::shared_ptr<Region> FindRegistration(uint64_t address) const;

  Result Allocate(size_t bytes, uint64_t* address);
  Result Add(std::shared_ptr<Allocation> allocation, uint64_t* address);
  Result Register(uint64_t address, size_t bytes);
  // Marks a region as removed. Operations on it must not access it any more.
  void Remove(const Region& region);

  void Clear();
  int64_t allocations() const { return static_cast<int64_t>(regions_.size()); }
  int64_t registrations() const { return static_cast<int64_t>(registrations_.size()); }

 private:
  // Addresses that any access by the CPU faults on. Returns 0 if no free ones are left.
  uint64_t FindFreeAddresses(size_t bytes);

  std::map<uint64_t, std::shared_ptr<Region>> regions_;        // of device memory
  std::map<uint64_t, std::shared_ptr<Region>> registrations_;  // never overlap
  uint64_t next_address_ = 0;  // new addresses follow older ones, so that stale addresses are not valid again soon
  History host_history_;       // positions are addresses
};

}  // namespace fake_cuda

#endif  // RAILS_TESTS_CUDA_FAKE_DRIVER_MEMORY_H_
