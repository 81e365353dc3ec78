// Memory of the host that a device copies by itself, for benchmarks and tests.
#ifndef RAILSD_BENCH_CUDA_PINNED_H_
#define RAILSD_BENCH_CUDA_PINNED_H_

#include <string>
#include <utility>

#include "client/cuda/driver.h"

namespace railsd::bench {

// Copies from and to other memory of the host would wait for the stream.
class Pinned {
 public:
  Pinned(const rails::cuda::Driver& driver, std::string* bytes) : driver_(&driver), bytes_(bytes) {
    driver.cuMemHostRegister_v2(bytes->data(), bytes->size(), rails::cuda::kHostRegisterPortable);
  }
  Pinned(Pinned&& other) noexcept : driver_(other.driver_), bytes_(std::exchange(other.bytes_, nullptr)) {}
  ~Pinned() {
    if (bytes_ != nullptr) driver_->cuMemHostUnregister(bytes_->data());
  }

 private:
  const rails::cuda::Driver* driver_;
  std::string* bytes_;
};

}  // namespace railsd::bench

#endif  // RAILSD_BENCH_CUDA_PINNED_H_
