// Why a peer does not speak, as far as a bare connection to its control address can tell.
#ifndef RAILSD_DAEMON_PEER_REACH_PROBE_H_
#define RAILSD_DAEMON_PEER_REACH_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "agent/base/unique_fd.h"

namespace railsd {

enum class Reach : uint8_t {
  kUnknown,    // not known yet, or there is no address to ask
  kListening,  // its kernel takes connections: the daemon is there and does not speak
  kRefused,    // its machine says that nobody listens: the daemon is gone
  kSilent,     // no answer in a second, or no way there
};

// Connects to one address again and again, and hangs up at once. Never blocks. One thread at a time.
class ReachProbe {
 public:
  // Sees how the attempt under way went, or begins one. Call now and then while the peer is in trouble. `address` is
  // "ip:port" or "[ip6]:port"; anything else leaves what is known.
  void Step(const std::string& address, absl::Time now);
  // The peer speaks: forgets everything.
  void Reset();

  Reach reach() const { return reach_; }
  // Since when every attempt was refused; infinite future when the last one was not.
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
