// One direction of a link: Outbox at the sender, Inbox at the receiver. They number and resend frames, and split long
// messages into parts. Pure: no clock, no sockets, no threads. The caller synchronises.
#ifndef RAILSD_DAEMON_LINK_OUTBOX_H_
#define RAILSD_DAEMON_LINK_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/base/ids.h"
#include "daemon/link/frame.h"

namespace railsd {

struct OutboxLimits {
  size_t max_messages = 65536;
  size_t max_bytes = size_t{256} << 20;
};

// Numbered frames that are not acknowledged yet, and behind them messages that wait for their numbers. Numbers start
// from 1.
//
// A message longer than a frame goes in parts. Each part gets its number when its turn on the connection comes. Short
// messages of other epochs may go between the parts. Messages of the same epoch, and of no epoch, keep their order.
class Outbox {
 public:
  // Shared with the connection: a frame may be acknowledged before its write returns.
  using FramePtr = std::shared_ptr<const std::string>;

  explicit Outbox(OutboxLimits limits) : limits_(limits) {}

  // Waiting and unacknowledged messages.
  size_t messages() const { return frames_.size() + waiting_.size(); }
  size_t bytes() const { return bytes_; }

  // `message`: FrameWithoutHeader() and the body. With `receipt`, TakeReceipts() returns that job once the whole
  // message is acknowledged. False: the outbox is full and does not take it.
  bool Push(std::string message, std::optional<Epoch> epoch, std::optional<JobKey> receipt = std::nullopt);

  // The next frame for the present connection, or null. Call MarkSent() once the connection has taken it.
  FramePtr Next();
  void MarkSent() { ++next_to_send_; }

  // The receiver has taken all frames up to `number`. False: that number was never written, a protocol error.
  bool Acknowledge(uint64_t number);
  // A new connection carries the same link: unacknowledged frames go out again. False as above.
  bool Rewind(uint64_t acknowledged);
  // Receipts of messages that were acknowledged since the last call.
  std::vector<JobKey> TakeReceipts() { return std::exchange(acknowledged_receipts_, {}); }
  // A new link begins: drops everything and counts from 1 again.
  void Reset();

 private:
  struct Waiting {
    std::string message;
    std::optional<Epoch> epoch;
    std::optional<JobKey> receipt;
    size_t done = 0;  // bytes of `message` that are in frames, with its header room
  };
  struct Receipt {
    uint64_t number;  // of the message's last frame
    JobKey job;
  };
  uint64_t first_number() const { return next_number_ - frames_.size(); }
  bool MustWait(const std::string& message, const std::optional<Epoch>& epoch) const;
  // `receipt`: of the message that ends with the frame.
  void Number(FrameKind kind, std::string frame, const std::optional<JobKey>& receipt);
  // Numbers the first waiting message, or its next part.
  void NumberNext();

  const OutboxLimits limits_;
  std::deque<FramePtr> frames_;
  std::deque<Waiting> waiting_;
  std::deque<Receipt> receipts_;
  std::vector<JobKey> acknowledged_receipts_;
  absl::flat_hash_map<Epoch, size_t> waiting_of_;
  size_t waiting_of_none_ = 0;
  size_t bytes_ = 0;
  uint64_t next_number_ = 1;
  uint64_t next_to_send_ = 1;
  uint64_t highest_sent_ = 0;  // on earlier connections
};

// Numbers taken so far. They come in order. A resent number that was taken before is a duplicate.
class Inbox {
 public:
  enum class Verdict { kTake, kDuplicate, kOutOfOrder };
  Verdict Receive(uint64_t number);
  // Adds a part whose verdict was kTake. INVALID_ARGUMENT: the part is empty, or the message is longer than
  // `max_bytes`.
  absl::Status AddPart(absl::string_view part, size_t max_bytes);
  // Returns the message after its last part was added.
  std::string TakeWhole() { return std::exchange(parts_, std::string()); }
  // Highest number taken, for the acknowledgement.
  uint64_t taken() const { return taken_; }
  void Reset() { *this = Inbox(); }

 private:
  uint64_t taken_ = 0;
  std::string parts_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_OUTBOX_H_
