// Finds out with a bare TCP connection to its control address why a peer is silent.
#ifndef RAILSD_DAEMON_PEER_REACH_PROBE_H_
#define RAILSD_DAEMON_PEER_REACH_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "agent/base/unique_fd.h"

namespace railsd {

enum class Reach : uint8_t {
  kUnknown,    // not known yet, or there is no address to connect to
  kListening,  // its kernel accepts connections: the daemon is there but silent
  kRefused,    // its kernel refuses connections: the daemon is gone
  kSilent,     // no answer in a second, or no route
};

// Connects to one address repeatedly and closes each connection at once. Never blocks. One thread at a time.
class ReachProbe {
 public:
  // Checks the attempt under way, or begins one. Call periodically while the peer is in trouble. `address` is "ip:port"
  // or "[ip6]:port"; any other text changes nothing.
  void Step(const std::string& address, absl::Time now);
  // Forgets everything: the peer answers again.
  void Reset();

  Reach reach() const { return reach_; }
  // The begin of the present row of refusals; infinite future if the last attempt was not refused.
  absl::Time refused_since() const { return refused_since_; }

 private:
  void Begin(const std::string& address, absl::Time now);
  void End(int error_number, absl::Time now);

  UniqueFd attempt_;
  absl::Time begun_;
  Reach reach_ = Reach::kUnknown;
  absl::Time refused_since_ = absl::InfiniteFuture();
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_REACH_PROBE_H_
