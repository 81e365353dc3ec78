// The answering half of one session's ring: keeps the unanswered calls, and writes answers and reports.
#ifndef RAILSD_DAEMON_RING_RING_ANSWERS_H_
#define RAILSD_DAEMON_RING_RING_ANSWERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "agent/agent.h"
#include "daemon/ring/ring_memory.h"
#include "daemon/ring/ring_server.h"
#include "daemon/services/calls.h"
#include "daemon/services/job_feed.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/ring.pb.h"

namespace railsd {

// Any thread may call any method. No method blocks, because the engine's thread answers calls and reports jobs.
class RingAnswers final : public ReportSink, public std::enable_shared_from_this<RingAnswers> {
 public:
  // `fail` ends the session. It is called at most once, with a lock held, and must not block. `counters` outlives this.
  RingAnswers(std::shared_ptr<RingMemory> memory, RingCounters* counters, std::function<void(const std::string&)> fail);
  ~RingAnswers() override;

  // Begins a call. Null: an earlier call of this id is unanswered, or the ring is closed. `prototype`: an empty
  // response.
  std::shared_ptr<Call> Begin(uint64_t id, absl::string_view method, const google::protobuf::Message& prototype,
                              const std::shared_ptr<CallCounters>& calls);
  size_t unanswered() const;
  bool closed() const;
  void GiveUp(uint64_t id);

  void Push(const JobReport& report) override;

  // Writes no more answers and reports.
  void Mute();
  // Ends the session because of what its client did.
  void Break(const std::string& why);
  // Gives up all calls and drops the memory. The client can still read written records.
  void Close();

 private:
  friend class RingCall;

  // False: this answer cannot reach the client, because the ring is closed, muted or full, or the answer is too long.
  bool WriteAnswer(uint64_t id, const absl::Status& status, Call::Fill fill,
                   const google::protobuf::Message& prototype);
  void FailOnce(std::atomic<uint64_t>* counter, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RingCounters* const counters_;
  mutable absl::Mutex mutex_;
  std::function<void(const std::string&)> fail_ ABSL_GUARDED_BY(mutex_);  // null after it was called
  std::shared_ptr<RingMemory> memory_ ABSL_GUARDED_BY(mutex_);            // null when closed
  bool muted_ ABSL_GUARDED_BY(mutex_) = false;
  rails::ring::Writer writer_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  // Members, so that the next answer or report uses their allocated memory again.
  rails::v1::RingAnswer answer_ ABSL_GUARDED_BY(mutex_);
  rails::v1::JobReport report_ ABSL_GUARDED_BY(mutex_);
  std::string payload_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_RING_RING_ANSWERS_H_
