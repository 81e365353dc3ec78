#include "client/cuda/copier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::cuda {

absl::StatusOr<std::unique_ptr<Copier>> Copier::Make(std::shared_ptr<OpenDevice> device, std::shared_ptr<Inbox> inbox,
                                                     uint32_t buffers) {
  std::unique_ptr<Copier> copier(new Copier(std::move(device), std::move(inbox), buffers));
  for (Stream* stream : {&copier->out_, &copier->in_}) {
    const absl::Status status =
        copier->driver_.Check(copier->driver_.cuStreamCreate(stream, kStreamNonBlocking), "cuStreamCreate");
    if (!status.ok()) return status;
  }
  return copier;
}

Copier::Copier(std::shared_ptr<OpenDevice> device, std::shared_ptr<Inbox> inbox, uint32_t buffers)
    : device_(std::move(device)), driver_(device_->driver()), inbox_(std::move(inbox)), outs_(buffers), ins_(buffers) {
  for (uint32_t buffer = 0; buffer < buffers; ++buffer) {
    outs_[buffer] = {inbox_.get(), Message::Kind::kCopiedOut, buffer};
    ins_[buffer] = {inbox_.get(), Message::Kind::kCopiedIn, buffer};
  }
}

Copier::~Copier() {
  Settle();
  for (Stream stream : {out_, in_}) {
    if (stream != nullptr) driver_.cuStreamDestroy_v2(stream);
  }
}

absl::Status Copier::Begin(Event start) {
  if (start == nullptr) return absl::OkStatus();
  return driver_.Check(driver_.cuStreamWaitEvent(out_, start, 0), "cuStreamWaitEvent");
}

absl::Status Copier::Own(const std::vector<Copy>& copies) { return Run(in_, copies, nullptr); }

absl::Status Copier::Out(uint32_t buffer, const std::vector<Copy>& copies) { return Run(out_, copies, &outs_[buffer]); }

absl::Status Copier::In(uint32_t buffer, const std::vector<Copy>& copies) { return Run(in_, copies, &ins_[buffer]); }

absl::Status Copier::Run(Stream stream, const std::vector<Copy>& copies, Call* call) {
  for (const Copy& copy : copies) {
    const absl::Status status =
        driver_.Check(driver_.cuMemcpyAsync(copy.to, copy.from, copy.bytes, stream), "cuMemcpyAsync");
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("copying ", copy.bytes, " bytes from 0x", absl::Hex(copy.from),
                                                      " to 0x", absl::Hex(copy.to), ": ", status.message(),
                                                      "; memory must stay allocated until its job has ended"));
    }
  }
  if (call == nullptr) return absl::OkStatus();
  const auto tell = [](void* argument) {
    const Call& told = *static_cast<Call*>(argument);
    told.inbox->Put({.kind = told.kind, .buffer = told.buffer});
  };
  return driver_.Check(driver_.cuLaunchHostFunc(stream, tell, call), "cuLaunchHostFunc");
}

absl::Status Copier::MakeVisible(const std::vector<Flow>& receives) const {
  const bool direct = std::any_of(receives.begin(), receives.end(), [](const Flow& flow) {
    return std::any_of(flow.parts.begin(), flow.parts.end(),
                       [](const Part& part) { return part.on_device() && !part.staged(); });
  });
  int ordering = 0;
  if (!direct || (driver_.cuDeviceGetAttribute(&ordering, kRdmaWritesOrdering, device_->number()) == kSuccess &&
                  ordering >= kFlushToOwner)) {
    return absl::OkStatus();
  }
  return driver_.Check(driver_.cuFlushGPUDirectRDMAWrites(kFlushCurrentContext, kFlushToOwner),
                       "cuFlushGPUDirectRDMAWrites");
}

absl::Status Copier::Check() const {
  for (Stream stream : {out_, in_}) {
    const Result result = driver_.cuStreamQuery(stream);
    if (result != kNotReady && result != kSuccess) return driver_.Check(result, "a copy of the device");
  }
  return absl::OkStatus();
}

void Copier::Settle() {
  for (Stream stream : {out_, in_}) {
    if (stream != nullptr) driver_.cuStreamSynchronize(stream);
  }
}

}  // namespace rails::cuda
