// A daemon of a few lines for the tests of the client library: both sockets, no data plane. gRPC stays in the source.
#ifndef RAILS_TESTS_UNIT_CLIENT_LIBRARY_FAKE_DAEMON_H_
#define RAILS_TESTS_UNIT_CLIENT_LIBRARY_FAKE_DAEMON_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/src/unique_fd.h"
#include "rails/v1/job.pb.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/until.h"

namespace rails::testing {

using railsd::testing::TemporaryFolder;
using railsd::testing::Until;

// Thread-safe. Sessions are not told apart: one client at a time, but for connecting.
class FakeDaemon {
 public:
  struct SharedSegment {
    std::shared_ptr<internal::UniqueFd> fd;
    uint64_t length_bytes = 0;
  };
  struct WaitCall {
    uint64_t timeout_milliseconds = 0;
    bool has_deadline = false;
  };
  // The daemon's answers to a submission: refuse it, refuse this attempt only, accept it and say so, accept it and lose
  // the answer, or accept it and answer with an error of gRPC's own. kHold: no answer before the client gives up.
  // kEndAndAccept: accept it, tell that it has ended well (TellEnds()), and answer then.
  enum class Fate {
    kAccept,
    kRefuse,
    kRefuseAttempt,
    kAcceptAndLoseTheAnswer,
    kAcceptAndRefuse,
    kLoseTheRequest,
    kHold,
    kEndAndAccept
  };

  FakeDaemon(std::string socket_dir, uint64_t boot_id);
  ~FakeDaemon();

  // The sockets close, as when the process is killed; the pidfd is not readable yet.
  void Die();
  // Closes the sessions' descriptor sockets only.
  void CloseSessions();
  // The pidfd becomes readable.
  void EndProcess();

  // The answer to the next submissions, in turn; kAccept when there is no more.
  void PlanSubmissions(std::vector<Fate> fates, absl::Status refusal = absl::OkStatus());
  // The next `count` WaitJob calls answer "running" at once.
  void AnswerEarly(int count);
  // The next `count` calls of WaitJob fail.
  void FailWaits(int count, absl::Status status);
  // From now on WatchJobs is there for sessions that open, and tells ends; it is not at first.
  void TellEnds();
  void StopTelling();  // the streams end
  // The end of this job is not told; the next one says that one was missed.
  void MissEnd(uint64_t seq);
  void ForgetSessions();  // as a daemon that has started again, but the descriptor sockets stay
  void RefuseJoins(absl::Status status);
  // From now on joins are not answered; until they are.
  void HoldJoins(bool hold);
  void RefuseSegments(absl::Status status);
  void HoldSegments(bool hold);  // requests to share one are not answered
  // Makes the job terminal and answers who waits.
  void FinishJob(uint64_t seq, absl::Status status = absl::OkStatus());
  // Another node's daemon has ended: unfinished jobs end as replayable, and jobs are taken in the next epoch only.
  void EndEpoch();

  std::vector<v1::SubmitAllToAllRequest> submissions() const;  // all that came, refused ones too
  std::vector<uint64_t> joins() const;                         // their next_seq, of refused ones too
  std::vector<uint64_t> accepted() const;                      // numbers, in order
  std::vector<WaitCall> waits() const;
  std::vector<uint64_t> cancelled() const;
  std::map<uint32_t, SharedSegment> segments() const;
  std::map<uint32_t, uint64_t> reservations() const;  // lengths of all that came
  int leaves() const;
  int sessions_open() const;
  int calls_without_token() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rails::testing

#endif  // RAILS_TESTS_UNIT_CLIENT_LIBRARY_FAKE_DAEMON_H_
