// Calls to the daemon's gRPC socket, without gRPC in the header: one file of the library compiles against it.
#ifndef RAILS_CLIENT_SRC_RPC_H_
#define RAILS_CLIENT_SRC_RPC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/session.pb.h"

namespace rails::internal {

// `duration` in milliseconds, rounded up, as requests carry it.
inline uint64_t WholeMilliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))));
}

// How far an error of Submit() settles that the job has not been accepted.
enum class Refused {
  kUnknown,      // it may have been
  kThisAttempt,  // not by this call
  kJob,          // by no attempt so far, and none will be
};

// Thread-safe. Every call carries the session's token and a deadline. The daemon's own errors pass through with their
// code and text; errors of the connection are UNAVAILABLE and name the socket.
class Rpc {
 public:
  // `socket_path` is absolute. Connects when first used.
  static std::unique_ptr<Rpc> Create(std::string socket_path, std::string token);
  // Cancels what is under way and waits until no callback runs any more.
  virtual ~Rpc() = default;

  // Blocks until the socket is connected; false when that takes longer than `timeout`.
  virtual bool WaitConnected(absl::Duration timeout) = 0;

  virtual absl::StatusOr<v1::GetSessionResponse> GetSession(absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::JoinGroupResponse> Join(const v1::JoinGroupRequest& request, absl::Duration timeout) = 0;
  // Joins of the group that are under way return CANCELLED; a rank that joins all the same leaves at once.
  virtual void CancelJoins(const std::string& group, uint32_t rank) = 0;
  virtual absl::Status Leave(const v1::LeaveGroupRequest& request, absl::Duration timeout) = 0;
  virtual absl::Status Submit(const v1::SubmitAllToAllRequest& request, absl::Duration timeout, Refused* refused) = 0;
  virtual absl::Status CancelJob(const v1::JobId& job, absl::Duration timeout) = 0;

  // Asks for a report when the job is terminal, or after `wait`. The call itself may take `grace` longer.
  virtual absl::StatusOr<v1::JobReport> WaitJob(const v1::JobId& job, absl::Duration wait, absl::Duration grace) = 0;
  // The same; `done` is called once, from a thread of gRPC or from this one.
  virtual void WaitJobAsync(const v1::JobId& job, absl::Duration wait, absl::Duration grace,
                            std::function<void(absl::StatusOr<v1::JobReport>)> done) = 0;
  // Reports of the session's jobs as they end, without being asked, until the stream breaks. The functions are called
  // one at a time, from a thread of its own; `on_end` last, and always (from this thread when no call may start any
  // more). To be called once.
  struct JobFeed {
    std::function<void()>
        on_live;  // no job that ends from now on is left out, but for those that are counted as missed
    std::function<void(const v1::WatchJobsResponse&)> on_report;
    std::function<void()> on_end;
  };
  virtual void WatchJobs(JobFeed feed) = 0;
  virtual void RemoveSegmentAsync(uint32_t segment_id, absl::Duration timeout,
                                  std::function<void(absl::Status)> done) = 0;

  // Cancels what is under way and refuses what comes later, with CANCELLED.
  virtual void CancelAll() = 0;
  // Waits until the calls under way, and their callbacks, have returned. After CancelAll().
  virtual void Drain() = 0;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_RPC_H_
