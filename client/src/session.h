// One life of the connection to one daemon: descriptor channel, calls, unfinished jobs, and what ended it.
#ifndef RAILS_CLIENT_SRC_SESSION_H_
#define RAILS_CLIENT_SRC_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/descriptor_channel.h"
#include "client/src/owner_process.h"
#include "client/src/rpc.h"
#include "client/src/watcher.h"
#include "rails/client.h"

namespace rails::internal {

class JobCore;

// What the calls wait for. The defaults suit a daemon on the same machine.
inline constexpr absl::Duration kCallTimeout = absl::Seconds(10);  // for an answer that waits for nobody
inline constexpr absl::Duration kWaitChunk = absl::Seconds(30);    // one WaitJob call

// INVALID_ARGUMENT unless positive.
absl::Status CheckTimeout(absl::Duration timeout);

// How jobs end whose session is lost: ABORTED where later calls get UNAVAILABLE, since they may have begun to write.
absl::Status EndOfJobs(const absl::Status& lost);

// Thread-safe. Lost for good at the first sign that the daemon or the session is gone.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // Tries until `options.connect_timeout`; the error says which socket failed, how, and what to do. `watcher` outlives
  // the session's use.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const ClientOptions& options, std::shared_ptr<Watcher> watcher);
  Session(std::unique_ptr<DescriptorChannel> channel, std::unique_ptr<Rpc> rpc, std::shared_ptr<Watcher> watcher);
  ~Session();

  const SessionHello& hello() const { return channel_->hello(); }
  Rpc& rpc() { return *rpc_; }
  // For SubmitAllToAllRequest.attempt.
  uint64_t NextAttempt() { return attempts_.fetch_add(1, std::memory_order_relaxed) + 1; }
  const std::shared_ptr<Watcher>& watcher() const { return watcher_; }

  // Whether this process opened the session. Takes no lock.
  const OwnerProcess& owner() const { return owner_; }
  // OK while the session lives; else why it does not. Also refuses a forked child.
  absl::Status Usable() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const { return !lost_flag_.load(std::memory_order_acquire); }
  // Nobody will hear of the end of a job any more: the session is lost, and what had been said has been read.
  bool reports_ended() const { return reports_ended_.load(std::memory_order_acquire); }
  // `on_lost` is called once when the session is lost and its jobs have ended, from whichever thread ends them; at once
  // when that is so already.
  void OnLost(std::function<void()> on_lost) ABSL_LOCKS_EXCLUDED(mutex_);

  // Starts to watch for the daemon's end and for the ends of jobs.
  void Watch();
  // The session is over: its unfinished jobs end with `why`, and calls under way are cancelled. When the daemon has
  // gone, what it has said of jobs that ended before is read first.
  void Lose(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Loses the session and waits for its calls. Not from a callback.
  void Close();

  // Unfinished jobs, which Lose() ends. Adding one fails when the session is lost.
  absl::Status AddJob(std::shared_ptr<JobCore> job) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetJob(JobCore* job) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes the room of a segment that is about to be shared; DropSegment() gives it back. Like ShareSegment() after the
  // removals under way: they count against the same quota. A request that is not answered within `timeout` is the
  // session's last.
  absl::Status ReserveSegment(uint32_t id, uint64_t length_bytes, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ShareSegment(uint32_t id, int fd, uint64_t length_bytes, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the daemon to let go of a segment; does not wait. A refusal leaves it there until the session ends.
  void DropSegment(uint32_t id) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The daemon's process has ended, it has closed the session, or this client has.
  std::string HowItEnded() const;
  absl::Status AskForSegment(uint32_t id, absl::Duration timeout, absl::FunctionRef<absl::Status(absl::Duration)> ask)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReport(const v1::WatchJobsResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFeedEnd() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a lost session. Once; later calls change nothing.
  void EndJobs() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<JobCore>> UnfinishedJobs() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends may have been missed: who waits for them asks.
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
  absl::flat_hash_map<JobCore*, std::shared_ptr<JobCore>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool told_unasked_ ABSL_GUARDED_BY(mutex_) = false;  // the ends of jobs
  std::vector<std::function<void()>> on_lost_ ABSL_GUARDED_BY(mutex_);
  uint32_t removals_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_SESSION_H_
