// The descriptor socket. Opens the session and its ring, and carries the descriptors of segments.
#ifndef RAILS_CLIENT_SRC_DESCRIPTOR_CHANNEL_H_
#define RAILS_CLIENT_SRC_DESCRIPTOR_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/daemon_life.h"
#include "client/src/deadline.h"
#include "client/src/unique_fd.h"
#include "rails/v1/descriptor.pb.h"

namespace rails::internal {

// The daemon's answer to the opening of a session.
struct SessionHello {
  uint64_t session_id = 0;
  uint64_t boot_id = 0;
  std::string token;  // secret: never logged
  std::string node;
  std::shared_ptr<DaemonLife> daemon;
  int64_t daemon_pid = 0;  // listening process, in this process's PID namespace; 0: not visible
};

// The descriptors that come with OpenRingResponse.
struct RingDescriptors {
  UniqueFd requests, answers, doorbell;
};

// Payload of a PERMISSION_DENIED of DescriptorChannel::Open() that the daemon itself answered, so a retry does not
// help. A socket that does not have its mode yet gives PERMISSION_DENIED without it.
inline constexpr char kSaidByDaemon[] = "rails/said_by_daemon";

// Thread-safe: one request at a time. The daemon keeps the session while this object lives.
class DescriptorChannel {
 public:
  // Connects to the socket at `path` and opens a session. Errors name the path and say what to do. UNAVAILABLE: a retry
  // may help.
  static absl::StatusOr<std::unique_ptr<DescriptorChannel>> Open(const std::string& path,
                                                                 const std::string& client_name,
                                                                 absl::Duration timeout);

  const SessionHello& hello() const { return hello_; }
  // For watching only. Hangs up when the daemon ends the session.
  int fd() const { return socket_.get(); }
  // Asks for the session's ring, once.
  absl::StatusOr<RingDescriptors> OpenRing(absl::Duration timeout);
  // Reserves the segment in limits and quotas. UNAVAILABLE: the daemon has exited. DEADLINE_EXCEEDED: it does not
  // answer; the channel is then out_of_step().
  absl::Status ReserveSegment(uint32_t segment_id, uint64_t length_bytes, absl::Duration timeout);
  // Shares `memory_fd`, which the caller keeps. Errors as for ReserveSegment().
  absl::Status AddSegment(uint32_t segment_id, int memory_fd, uint64_t length_bytes, absl::Duration timeout);
  // True if answers and requests no longer match. Further requests fail.
  bool out_of_step() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the session. Requests in progress and later ones fail. The descriptor stays open for watchers.
  void Shutdown();
  // Why this end closed the session: the daemon gave no answer or a malformed one. OK if this end did not close it.
  absl::Status GivenUp() const ABSL_LOCKS_EXCLUDED(end_mutex_);

 private:
  DescriptorChannel(std::string path, UniqueFd socket) : path_(std::move(path)), socket_(std::move(socket)) {}

  // Sends a request, with the descriptor `attachment` unless it is -1, and takes the answer. `received` gets the
  // answer's descriptors.
  absl::Status Exchange(const v1::DescriptorRequest& request, int attachment, absl::Duration timeout,
                        v1::DescriptorResponse* response, std::vector<UniqueFd>* received) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Send(const std::string& packet, int attachment, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Receive(Deadline deadline, v1::DescriptorResponse* response, std::vector<UniqueFd>* received)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitFor(short events, Deadline deadline);
  absl::Status Gone(absl::string_view doing, int error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const UniqueFd socket_;
  SessionHello hello_;
  mutable absl::Mutex mutex_;
  // Set when an answer did not come or was malformed: answers and requests no longer match.
  bool out_of_step_ ABSL_GUARDED_BY(mutex_) = false;
  bool hung_up_ ABSL_GUARDED_BY(mutex_) = false;  // the other end has closed the socket
  mutable absl::Mutex end_mutex_;                 // never held while a request is under way
  absl::Status given_up_ ABSL_GUARDED_BY(end_mutex_);
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_DESCRIPTOR_CHANNEL_H_
