// Passes answers of the agent to the thread of the descriptor server.
#ifndef RAILSD_DAEMON_SESSION_ANSWER_MAILBOX_H_
#define RAILSD_DAEMON_SESSION_ANSWER_MAILBOX_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "agent/agent.h"
#include "agent/base/wake_event.h"

namespace railsd {

// An answer of the agent for the server's thread. A connection waits for at most one answer, and at most one
// kRingFailed comes beside it.
struct Answer {
  enum class Kind { kOpen, kReserve, kAdd, kRingFailed };
  uint64_t connection = 0;
  Kind kind = Kind::kOpen;
  absl::Status status;
  SessionId session;
};

// Passes answers to the server's thread. Outlives the server if the agent answers late.
class AnswerMailbox {
 public:
  explicit AnswerMailbox(WakeEvent wake) : wake(std::move(wake)) {}
  void Push(Answer answer) {
    {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(std::move(answer));
    }
    wake.Wake();
  }
  std::vector<Answer> TakeAll() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(answers_, {});
  }
  bool empty() const {
    absl::MutexLock lock(&mutex_);
    return answers_.empty();
  }
  WakeEvent wake;

 private:
  mutable absl::Mutex mutex_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_ANSWER_MAILBOX_H_
