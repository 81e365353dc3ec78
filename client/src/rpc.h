// Calls to the daemon's gRPC socket. The header needs no gRPC, so only rpc.cc compiles against it.
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

// `duration` in whole milliseconds for requests, rounded up.
inline uint64_t WholeMilliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))));
}

// The scope of an error of Submit(): which attempts the daemon has certainly not accepted.
enum class Refused {
  kUnknown,      // the daemon may have accepted it
  kThisAttempt,  // the daemon has not accepted this attempt
  kJob,          // the daemon has accepted no attempt so far, and will accept none of them
};

// Thread-safe. Every call carries the session's token and a deadline. The daemon's own errors keep their code and text.
// Errors of the connection are UNAVAILABLE and name the socket.
class Rpc {
 public:
  // `socket_path` is absolute. Connects when first used.
  static std::unique_ptr<Rpc> Create(std::string socket_path, std::string token);
  // Cancels the calls under way and waits for their callbacks.
  virtual ~Rpc() = default;

  // Blocks until the socket is connected. False: not connected within `timeout`.
  virtual bool WaitConnected(absl::Duration timeout) = 0;

  virtual absl::StatusOr<v1::GetSessionResponse> GetSession(absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::JoinGroupResponse> Join(const v1::JoinGroupRequest& request, absl::Duration timeout) = 0;
  // Cancels joins of the group under way; they return CANCELLED. If the rank has joined nevertheless, it leaves at
  // once.
  virtual void CancelJoins(const std::string& group, uint32_t rank) = 0;
  virtual absl::Status Leave(const v1::LeaveGroupRequest& request, absl::Duration timeout) = 0;
  virtual absl::Status Submit(const v1::SubmitAllToAllRequest& request, absl::Duration timeout, Refused* refused) = 0;
  virtual absl::Status CancelJob(const v1::JobId& job, absl::Duration timeout) = 0;

  // Returns a report when the job is terminal, or after `wait`. The call may take `grace` longer.
  virtual absl::StatusOr<v1::JobReport> WaitJob(const v1::JobId& job, absl::Duration wait, absl::Duration grace) = 0;
  // The same. Calls `done` once, on a thread of gRPC or on this one.
  virtual void WaitJobAsync(const v1::JobId& job, absl::Duration wait, absl::Duration grace,
                            std::function<void(absl::StatusOr<v1::JobReport>)> done) = 0;
  // Streams reports of the session's jobs as they end, until the stream breaks. Calls the functions one at a time on
  // its own thread. `on_end` is always called, and last (on this thread if the object is closed). Call WatchJobs()
  // once.
  struct JobFeed {
    std::function<void()> on_live;  // from now on every job that ends is reported, or counted as missed
    std::function<void(const v1::WatchJobsResponse&)> on_report;
    std::function<void()> on_end;
  };
  virtual void WatchJobs(JobFeed feed) = 0;
  virtual void RemoveSegmentAsync(uint32_t segment_id, absl::Duration timeout,
                                  std::function<void(absl::Status)> done) = 0;

  // Cancels the calls under way and refuses later ones with CANCELLED.
  virtual void CancelAll() = 0;
  // Waits until the calls under way and their callbacks have returned. Call it after CancelAll().
  virtual void Drain() = 0;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_RPC_H_
