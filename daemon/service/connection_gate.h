// The door of a gRPC server: accepts, counts and limits connections, and gives gRPC those whose beginning has arrived.
// gRPC itself takes whatever comes, and tells nobody what it has.
#ifndef RAILSD_DAEMON_SERVICE_CONNECTION_GATE_H_
#define RAILSD_DAEMON_SERVICE_CONNECTION_GATE_H_

#include <spdlog/fwd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/limit.h"
#include "agent/base/unique_fd.h"
#include "daemon/service/connection_ledger.h"
#include "daemon/service/listen.h"

namespace railsd {

// Counters of one or more gates. Read by anybody, relaxed; but calls_taken before calls_begun, or more were taken than
// begun.
struct ConnectionCounters {
  std::atomic<uint64_t> open{0};             // gRPC has them; what it has closed is noticed within seconds
  std::atomic<uint64_t> half_open{0};        // wait for their beginning to be whole
  std::atomic<uint64_t> protocol_errors{0};  // began with something else
  std::atomic<uint64_t> calls_begun{0};      // by gRPC's count, within a second
  std::atomic<uint64_t> calls_taken{0};      // of those, that came whole; published after them
};

struct GateOptions {
  std::string name = "client";  // in the log: client, operator, control
  size_t max_connections = 1024;
  Limit connections_limit = Limit::kClientConnections;  // that this is
  size_t max_per_address = 64;                          // over TCP
  // Further ones take the place of the oldest.
  size_t max_half_open = 64;
  // Until the beginning is whole; over TCP until the first call, too.
  absl::Duration handshake = absl::Seconds(10);
  // What a connection over TCP may bring before it is said to be trusted (ConnectionLedger).
  uint64_t max_untaken_bytes = std::numeric_limits<uint64_t>::max();
  // Each second while there are connections, and after the last; on the gate's thread.
  std::function<void()> look = nullptr;
  // Gets connections that begin as lanes, on the gate's thread; null: such a beginning is wrong.
  std::function<void(UniqueFd connection)> take_lane = nullptr;
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();
  std::shared_ptr<ConnectionCounters> counters = std::make_shared<ConnectionCounters>();
  std::shared_ptr<spdlog::logger> log = nullptr;  // null: none
};

// A thread of its own ("gate").
class ConnectionGate {
 public:
  using HandOver = std::function<void(UniqueFd connection)>;

  // `tls`: what a connection must begin with. `ledger` gets those that are handed over, is told of calls by others, and
  // outlives the gate. `hand_over` is called on the gate's thread.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Start(Listeners listeners, bool tls, GateOptions options,
                                                               ConnectionLedger* ledger, HandOver hand_over);
  // Closes the listeners, removes a Unix socket, joins the thread. What was handed over stays.
  virtual ~ConnectionGate() = default;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_CONNECTION_GATE_H_
