// One rank of a test: its client, device and group, and the stream on which its kernels run.
#ifndef RAILSD_TESTS_UNIT_CLIENT_CUDA_RANK_H_
#define RAILSD_TESTS_UNIT_CLIENT_CUDA_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/cuda/pinned.h"
#include "client/cuda/driver.h"
#include "rails/cuda.h"
#include "tests/unit/client/cuda/memory_cluster.h"

namespace railsd::testing {

inline constexpr absl::Duration kLimit = absl::Seconds(30);  // of submissions

using bench::Pinned;

// The primary context is current on the thread that makes it, as in a process that uses the CUDA runtime.
class Rank {
 public:
  // `before_join`: called when the device is open.
  Rank(
      MemoryCluster& cluster, uint32_t rank, uint32_t world_size, const rails::cuda::Staging& staging,
      const std::function<void()>& before_join = [] {})
      : client(cluster.MakeClient()), driver(*rails::cuda::Driver::Open(FAKE_CUDA_DRIVER)) {
    driver->cuDevicePrimaryCtxRetain(&context_, 0);
    driver->cuCtxPushCurrent_v2(context_);
    driver->cuStreamCreate(&stream, rails::cuda::kStreamNonBlocking);
    device = *rails::cuda::Device::Open(*client, {.driver = FAKE_CUDA_DRIVER});
    before_join();
    auto joined = device->JoinGroup({.name = "test", .world_size = world_size, .rank = rank}, staging);
    status = joined.status();
    if (joined.ok()) group = *std::move(joined);
  }
  ~Rank() {
    group = nullptr;
    driver->cuStreamSynchronize(stream);
    driver->cuStreamDestroy_v2(stream);
    device = nullptr;
    driver->cuCtxPopCurrent_v2(&context_);
    driver->cuDevicePrimaryCtxRelease_v2(0);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Copies on the stream; `bytes` must stay, and be Pinned for the host not to wait.
  void Write(const rails::cuda::Memory& memory, const std::string& bytes) {
    driver->cuMemcpyAsync(memory.address(), reinterpret_cast<uint64_t>(bytes.data()), bytes.size(), stream);
  }
  void Read(const rails::cuda::Memory& memory, std::string* bytes) {
    bytes->resize(memory.length_bytes());
    driver->cuMemcpyAsync(reinterpret_cast<uint64_t>(bytes->data()), memory.address(), bytes->size(), stream);
  }

  std::unique_ptr<rails::Client> client;
  std::shared_ptr<const rails::cuda::Driver> driver;
  rails::cuda::Stream stream = nullptr;
  std::shared_ptr<rails::cuda::Device> device;
  absl::Status status;  // of joining
  std::unique_ptr<rails::cuda::Group> group;

 private:
  rails::cuda::Context context_ = nullptr;
};

// Runs `body` on a thread for each rank.
inline void OnRanks(uint32_t world_size, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_CLIENT_CUDA_RANK_H_
