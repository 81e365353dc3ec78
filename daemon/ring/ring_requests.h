// The requesting half of one session's ring: reads requests and runs their calls.
#ifndef RAILSD_DAEMON_RING_RING_REQUESTS_H_
#define RAILSD_DAEMON_RING_RING_REQUESTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/agent.h"
#include "daemon/ring/ring_answers.h"
#include "daemon/ring/ring_memory.h"
#include "daemon/ring/ring_server.h"
#include "daemon/services/services.h"

namespace railsd {

// Shared by all sessions.
struct RingShared {
  RingServerOptions options;
  std::shared_ptr<const ServiceContext> context;
  RingCounters counters;
  std::atomic<uint64_t> part_bytes{0};  // of requests whose last part has not come
};

// Used by one thread at a time: the engine's, or one of the threads "rings".
class RingRequests {
 public:
  RingRequests(SessionId session, std::shared_ptr<RingMemory> memory, std::shared_ptr<RingAnswers> answers,
               RingShared* shared);
  ~RingRequests();

  // Empties the doorbell, and clears the sleep flag. False: the client has closed its doorbell. This does not end the
  // session: the client's connection, which may close earlier or later, does.
  bool Wake();
  enum class Turn {
    kGoesOn,  // there may be more requests
    kSleeps,  // the client rings with its next request
    kLong,    // the next request is longer than `most_bytes`, or in parts; the rest stays in the ring
    kBroken,  // the client broke the rules, which ends the session
  };
  // Serves some requests without waiting for the engine. `block`: scratch memory. `most_bytes`: of one request.
  Turn Serve(absl::Span<char> block, size_t most_bytes);

 private:
  // Takes the record that was read last. False: the client broke the rules.
  bool Take(absl::Span<char> block);
  void TakePart();
  // Runs the call of the request `payload`. If `refused` is an error, answers with it instead.
  bool Run(absl::Span<char> block, const std::string& payload, const absl::Status& refused);
  template <typename Kind>
  bool RunCall(const Kind& kind, absl::Span<char> block, const std::string& payload, const absl::Status& refused);
  bool Break(const std::string& why);
  void DropParts();

  const SessionId session_;
  const std::shared_ptr<RingMemory> memory_;
  const std::shared_ptr<RingAnswers> answers_;
  RingShared* const shared_;
  rails::ring::Reader reader_;
  // The last record.
  rails::ring::RecordHeader header_;
  std::string payload_;
  // A request whose last part has not come.
  bool in_parts_ = false;
  rails::ring::RecordHeader first_;  // of its first part
  std::string parts_;
  absl::Status parts_refused_;  // not OK: it is too long, and its parts are dropped
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_RING_RING_REQUESTS_H_
