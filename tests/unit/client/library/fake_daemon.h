// A daemon of a few lines for the tests of the client library: the descriptor socket and rings, no data plane.
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
  // The daemon's answers to a submission. kHold: none. kEndAndAccept: report that it has ended well, and answer then.
  enum class Fate { kAccept, kRefuse, kHold, kEndAndAccept };

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
  // The next `count` calls of WaitJob fail.
  void FailWaits(int count, absl::Status status);
  // The end of this job is not reported but missed.
  void MissEnd(uint64_t seq);
  void RefuseJoins(absl::Status status);
  // From now on joins are not answered; until they are.
  void HoldJoins(bool hold);
  void RefuseSegments(absl::Status status);
  void HoldSegments(bool hold);  // requests to share one are not answered
  void HoldRequests(bool hold);  // nothing is taken out of the rings
  void BreakRings();             // their counters become impossible
  // Makes the job terminal and reports it, also one that comes later.
  void FinishJob(uint64_t seq, absl::Status status = absl::OkStatus());
  // Another node's daemon has ended: unfinished jobs end as replayable, and jobs are taken in the next epoch only.
  void EndEpoch();

  std::vector<v1::SubmitAllToAllRequest> submissions() const;  // all that came, refused ones too
  std::vector<v1::SubmitPreparedRequest> prepared_submissions() const;
  std::vector<v1::PrepareAllToAllRequest> preparations() const;  // all that came, refused ones too
  std::vector<uint64_t> prepared() const;                        // ids of those that were not released
  int too_early() const;                                         // removals of segments that prepared ranges name
  // From now on.
  void RefusePreparations(absl::Status status);
  std::vector<uint64_t> joins() const;     // their next_seq, of refused ones too
  std::vector<uint64_t> accepted() const;  // numbers, in order
  std::vector<uint64_t> waits() const;     // numbers of the jobs that were asked about
  std::vector<uint64_t> cancelled() const;
  std::map<uint32_t, SharedSegment> segments() const;
  std::map<uint32_t, uint64_t> reservations() const;  // lengths of all that came
  int leaves() const;
  int sessions_open() const;
  std::vector<uint64_t> given_up() const;  // calls
  uint64_t records() const;                // that the rings brought
  uint64_t untaken_bytes() const;          // of requests in the rings

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rails::testing

#endif  // RAILS_TESTS_UNIT_CLIENT_LIBRARY_FAKE_DAEMON_H_
