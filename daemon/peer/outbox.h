// Numbering and resending of one direction between two agents: Outbox at the sender, Inbox at the receiver.
// Pure: no gRPC, no clock, no threads; the caller synchronises.
#ifndef RAILSD_DAEMON_PEER_OUTBOX_H_
#define RAILSD_DAEMON_PEER_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace railsd {

struct OutboxLimits {
  size_t max_messages = 65536;
  size_t max_bytes = size_t{256} << 20;
};

// Messages in the order of their numbers, from 1, kept until they are acknowledged.
template <typename Message>
class Outbox {
 public:
  struct Entry {
    uint64_t number = 0;
    size_t bytes = 0;
    std::shared_ptr<const Message> message;  // shared, so that an acknowledgement may overtake the write's completion
  };

  explicit Outbox(OutboxLimits limits) : limits_(limits) {}

  // The number that the next message gets.
  uint64_t next_number() const { return next_number_; }
  size_t unacknowledged() const { return entries_.size(); }
  // The highest number that is.
  uint64_t acknowledged() const { return first_number() - 1; }
  size_t bytes() const { return bytes_; }

  // Takes a message of `bytes` that carries next_number(). False when the box is full: nothing was taken.
  bool Push(std::shared_ptr<const Message> message, size_t bytes) {
    if (entries_.size() >= limits_.max_messages || bytes > limits_.max_bytes - bytes_) return false;
    entries_.push_back({next_number_++, bytes, std::move(message)});
    bytes_ += bytes;
    return true;
  }

  // The next message to write on the present stream, or nullptr.
  const Entry* NextToSend() const {
    const size_t index = static_cast<size_t>(next_to_send_ - first_number());
    return index < entries_.size() ? &entries_[index] : nullptr;
  }
  void MarkSent() { ++next_to_send_; }

  // The receiver has taken everything up to `number`. False when it acknowledges what was never written: it is
  // broken, or speaks of another life.
  bool Acknowledge(uint64_t number) {
    if (number >= next_to_send_ && number > highest_sent_) return false;
    while (!entries_.empty() && entries_.front().number <= number) {
      bytes_ -= entries_.front().bytes;
      entries_.pop_front();
    }
    if (next_to_send_ <= number) next_to_send_ = number + 1;
    return true;
  }

  // A new stream of the same two lives: what is not acknowledged goes out again. `acknowledged` is what the receiver
  // says it has taken. False as above.
  bool Rewind(uint64_t acknowledged) {
    highest_sent_ = next_to_send_ - 1 > highest_sent_ ? next_to_send_ - 1 : highest_sent_;
    // It had taken more before: it has forgotten what it promised to keep.
    if (acknowledged + 1 < first_number()) return false;
    if (!Acknowledge(acknowledged)) return false;
    next_to_send_ = first_number();
    return true;
  }

  // Another life: drops everything and counts from 1 again.
  void Reset() {
    entries_.clear();
    bytes_ = 0;
    next_number_ = 1;
    next_to_send_ = 1;
    highest_sent_ = 0;
  }

 private:
  uint64_t first_number() const { return next_number_ - entries_.size(); }

  const OutboxLimits limits_;
  std::deque<Entry> entries_;
  size_t bytes_ = 0;
  uint64_t next_number_ = 1;
  uint64_t next_to_send_ = 1;
  uint64_t highest_sent_ = 0;  // on earlier streams
};

// What has been taken. Numbers come in order; those of a resend that were taken before are duplicates.
class Inbox {
 public:
  enum class Verdict { kTake, kDuplicate, kOutOfOrder };
  Verdict Receive(uint64_t number) {
    if (number == taken_ + 1) {
      taken_ = number;
      return Verdict::kTake;
    }
    return number != 0 && number <= taken_ ? Verdict::kDuplicate : Verdict::kOutOfOrder;
  }
  // Highest number taken: what an acknowledgement says.
  uint64_t taken() const { return taken_; }
  void Reset() { taken_ = 0; }

 private:
  uint64_t taken_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_OUTBOX_H_
