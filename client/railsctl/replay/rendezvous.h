// The meeting of ranks that were started apart: rank 0 listens, and every other rank connects and says who it is.
// Afterwards the connections carry the messages between the coordinator and its workers, and no payload.
#ifndef RAILS_RAILSCTL_REPLAY_RENDEZVOUS_H_
#define RAILS_RAILSCTL_REPLAY_RENDEZVOUS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/railsctl/replay/worker_protocol.h"
#include "client/src/unique_fd.h"

namespace rails::ctl {

struct Endpoint {
  std::string host, port;
};

// "10.0.0.1:29400", "[fd00::1]:29400", "name:29400". INVALID_ARGUMENT: says what is wrong.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text);
std::string FormatEndpoint(const Endpoint& endpoint);

// The limit of a wait, and the descriptor that interrupts it.
struct Patience {
  absl::Time deadline;
  int interrupt_fd = -1;  // readable when the user interrupts; -1: none
};

// Rank 0's end. Not thread-safe.
class Rendezvous {
 public:
  // Listens at an address of this machine. Waits while the host's name is not known. FAILED_PRECONDITION: the address
  // is not of this machine, or in use. DEADLINE_EXCEEDED, CANCELLED.
  static absl::StatusOr<Rendezvous> Listen(const Endpoint& endpoint, const Patience& patience);

  // The port in use.
  uint16_t port() const { return port_; }
  // Numeric, with the port.
  const std::string& address() const { return address_; }

  // Waits for ranks 1 to own.world_size - 1 and returns their connections in this order. Sends a refused connection the
  // reason, gives it to `report`, closes the connection and goes on waiting. DEADLINE_EXCEEDED: names the ranks that
  // have not come. CANCELLED.
  absl::StatusOr<std::vector<internal::UniqueFd>> Gather(const HelloEvent& own, const Patience& patience,
                                                         const std::function<void(const std::string&)>& report) const;

 private:
  internal::UniqueFd listener_;
  uint16_t port_ = 0;
  std::string address_;
};

// The end of any other rank: tries to connect until rank 0 listens, and sends `hello`. Returns the connection, on which
// rank 0 sends its decision. DEADLINE_EXCEEDED: has the error of the last attempt.
absl::StatusOr<internal::UniqueFd> ConnectToRankZero(const Endpoint& endpoint, const HelloEvent& hello,
                                                     absl::Time deadline);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_RENDEZVOUS_H_
