// Serves the rings of all sessions (common/ring/ring.h).
#ifndef RAILSD_DAEMON_RING_RING_SERVER_H_
#define RAILSD_DAEMON_RING_RING_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "daemon/ring/ring_memory.h"

namespace railsd {

struct ServiceContext;

struct RingServerOptions {
  uint32_t threads = 1;
  uint64_t max_message_bytes = 16 << 20;          // of one request, in parts
  uint64_t max_memory_bytes = uint64_t{1} << 30;  // of all sessions' requests whose last part has not come
  uint32_t max_calls_per_session = 1024;          // without an answer
};

// Any thread reads these, relaxed.
struct RingCounters {
  std::atomic<uint64_t> open{0};            // now
  std::atomic<uint64_t> missed_reports{0};  // found no room
  std::atomic<uint64_t> broken{0};          // sessions ended because of what the client wrote
  std::atomic<uint64_t> full{0};            // sessions ended because an answer found no room
};

// Threads for a node with this many processors.
uint32_t RingThreads(uint32_t processors);

// Serves each session's requests in order, and the sessions in turns. The engine's thread polls the doorbells and
// serves short requests, so that a small job wakes no other thread. If a session's next request is long, or takes long
// to check, the session goes to one of the threads "rings", which serves its requests until none is left.
class RingServer {
 public:
  static absl::StatusOr<std::unique_ptr<RingServer>> Start(const RingServerOptions& options,
                                                           std::shared_ptr<const ServiceContext> context);
  // Joins the threads. All rings must be closed before.
  virtual ~RingServer() = default;

  // Makes the ring of a session. `fail` ends the session; it is called at most once, on any thread, and must not block.
  virtual absl::StatusOr<RingDescriptors> Open(SessionId session, std::function<void(const std::string&)> fail) = 0;
  // Gives up the session's calls. Does nothing if the session has no ring.
  virtual void Close(SessionId session) = 0;
  // Answers no more calls, pushes no more reports and opens no more rings. A stopping daemon calls this before it ends
  // the sessions. Otherwise the end of one session breaks groups, and clients of other sessions hear of that first.
  virtual void Stop() = 0;
  virtual std::vector<ThreadProgress> Progress() const = 0;
  virtual const RingCounters& counters() const = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_RING_RING_SERVER_H_
