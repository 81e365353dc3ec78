// One rank with a device: buffers of both kinds of memory, and a stream that plays the trainer's.
#ifndef RAILSD_BENCH_CUDA_RANK_H_
#define RAILSD_BENCH_CUDA_RANK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cuda/driver.h"
#include "rails/cuda.h"

namespace railsd::bench {

struct CudaOptions {
  std::vector<std::string> socket_dirs;  // of the daemons; rank r uses number r modulo their count
  std::string driver = "libcuda.so.1";
  int device = 0;
  uint32_t world_size = 2;
  uint64_t bytes = 1 << 20;  // that a rank sends, the same to each rank that is not on its node
  uint32_t turns = 4;
  uint32_t seed = 1;
  rails::cuda::Staging staging;
};

// Used by one thread.
class CudaRank {
 public:
  static absl::StatusOr<std::unique_ptr<CudaRank>> Join(const CudaOptions& options, uint32_t rank);
  ~CudaRank();

  // Turns in which the host waits for nothing between kernels and jobs. Each compares every received byte.
  absl::Status CheckBytes();
  // One exchange of host memory, of device memory, and the copies of the latter without an exchange. Seconds.
  absl::StatusOr<double> TimeRails();
  absl::StatusOr<double> TimeStaged();
  absl::StatusOr<double> TimeCopies();
  // Bytes that CheckBytes() has read from ranks of this node.
  uint64_t local_bytes() const { return local_bytes_; }
  const rails::cuda::Capabilities& capabilities() const { return device_->capabilities(); }

 private:
  CudaRank(const CudaOptions& options, uint32_t rank) : options_(options), rank_(rank) {}
  absl::Status Open();
  rails::AllToAllv Exchange(const std::shared_ptr<rails::Segment>& send,
                            const std::shared_ptr<rails::Segment>& receive) const;
  std::string Content(uint32_t turn, uint32_t from, uint32_t to) const;
  // Flow `index` of the exchange is with this rank.
  uint32_t Peer(size_t index) const { return static_cast<uint32_t>(index < rank_ ? index : index + 1); }
  uint64_t FlowBytes() const { return options_.bytes / (options_.world_size - 1); }

  const CudaOptions options_;
  const uint32_t rank_;
  std::shared_ptr<const rails::cuda::Driver> driver_;
  rails::cuda::Context context_ = nullptr;
  rails::cuda::Stream stream_ = nullptr, copies_in_ = nullptr;
  std::unique_ptr<rails::Client> client_;
  std::shared_ptr<rails::Segment> host_send_, host_receive_;
  std::shared_ptr<rails::cuda::Device> device_;
  std::shared_ptr<rails::cuda::Memory> send_, receive_;
  std::unique_ptr<rails::Group> host_group_;
  std::unique_ptr<rails::cuda::Group> group_;
  uint64_t local_bytes_ = 0;
};

}  // namespace railsd::bench

#endif  // RAILSD_BENCH_CUDA_RANK_H_
