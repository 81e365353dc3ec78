// One session with a daemon: descriptor channel, calls, unfinished jobs, and the reason of its end.
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
#include "client/src/rpc.h"
#include "client/src/watcher.h"
#include "rails/client.h"

namespace rails::internal {

class JobCore;

// Identifies a job over all epochs: boot id and counter of the epoch, number, rank.
using JobKey = std::tuple<uint64_t, uint64_t, uint64_t, uint32_t>;
inline JobKey KeyOf(const v1::JobId& id) { return {id.epoch().boot_id(), id.epoch().counter(), id.seq(), id.rank()}; }

// Time limits of calls, for a daemon on the same machine.
inline constexpr absl::Duration kCallTimeout = absl::Seconds(10);  // a call that does not wait for other ranks or jobs
inline constexpr absl::Duration kWaitChunk = absl::Seconds(30);    // one WaitJob call

// INVALID_ARGUMENT unless positive.
absl::Status CheckTimeout(absl::Duration timeout);

// The status of jobs whose session is lost: ABORTED where later calls get UNAVAILABLE, because the jobs may have begun
// to write.
absl::Status EndOfJobs(const absl::Status& lost);

// Thread-safe. The session is lost for good at the first sign that the daemon has exited or ended the session.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // Retries until `options.connect_timeout`. Errors name the socket and the reason, and say what to do. `watcher`
  // outlives the use of the session.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const ClientOptions& options, std::shared_ptr<Watcher> watcher);
  Session(std::unique_ptr<DescriptorChannel> channel, std::unique_ptr<Rpc> rpc, std::shared_ptr<Watcher> watcher);
  ~Session();

  const SessionHello& hello() const { return channel_->hello(); }
  Rpc& rpc() { return *rpc_; }
  // For SubmitAllToAllRequest.attempt.
  uint64_t NextAttempt() { return attempts_.fetch_add(1, std::memory_order_relaxed) + 1; }
  const std::shared_ptr<Watcher>& watcher() const { return watcher_; }

  // Tells whether this process opened the session. Takes no lock.
  const OwnerProcess& owner() const { return owner_; }
  // OK while the session lives, else the reason of its end. Also refuses a forked child.
  absl::Status Usable() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const { return !lost_flag_.load(std::memory_order_acquire); }
  // True once no more reports can come: the session is lost, and all received reports were read.
  bool reports_ended() const { return reports_ended_.load(std::memory_order_acquire); }
  // Calls `on_lost` once, when the session is lost and its jobs have ended, on the thread that ends them; at once if
  // that has already happened.
  void OnLost(std::function<void()> on_lost) ABSL_LOCKS_EXCLUDED(mutex_);

  // Begins to watch for the daemon's exit and for the ends of jobs.
  void Watch();
  // Ends the session: unfinished jobs end with `why`, and calls under way are cancelled. If the daemon has exited,
  // reads its last reports first.
  void Lose(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the session and waits for its calls. Must not be called from a callback.
  void Close();

  // The unfinished jobs, which Lose() ends. AddJob() fails if the session is lost.
  absl::Status AddJob(const v1::JobId& id, std::shared_ptr<JobCore> job) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetJob(const v1::JobId& id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reserves a segment that is about to be shared; DropSegment() frees the reservation. ReserveSegment() and
  // ShareSegment() wait for removals under way, which count against the same quota. If a request gets no answer within
  // `timeout`, the session is lost.
  absl::Status ReserveSegment(uint32_t id, uint64_t length_bytes, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ShareSegment(uint32_t id, int fd, uint64_t length_bytes, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the daemon to release a segment; does not wait. If the daemon refuses, it keeps the segment until the session
  // ends.
  void DropSegment(uint32_t id) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Describes the end: the daemon's process has ended, the daemon has closed the session, or this client has.
  std::string HowItEnded() const;
  absl::Status AskForSegment(uint32_t id, absl::Duration timeout, absl::FunctionRef<absl::Status(absl::Duration)> ask)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReport(const v1::WatchJobsResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFeedEnd() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the jobs of a lost session. Later calls change nothing.
  void EndJobs() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<JobCore>> UnfinishedJobs() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports may have been missed: makes waiting threads ask for their jobs.
  void AskForJobs() ABSL_LOCKS_EXCLUDED(mutex_);
  static absl::StatusOr<std::shared_ptr<Session>> TryOpen(const ClientOptions& options, const std::string& directory,
                                                          absl::Duration timeout, std::shared_ptr<Watcher> watcher);

  const OwnerProcess owner_{};
  const std::shared_ptr<Watcher> watcher_;
  const std::unique_ptr<DescriptorChannel> channel_;
  std::unique_ptr<Rpc> rpc_;
  std::atomic<uint64_t> attempts_{0};
  std::atomic<bool> lost_flag_{false};
  std::atomic<bool> reports_ended_{false};
  mutable absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<JobKey, std::shared_ptr<JobCore>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool told_unasked_ ABSL_GUARDED_BY(mutex_) = false;  // the stream reports the ends of jobs
  std::vector<std::function<void()>> on_lost_ ABSL_GUARDED_BY(mutex_);
  uint32_t removals_ ABSL_GUARDED_BY(mutex_) = 0;
  WaitQueue no_removals_;  // woken when removals_ becomes 0
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_SESSION_H_
