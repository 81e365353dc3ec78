#include "client/cuda/group.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rails::cuda {
namespace {

constexpr uint64_t kLeastBytesForRank = 64;

absl::Status CheckOptions(const GroupOptions& options, const Staging& staging) {
  if (options.recovery == Recovery::kDegrade) {
    return absl::InvalidArgumentError(
        "recovery degrade: a group on device memory cannot lose ranks, because the others could cut a job into slices "
        "differently; use fail or wait");
  }
  if (staging.slices == 0 || staging.slices > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("staging.slices ", staging.slices, " is not in 1 to 1024"));
  }
  if (staging.slice_bytes < kLeastBytesForRank * options.world_size || staging.slice_bytes > uint64_t{1} << 40) {
    return absl::InvalidArgumentError(absl::StrCat("staging.slice_bytes ", staging.slice_bytes, " is not in ",
                                                   kLeastBytesForRank * options.world_size, " (", kLeastBytesForRank,
                                                   " for each rank) to 2^40"));
  }
  return absl::OkStatus();
}

// The caller's reference to a job.
class JobHandle final : public Job {
 public:
  JobHandle(const internal::OwnerProcess& owner, std::shared_ptr<Operation> operation, std::shared_ptr<Inbox> inbox,
            std::weak_ptr<rails::Group> core)
      : owner_(owner), operation_(std::move(operation)), inbox_(std::move(inbox)), core_(std::move(core)) {}

  uint64_t seq() const override { return operation_->seq(); }
  absl::StatusOr<JobReport> Wait(absl::Duration timeout) override {
    if (absl::Status status = owner_.Check(); !status.ok()) return status;
    return operation_->Wait(timeout);
  }
  void OnDone(std::function<void(absl::StatusOr<JobReport>)> callback) override {
    if (absl::Status status = owner_.Check(); !status.ok()) return callback(std::move(status));
    operation_->OnDone(std::move(callback));
  }
  std::future<absl::StatusOr<JobReport>> Future() override {
    auto promise = std::make_shared<std::promise<absl::StatusOr<JobReport>>>();
    OnDone([promise](absl::StatusOr<JobReport> report) { promise->set_value(std::move(report)); });
    return promise->get_future();
  }
  absl::Status Cancel() override {
    if (absl::Status status = owner_.Check(); !status.ok()) return status;
    if (operation_->ended() || cancelled_.exchange(true)) return absl::OkStatus();
    inbox_->Put({.kind = Message::Kind::kCancel, .operation = operation_});
    // Ends a submission of the worker that waits for a daemon.
    const std::shared_ptr<rails::Group> core = core_.lock();
    return core == nullptr ? absl::OkStatus() : core->Leave();
  }
  absl::Status WaitOn(Stream stream) override {
    absl::Status status = owner_.Check();
    return status.ok() ? operation_->WaitOn(stream) : status;
  }
  Copies copies() const override { return owner_.IsThis() ? operation_->copies() : Copies{}; }

 private:
  const internal::OwnerProcess owner_;
  const std::shared_ptr<Operation> operation_;
  const std::shared_ptr<Inbox> inbox_;
  const std::weak_ptr<rails::Group> core_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> GroupHandle::Join(Client& client, std::shared_ptr<OpenDevice> device,
                                                         std::shared_ptr<Scratch> scratch, GroupOptions options,
                                                         const Staging& staging) {
  if (absl::Status status = CheckOptions(options, staging); !status.ok()) return status;
  const absl::Duration timeout = options.timeout;
  absl::StatusOr<std::unique_ptr<rails::Group>> core = client.JoinGroup(std::move(options));
  if (!core.ok()) return core.status();
  std::unique_ptr<GroupHandle> group(new GroupHandle(std::move(device), std::move(scratch), *std::move(core)));
  if (absl::Status status = group->Start(client, staging, timeout); !status.ok()) return status;
  return group;
}

absl::Status GroupHandle::Start(Client& client, const Staging& staging, absl::Duration timeout) {
  const auto local_ranks = std::count(members().begin(), members().end(), members()[rank()]);
  const SliceSizes sizes(staging.slice_bytes, world_size(), sizeof(LocalNote), static_cast<uint32_t>(local_ranks));
  absl::StatusOr<std::unique_ptr<Buffers>> buffers =
      Buffers::Make(client, device_, sizes.buffer_bytes(), staging.slices);
  if (!buffers.ok()) return buffers.status();
  const InContext here(device_->driver(), device_->context());
  if (absl::Status made = device_->driver().Check(device_->driver().cuStreamCreate(&host_stream_, kStreamNonBlocking),
                                                  "cuStreamCreate");
      !made.ok()) {
    return made;
  }
  absl::StatusOr<std::unique_ptr<Copier>> copier = Copier::Make(device_, inbox_, staging.slices);
  if (!copier.ok()) return copier.status();
  auto peers = std::make_unique<LocalPeers>(device_, world_size());
  // All ranks must cut flows alike: the daemons compare the tag.
  const absl::Status status = peers->AgreeOn(*core_, **buffers, staging.local_copies, staging.slice_bytes, timeout);
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks differ in slice_bytes, or one has joined without a device: ",
                     absl::StripPrefix(status.message(), "tag: ")));
  }
  if (!status.ok()) return status;
  for (uint32_t rank = 0; rank < world_size(); ++rank) read_by_.push_back(peers->IsReadBy(rank));
  worker_ = std::make_unique<Worker>(core_.get(), sizes, *std::move(buffers), staging.slices, *std::move(copier),
                                     std::move(peers), inbox_, state_);
  thread_.Start("rails-cuda", [this] {
    const InContext in(device_->driver(), device_->context());
    worker_->Run();
    worker_ = nullptr;
  });
  return absl::OkStatus();
}

