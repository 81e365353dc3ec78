// One direction of a link: Outbox at the sender, Inbox at the receiver. Numbers, resends, and parts of long messages.
// Pure: no clock, no sockets, no threads; the caller synchronises.
#ifndef RAILSD_DAEMON_LINK_OUTBOX_H_
#define RAILSD_DAEMON_LINK_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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

// Frames in the order of their numbers, from 1, kept until they are acknowledged; and messages that wait for a number.
//
// A message longer than a frame goes in parts, and gets a number for each when its turn on the connection comes. Jobs
// of other groups may go between the parts. What belongs to the same epoch, or to none, keeps its place.
class Outbox {
 public:
  // Shared, so that an acknowledgement may overtake the end of the write.
  using FramePtr = std::shared_ptr<const std::string>;

  explicit Outbox(OutboxLimits limits) : limits_(limits) {}

  // Waiting and unacknowledged.
  size_t messages() const { return frames_.size() + waiting_.size(); }
  size_t bytes() const { return bytes_; }

  // Takes a message: FrameWithoutHeader() and its bytes. False when the box is full: nothing was taken.
  bool Push(std::string message, std::optional<Epoch> epoch);

  // The next frame to write on the present connection, or null. MarkSent() when it has been given to it.
  FramePtr Next();
  void MarkSent() { ++next_to_send_; }

  // The receiver has taken everything up to `number`. False when it acknowledges what was never written: it is broken.
  bool Acknowledge(uint64_t number);
  // A new connection of the same link: what is not acknowledged goes out again. False as above.
  bool Rewind(uint64_t acknowledged);
  // Another link: drops everything and counts from 1 again.
  void Reset();

 private:
  struct Waiting {
    std::string message;
    std::optional<Epoch> epoch;
    size_t done = 0;  // bytes that parts have carried
  };
  uint64_t first_number() const { return next_number_ - frames_.size(); }
  bool MustWait(const std::string& message, const std::optional<Epoch>& epoch) const;
  void Number(FrameKind kind, std::string frame);
  // Gives the first that waits, or its next part, a number.
  void NumberNext();

  const OutboxLimits limits_;
  std::deque<FramePtr> frames_;
  std::deque<Waiting> waiting_;
  absl::flat_hash_map<Epoch, size_t> waiting_of_;
  size_t waiting_of_none_ = 0;
  size_t bytes_ = 0;
  uint64_t next_number_ = 1;
  uint64_t next_to_send_ = 1;
  uint64_t highest_sent_ = 0;  // on earlier connections
};

// What has been taken. Numbers come in order; those of a resend that were taken before are duplicates.
class Inbox {
 public:
  enum class Verdict { kTake, kDuplicate, kOutOfOrder };
  Verdict Receive(uint64_t number);
  // A part whose verdict was kTake. INVALID_ARGUMENT: the message is longer than `max_bytes`.
  absl::Status AddPart(absl::string_view part, size_t max_bytes);
  // The message whose last part has been added.
  std::string TakeWhole() { return std::exchange(parts_, std::string()); }
  bool has_parts() const { return !parts_.empty(); }
  // Highest number taken: what an acknowledgement says.
  uint64_t taken() const { return taken_; }
  void Reset() { *this = Inbox(); }

 private:
  uint64_t taken_ = 0;
  std::string parts_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_OUTBOX_H_
