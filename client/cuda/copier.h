// The two streams on which a group's worker copies: out of the device and into it.
#ifndef RAILS_CLIENT_CUDA_COPIER_H_
#define RAILS_CLIENT_CUDA_COPIER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cuda/flows.h"
#include "client/cuda/inbox.h"
#include "client/cuda/open_device.h"

namespace rails::cuda {

// Used by one thread, in the device's context.
class Copier {
 public:
  static absl::StatusOr<std::unique_ptr<Copier>> Make(std::shared_ptr<OpenDevice> device, std::shared_ptr<Inbox> inbox,
                                                      uint32_t buffers);
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Later copies out are made only after `start`, unless it is null. Copies in are not: those of earlier jobs may be
  // what `start` waits for.
  absl::Status Begin(Event start);
  // Copies the bytes that a rank sends to itself.
  absl::Status Own(const std::vector<Copy>& copies);
  // Copies into the memory of a buffer, or out of it. The inbox gets kCopiedOut or kCopiedIn of the buffer when these
  // copies and all earlier ones of that direction are done; never if the device fails.
  absl::Status Out(uint32_t buffer, const std::vector<Copy>& copies);
  absl::Status In(uint32_t buffer, const std::vector<Copy>& copies);
  // The streams of the two, for copies that Out() or In() follow.
  Stream out() const { return out_; }
  Stream in() const { return in_; }
  // Makes bytes visible to the device that RDMA devices have written into it.
  absl::Status MakeVisible(const std::vector<Flow>& receives) const;
  // The device's error, if it has failed.
  absl::Status Check() const;
  // Waits until all copies are done, well or not.
  void Settle();

 private:
  // The argument of a host function of the driver. One for each buffer and direction, so that nothing is allocated for
  // it.
  struct Call {
    Inbox* inbox = nullptr;
    Message::Kind kind = Message::Kind::kStop;
    uint32_t buffer = 0;
  };
  Copier(std::shared_ptr<OpenDevice> device, std::shared_ptr<Inbox> inbox, uint32_t buffers);
  absl::Status Run(Stream stream, const std::vector<Copy>& copies, Call* call);

  const std::shared_ptr<OpenDevice> device_;
  const Driver& driver_;
  const std::shared_ptr<Inbox> inbox_;
  std::vector<Call> outs_, ins_;  // by buffer
  Stream out_ = nullptr, in_ = nullptr;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_COPIER_H_