GroupHandle::~GroupHandle() {
  if (!owner_.IsThis()) {
    worker_.release();  // it would wait for the device
    return;
  }
  if (thread_.running()) {
    Leave().IgnoreError();  // ends a submission that waits for a daemon
    inbox_->Put({.kind = Message::Kind::kStop});
    thread_.Join();
    scratch_->Release();
  }
  if (host_stream_ == nullptr) return;
  const InContext here(device_->driver(), device_->context());
  device_->driver().cuStreamDestroy_v2(host_stream_);
}

absl::StatusOr<std::shared_ptr<Prepared>> GroupHandle::Prepare(const AllToAllv&, absl::Duration) {
  return absl::UnimplementedError("a group on device memory has no prepared exchanges: submit the ranges");
}

absl::StatusOr<std::shared_ptr<rails::Job>> GroupHandle::Submit(const std::shared_ptr<Prepared>&, const Lengths&,
                                                                absl::Duration) {
  return absl::UnimplementedError("a group on device memory has no prepared exchanges: submit the ranges");
}

absl::StatusOr<std::shared_ptr<Job>> GroupHandle::SubmitBehind(const AllToAllv& exchange, std::optional<Stream> stream,
                                                               absl::Duration timeout) {
  if (absl::Status status = owner_.Check(); !status.ok()) return status;
  absl::StatusOr<Flows> flows = CheckExchange(exchange, world_size(), rank(), device_.get());
  if (!flows.ok()) return flows.status();
  const InContext here(device_->driver(), device_->context());
  scratch_->Release();
  absl::StatusOr<std::shared_ptr<Operation>> operation = Operation::Make(device_, exchange, *std::move(flows), stream);
  if (!operation.ok()) return operation.status();
  if (absl::Status status = TakeScratch(**operation); !status.ok()) return status;
  if (absl::Status status = state_->Submit(*operation, inbox_.get(), internal::Deadline::After(timeout));
      !status.ok()) {
    return status;
  }
  return std::make_shared<JobHandle>(owner_, *std::move(operation), inbox_, core_);
}

absl::Status GroupHandle::TakeScratch(Operation& operation) {
  const std::vector<Flow>& sends = operation.flows.sends;
  for (size_t i = 0; i < sends.size(); ++i) {
    if (!read_by_[sends[i].rank] || !LocalPeers::MustGather(sends[i])) continue;
    absl::StatusOr<std::shared_ptr<DeviceMemory>> memory = scratch_->Take(sends[i].total_bytes);
    if (!memory.ok()) return memory.status();
    operation.gathered.resize(sends.size());
    operation.gathered[i] = *std::move(memory);
    if (absl::Status status = GatherHost(sends[i], *operation.gathered[i]); !status.ok()) return status;
  }
  operation.set_pool(scratch_);
  return absl::OkStatus();
}

absl::Status GroupHandle::GatherHost(const Flow& flow, const Memory& memory) {
  const Driver& driver = device_->driver();
  absl::MutexLock lock(&host_copying_);
  uint64_t at = 0;
  for (const Part& part : flow.parts) {
    if (!part.on_device()) {
      const absl::Status status = driver.Check(
          driver.cuMemcpyAsync(memory.address() + at, part.begin(), part.length_bytes, host_stream_), "cuMemcpyAsync");
      if (!status.ok()) return status;
    }
    at += part.length_bytes;
  }
  return driver.Check(driver.cuStreamSynchronize(host_stream_), "cuStreamSynchronize");
}

absl::Status GroupHandle::Leave() {
  if (absl::Status status = owner_.Check(); !status.ok()) return status;
  state_->End(absl::CancelledError("this rank has left it"));
  return core_->Leave();
}

}  // namespace rails::cuda
