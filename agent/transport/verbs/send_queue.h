// The accounts of one queue pair's send queue: how many work requests fit, which of them are signalled, what a
// completion completes. Pure; of the rail's thread.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_SEND_QUEUE_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_SEND_QUEUE_H_

#include <cstdint>

namespace railsd::verbs {

// Room in the completion queue, shared by all queue pairs of a rail. In error every outstanding work request yields a
// completion, signalled or not, so each takes an entry when it is posted.
class CompletionRoom {
 public:
  explicit CompletionRoom(uint32_t entries) : free_(entries) {}
  uint32_t free() const { return free_; }
  void Take(uint32_t count) { free_ -= count; }
  void Give(uint32_t count) { free_ += count; }

 private:
  uint32_t free_;
};

// Work requests are numbered from 1 and wrap; RC completes them in order.
class SendQueue {
 public:
  // `depth`: work requests that may be outstanding, at least 1. `room` outlives it.
  SendQueue(uint32_t depth, CompletionRoom* room) : depth_(depth), room_(room) {}
  ~SendQueue() { room_->Give(outstanding()); }
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  // How many work requests may be posted now.
  uint32_t Free() const;
  uint32_t outstanding() const { return last_ - completed_; }
  uint32_t last() const { return last_; }
  uint32_t completed() const { return completed_; }

  // Numbers the next work request. Free() is not 0. Afterwards the caller may ask MustSignal().
  uint32_t Next();
  // True if the last numbered one must be signalled, because otherwise half of the queue would hold no signal. It then
  // counts as signalled.
  bool MustSignal();
  // The last numbered one is signalled.
  void Signal() { unsignalled_ = 0; }
  // Takes back the last `count` numbered ones, which the device has refused.
  void Unpost(uint32_t count);
  // Work request `sequence` is done. False when it is not outstanding.
  bool Complete(uint32_t sequence);

  // Whether `sequence`, which was numbered, is done. Valid for the last 2^31 ones.
  bool IsDone(uint32_t sequence) const { return static_cast<int32_t>(completed_ - sequence) >= 0; }

 private:
  const uint32_t depth_;
  CompletionRoom* const room_;
  uint32_t last_ = 0;
  uint32_t completed_ = 0;
  uint32_t unsignalled_ = 0;  // since the last signalled one
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_SEND_QUEUE_H_
