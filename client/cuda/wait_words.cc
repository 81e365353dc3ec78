#include "client/cuda/wait_words.h"

#include <sys/mman.h>

#include <cerrno>

namespace rails::cuda {

absl::StatusOr<std::unique_ptr<WaitWords>> WaitWords::Make(const Driver& driver) {
  if (driver.cuStreamWaitValue32_v2 == nullptr) {
    return absl::UnimplementedError("the driver has no cuStreamWaitValue32_v2(): it needs CUDA 11.7 or later");
  }
  constexpr size_t kBytes = kCount * sizeof(uint32_t);
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "mapping a page");
  absl::Status status = driver.Check(
      driver.cuMemHostRegister_v2(memory, kBytes, kHostRegisterPortable | kHostRegisterMapped), "cuMemHostRegister");
  Address address = 0;
  if (status.ok()) {
    status = driver.Check(driver.cuMemHostGetDevicePointer_v2(&address, memory, 0), "cuMemHostGetDevicePointer");
    if (!status.ok()) driver.cuMemHostUnregister(memory);
  }
  if (!status.ok()) {
    munmap(memory, kBytes);
    return status;
  }
  return std::unique_ptr<WaitWords>(new WaitWords(driver, static_cast<uint32_t*>(memory), address));
}

WaitWords::WaitWords(const Driver& driver, uint32_t* words, Address address)
    : driver_(driver), words_(words), address_(address) {
  for (uint32_t i = kCount; i > 0; --i) free_.push_back(i - 1);
}

std::optional<WaitWords::Word> WaitWords::Take() {
  absl::MutexLock lock(&mutex_);
  if (free_.empty()) return std::nullopt;
  const uint32_t index = free_.back();
  free_.pop_back();
  return Word{index, ++last_[index]};
}

void WaitWords::Give(const Word& word) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(word.index);
}

absl::Status WaitWords::Wait(const Word& word, Stream stream) const {
  return driver_.Check(
      driver_.cuStreamWaitValue32_v2(stream, address_ + word.index * sizeof(uint32_t), word.value, kWaitValueAtLeast),
      "cuStreamWaitValue32");
}

}  // namespace rails::cuda
