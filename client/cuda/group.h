// A group of ranks with device memory: its thread, and the group of the client below it.
#ifndef RAILS_CLIENT_CUDA_GROUP_H_
#define RAILS_CLIENT_CUDA_GROUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cuda/inbox.h"
#include "client/cuda/open_device.h"
#include "client/cuda/worker.h"
#include "client/src/own_thread.h"
#include "rails/cuda.h"

namespace rails::cuda {

class GroupHandle final : public Group {
 public:
  // Blocks until every rank has joined.
  static absl::StatusOr<std::unique_ptr<Group>> Join(Client& client, std::shared_ptr<OpenDevice> device,
                                                     std::shared_ptr<Scratch> scratch, GroupOptions options,
                                                     const Staging& staging);
  ~GroupHandle() override;

  uint32_t rank() const override { return core_->rank(); }
  uint32_t world_size() const override { return core_->world_size(); }
  const std::vector<std::string>& members() const override { return core_->members(); }
  absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, Stream stream,
                                              absl::Duration timeout) override {
    return SubmitBehind(exchange, stream, timeout);
  }
  absl::StatusOr<std::shared_ptr<rails::Job>> Submit(const AllToAllv& exchange, absl::Duration timeout) override {
    return SubmitBehind(exchange, std::nullopt, timeout);
  }
  absl::StatusOr<std::shared_ptr<Prepared>> Prepare(const AllToAllv& layout, absl::Duration timeout) override;
  absl::StatusOr<std::shared_ptr<rails::Job>> Submit(const std::shared_ptr<Prepared>& prepared, const Lengths& lengths,
                                                     absl::Duration timeout) override;
  absl::Status Leave() override;

 private:
  GroupHandle(std::shared_ptr<OpenDevice> device, std::shared_ptr<Scratch> scratch, std::unique_ptr<rails::Group> core)
      : device_(std::move(device)), core_(std::move(core)), scratch_(std::move(scratch)) {}
  absl::StatusOr<std::shared_ptr<Job>> SubmitBehind(const AllToAllv& exchange, std::optional<Stream> stream,
                                                    absl::Duration timeout);
  // Takes scratch memory for flows to ranks of this node that must be gathered.
  absl::Status TakeScratch(Operation& operation);
  // Copies the ranges of segments of a flow to where it is gathered. Waits for that: such memory is not pinned, and a
  // copy by the worker could wait for streams.
  absl::Status GatherHost(const Flow& flow, const Memory& memory) ABSL_LOCKS_EXCLUDED(host_copying_);
  // Makes the worker, and starts its thread.
  absl::Status Start(Client& client, const Staging& staging, absl::Duration timeout);

  const internal::OwnerProcess owner_{};
  const std::shared_ptr<OpenDevice> device_;
  const std::shared_ptr<rails::Group> core_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  const std::shared_ptr<WorkerState> state_ = std::make_shared<WorkerState>();
  const std::shared_ptr<Scratch> scratch_;
  Stream host_stream_ = nullptr;  // of GatherHost()
  absl::Mutex host_copying_;
  std::vector<bool> read_by_;       // by rank: reads what this rank sends, without the daemon
  std::unique_ptr<Worker> worker_;  // only its thread uses it
  internal::OwnThread thread_;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_GROUP_H_
