#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace fake_cuda {
namespace {

constexpr size_t kDeviceAddresses = size_t{256} << 30;
constexpr size_t kFilledBytes = 16 << 20;  // filling more takes too long
constexpr int kFilling = 0xa5;             // new memory is not zero, as on a device

uint64_t DeviceBase() {
  static const uint64_t base = [] {
    void* memory = mmap(nullptr, kDeviceAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? uint64_t{0} : reinterpret_cast<uint64_t>(memory);
  }();
  return base;
}

bool InDeviceAddresses(uint64_t address) {
  return DeviceBase() != 0 && address >= DeviceBase() && address - DeviceBase() < kDeviceAddresses;
}

uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The region that contains an address, or null.
std::shared_ptr<Region> FindRegion(const std::map<uint64_t, std::shared_ptr<Region>>& regions, uint64_t address) {
  auto next = regions.upper_bound(address);
  if (next == regions.begin()) return nullptr;
  const auto& [base, region] = *std::prev(next);
  return address - base < region->bytes ? region : nullptr;
}

std::string DescribeRange(uint64_t address, size_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "0x%llx+%zu", static_cast<unsigned long long>(address), bytes);
  return text;
}

}  // namespace

Allocation::~Allocation() {
  munmap(data, mapped_bytes());
  close(file);
}

std::shared_ptr<Allocation> Allocation::Make(size_t bytes) {
  const size_t mapped = RoundUp(bytes, kPage);
  const int file = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* data = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(mapped)) == 0) {
    data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (data == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  if (mapped <= kFilledBytes) std::memset(data, kFilling, mapped);
  return std::make_shared<Allocation>(file, static_cast<unsigned char*>(data), bytes);
}

std::shared_ptr<Allocation> Allocation::Open(int file, size_t bytes) {
  void* data = mmap(nullptr, RoundUp(bytes, kPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  auto opened = std::make_shared<Allocation>(file, static_cast<unsigned char*>(data), bytes);
  opened->opened = true;
  return opened;
}

uint64_t Allocation::NextSerial() {
  static uint64_t last = 0;
  return ++last;
}

bool Span::Overlaps(const Span& other) const {
  return history != nullptr && history == other.history && position < other.position + other.bytes &&
         other.position < position + bytes;
}

std::string Span::Describe() const {
  const char* kind = device() ? "device memory " : pinned() ? "pinned memory " : "pageable memory ";
  return kind + DescribeRange(address, bytes);
}

std::shared_ptr<Region> Memory::FindDevice(uint64_t address) const { return FindRegion(regions_, address); }

std::shared_ptr<Region> Memory::FindRegistration(uint64_t address) const { return FindRegion(registrations_, address); }

std::optional<Span> Memory::Locate(uint64_t address, size_t bytes, std::string* problem) {
  if (address == 0 || address + bytes < address) {
    *problem = DescribeRange(address, bytes) + " is no range of addresses";
    return std::nullopt;
  }
  Span span{.address = address, .bytes = bytes};
  if (InDeviceAddresses(address)) {
    span.region = FindDevice(address);
    if (span.region == nullptr) {
      *problem = DescribeRange(address, bytes) + " is at a device address without memory (freed, or never allocated)";
    } else if (bytes > span.region->address + span.region->bytes - address) {
      *problem = DescribeRange(address, bytes) + " reaches past the end of the device memory " +
                 DescribeRange(span.region->address, span.region->bytes);
    } else {
      span.position = address - span.region->address;
      span.data = span.region->allocation->data + span.position;
      span.history = &span.region->allocation->history;
      return span;
    }
    return std::nullopt;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a unified address of host memory
  span.data = reinterpret_cast<unsigned char*>(address);
  span.region = FindRegistration(address);
  auto next = registrations_.upper_bound(address);
  if (span.region != nullptr ? bytes > span.region->address + span.region->bytes - address
                             : next != registrations_.end() && next->first < address + bytes) {
    *problem = DescribeRange(address, bytes) + " is only in part in the registered host memory " +
               (span.region != nullptr ? DescribeRange(span.region->address, span.region->bytes)
                                       : DescribeRange(next->first, next->second->bytes));
    return std::nullopt;
  }
  if (span.region != nullptr) {
    span.position = address;
    span.history = &host_history_;
  }
  return span;
}

uint64_t Memory::FindFreeAddresses(size_t bytes) {
  const uint64_t begin = DeviceBase(), end = begin + kDeviceAddresses;
  if (begin == 0 || bytes > kDeviceAddresses) return 0;
  uint64_t at = next_address_ == 0 ? begin : next_address_;
  for (bool wrapped = false;;) {
    at = RoundUp(at, kPage);
    if (at + bytes + kPage > end) {
      if (wrapped) return 0;
      wrapped = true;
      at = begin;
      continue;
    }
    // A page without memory follows each range.
    auto next = regions_.lower_bound(at + bytes + kPage);
    if (next == regions_.begin()) break;
    const auto& [base, region] = *std::prev(next);
    const uint64_t after = base + region->allocation->mapped_bytes() + kPage;
    if (after <= at) break;
    at = after;
  }
  next_address_ = at + bytes + kPage;
  return at;
}

Result Memory::Allocate(size_t bytes, uint64_t* address) {
  if (bytes == 0) return kInvalidValue;
  if (bytes > kDeviceAddresses) return kOutOfMemory;
  return Add(Allocation::Make(bytes), address);
}

Result Memory::Add(std::shared_ptr<Allocation> allocation, uint64_t* address) {
  const uint64_t base = allocation == nullptr ? 0 : FindFreeAddresses(allocation->mapped_bytes());
  if (base == 0) return kOutOfMemory;
  const size_t bytes = allocation->bytes;
  regions_[base] =
      std::make_shared<Region>(Region{.address = base, .bytes = bytes, .allocation = std::move(allocation)});
  *address = base;
  return kSuccess;
}

Result Memory::Register(uint64_t address, size_t bytes) {
  if (address == 0 || bytes == 0 || address + bytes < address || InDeviceAddresses(address)) return kInvalidValue;
  auto next = registrations_.lower_bound(address);
  if (FindRegistration(address) != nullptr || (next != registrations_.end() && next->first < address + bytes)) {
    return kAlreadyRegistered;
  }
  registrations_[address] = std::make_shared<Region>(Region{.address = address, .bytes = bytes});
  return kSuccess;
}

void Memory::Remove(const Region& region) {
  const uint64_t address = region.address;
  if (region.allocation == nullptr) {
    host_history_.Erase(address, address + region.bytes);
    registrations_[address]->removed = true;
    registrations_.erase(address);
    return;
  }
  regions_[address]->removed = true;
  regions_.erase(address);
}

void Memory::Clear() {
  for (auto* map : {&regions_, &registrations_}) {
    for (auto& [address, region] : *map) region->removed = true;
    map->clear();
  }
  host_history_ = {};
}

}  // namespace fake_cuda
