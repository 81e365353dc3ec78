// The messages to a group's worker: from callers, from the driver's threads and from the client's.
#ifndef RAILS_CLIENT_CUDA_INBOX_H_
#define RAILS_CLIENT_CUDA_INBOX_H_

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "client/cuda/operation.h"
#include "client/src/deadline.h"
#include "rails/client.h"

namespace rails::cuda {

struct Message {
  enum class Kind {
    kSubmitted,  // `operation` is the next one
    kCopiedOut,  // the bytes of `buffer` are in the host's memory
    kEnded,      // the daemon's job of `buffer` has ended, with `report`; `report.status` also says if there is none
    kCopiedIn,   // the bytes of `buffer` are on the device
    kCancel,     // `operation` shall end
    kStop,       // the group is dropped
  };
  Kind kind;
  uint32_t buffer = 0;
  std::shared_ptr<Operation> operation{};
  JobReport report{};
};

// Bounded by its senders: two messages of the device and one of the daemon for each buffer, 64 operations, which each
// handle cancels once. Thread-safe.
class Inbox {
 public:
  void Put(Message message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
    changed_.WakeAll();
  }
  // Takes the oldest message; none once the deadline has passed.
  std::optional<Message> Take(internal::Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); };
    if (!changed_.Await(mutex_, any, deadline)) return std::nullopt;
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  bool empty() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return messages_.empty();
  }

 private:
  mutable absl::Mutex mutex_;
  internal::WaitQueue changed_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_INBOX_H_
