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

// One thread at a time uses it: the engine's, or that of long requests.
class RingRequests {
 public:
  RingRequests(SessionId session, std::shared_ptr<RingMemory> memory, std::shared_ptr<RingAnswers> answers,
               RingShared* shared);
  ~RingRequests();

  // Forgets the rings of the client. False: the client has closed its doorbell. It does so when it ends, in any order
  // with its connection, whose end is the session's.
  bool Wake();
  enum class Turn {
    kGoesOn,  // there may be more requests
    kSleeps,  // the client rings with its next request
    kLong,    // the next request is longer than `most_bytes`, or in parts; what was not taken is left in the ring
    kBroken,  // the client broke the rules, which ends the session
  };
  // Serves some requests, none of which waits for the engine. `block` is scratch memory. `most_bytes`: of a request.
  Turn Serve(absl::Span<char> block, size_t most_bytes);

 private:
  // False: broken.
  bool Take(absl::Span<char> block);
  void TakePart();
  // `refused`: answers with it instead.
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
  // The record that was read last.
  rails::ring::RecordHeader header_;
  std::string payload_;
  // The request whose last part has not come.
  bool in_parts_ = false;
  rails::ring::RecordHeader first_;  // of its first part
  std::string parts_;
  absl::Status parts_refused_;  // not OK: it is too long, and its parts are dropped
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_RING_RING_REQUESTS_H_
