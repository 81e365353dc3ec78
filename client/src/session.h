// One session with a daemon: descriptor channel, calls through the ring, unfinished jobs, and the reason of its end.
#ifndef RAILS_CLIENT_SRC_SESSION_H_
#define RAILS_CLIENT_SRC_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/deadline.h"
#include "client/src/descriptor_channel.h"
#include "client/src/owner_process.h"
#include "client/src/ring_calls.h"
#include "client/src/watcher.h"
#include "rails/client.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/ring.pb.h"

namespace rails::internal {

class JobCore;

// Identifies a job over all epochs: boot id and counter of the epoch, number, rank.
using JobKey = std::tuple<uint64_t, uint64_t, uint64_t, uint32_t>;
inline JobKey KeyOf(const v1::JobId& id) { return {id.epoch().boot_id(), id.epoch().counter(), id.seq(), id.rank()}; }
void IdOf(const JobKey& key, v1::JobId* id);

// Time limit for a daemon on the same machine:
inline constexpr absl::Duration kCallTimeout = absl::Seconds(10);  // a call that does not wait for other ranks or jobs

// `duration` in whole milliseconds for requests, rounded up.
inline uint64_t WholeMilliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))));
}

// INVALID_ARGUMENT unless positive.
absl::Status CheckTimeout(absl::Duration timeout);

// The status of jobs whose session is lost: ABORTED where later calls get UNAVAILABLE, because the jobs may have begun
// to write.
absl::Status EndOfJobs(const absl::Status& lost);

// Thread-safe. The session is lost for good at the first sign that the daemon has exited or ended the session.
class Session final : public RingListener, public std::enable_shared_from_this<Session> {
 public:
  // Retries until `options.connect_timeout`. Errors name the socket and the reason, and say what to do. `watcher`
  // outlives the use of the session.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const ClientOptions& options, std::shared_ptr<Watcher> watcher);
  Session(std::unique_ptr<DescriptorChannel> channel, std::shared_ptr<Watcher> watcher)
      : watcher_(std::move(watcher)), channel_(std::move(channel)) {}

  const SessionHello& hello() const { return channel_->hello(); }

  // OK while the session lives, else the reason of its end. Also refuses a forked child.
  absl::Status Usable() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const { return !lost_flag_.load(std::memory_order_acquire); }
  // Calls `on_lost` once, when the session is lost and its jobs have ended, on the thread that ends them; at once if
  // that has already happened.
  void OnLost(std::function<void()> on_lost) ABSL_LOCKS_EXCLUDED(mutex_);

  // Begins to watch for the daemon's exit.
  void Watch();
  // Ends the session. Reads the last reports, then ends unfinished jobs and calls under way with `why`.
  void Lose(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the session once the daemon has released dropped segments. Must not be called from a callback.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls. The daemon's own errors keep their code and text; DEADLINE_EXCEEDED: no answer in time; if the session is
  // lost, the reason.
  //
  // Joins a group. If the answer comes after the call has returned, the rank leaves again.
  absl::StatusOr<v1::JoinGroupResponse> Join(const v1::JoinGroupRequest& request, Deadline deadline,
                                             const void* caller);
  // Ends the joins of `caller` under way with CANCELLED.
  void GiveUpJoins(const void* caller) { calls_->GiveUp(caller); }
  absl::Status Leave(const v1::Epoch& epoch, uint32_t rank);
  // `*known`: false if the daemon may have accepted the job although this is an error.
  absl::Status Submit(const v1::SubmitAllToAllRequest& request, Deadline deadline, bool* known);
  absl::Status Submit(const v1::SubmitPreparedRequest& request, Deadline deadline, bool* known);
  // An id for a prepared exchange, never used before in this session.
  uint64_t NextPreparedId() { return prepared_.fetch_add(1, std::memory_order_relaxed) + 1; }
  absl::Status Prepare(const v1::PrepareAllToAllRequest& request, Deadline deadline);
  // Does not wait. The daemon gets later removals of segments after this.
  void ReleasePrepared(uint64_t id);
  absl::Status CancelJob(const JobKey& job);
  // Asks for the job's present state.
  absl::StatusOr<v1::JobReport> AskForJob(const JobKey& job, Deadline deadline);
  // The same, without waiting. `done` runs on the thread that reads the answer, if one comes.
  void AskForJobAsync(const JobKey& job, std::function<void(absl::StatusOr<v1::JobReport>)> done);

  // Waits until `waiter` is done; hands out answers and reports meanwhile.
  bool Wait(Waiter& waiter, Deadline deadline) { return calls_->Wait(waiter, deadline); }
  // Hands out reports even if no thread waits, until Unfollow().
  void Follow() { calls_->Follow(); }
  void Unfollow() { calls_->Unfollow(); }

  // The unfinished jobs, which get the reports, and which Lose() ends. AddJob() fails if the session is lost.
  absl::Status AddJob(const JobKey& id, std::shared_ptr<JobCore> job) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetJob(const JobKey& id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reserves a segment that is about to be shared; DropSegment() frees the reservation. ReserveSegment() and
  // ShareSegment() wait for removals under way, which count against the same quota. If a request gets no answer within
  // `timeout`, the session is lost.
  absl::Status ReserveSegment(uint32_t id, uint64_t length_bytes, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ShareSegment(uint32_t id, int fd, uint64_t length_bytes, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the daemon to release a segment; does not wait. If the daemon refuses, it keeps the segment until the session
  // ends.
  void DropSegment(uint32_t id) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReport(const v1::JobReport& report) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnMissed() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnHangUp(const absl::Status& why) override;

 private:
  static absl::StatusOr<std::shared_ptr<Session>> TryOpen(const ClientOptions& options, const std::string& directory,
                                                          absl::Duration timeout, std::shared_ptr<Watcher> watcher);
  // Describes the end: the daemon's process has ended, the daemon has closed the session, or this client has, because
  // of `broken` or of the descriptor channel.
  absl::Status HowItEnded(const absl::Status& broken) const;
  absl::Status SubmitAs(ring::Kind kind, const google::protobuf::MessageLite& request, Deadline deadline, bool* known);
  template <typename Response>
  absl::StatusOr<Response> Call(ring::Kind kind, const google::protobuf::MessageLite& request, Deadline deadline,
                                RingCalls::CallOptions options);
  absl::Status AskForSegment(uint32_t id, absl::Duration timeout, absl::FunctionRef<absl::Status(absl::Duration)> ask)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the daemon has not released all dropped segments by then.
  bool AwaitRemovals(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<JobCore>> UnfinishedJobs() const ABSL_LOCKS_EXCLUDED(mutex_);

  const OwnerProcess owner_{};
  const std::shared_ptr<Watcher> watcher_;
  const std::unique_ptr<DescriptorChannel> channel_;
  std::shared_ptr<RingCalls> calls_;  // set by TryOpen()
  std::atomic<uint64_t> prepared_{0};
  std::atomic<bool> lost_flag_{false};
  mutable absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool jobs_ended_ ABSL_GUARDED_BY(mutex_) = false;  // Lose() has ended the jobs
  absl::flat_hash_map<JobKey, std::shared_ptr<JobCore>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> on_lost_ ABSL_GUARDED_BY(mutex_);
  uint32_t removals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Waiter*> removal_waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_SESSION_H_
