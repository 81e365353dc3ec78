// Maps the secret token of a session to the session.
#ifndef RAILSD_DAEMON_SESSION_SESSION_REGISTRY_H_
#define RAILSD_DAEMON_SESSION_SESSION_REGISTRY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "agent/agent.h"

namespace railsd {

struct SessionIdentity {
  SessionId id;
  SessionInfo info;
};

// The descriptor server fills it, the gRPC services read it. Any thread may use it.
class SessionRegistry {
 public:
  // Draws a token (32 random bytes in hexadecimal) for a session.
  std::string Add(SessionIdentity identity);
  void Remove(SessionId session);
  // Looks up a digest of the token, so that the time of a look-up tells nothing about existing tokens.
  std::optional<SessionIdentity> Find(absl::string_view token) const;
  size_t size() const;

 private:
  using Digest = std::array<uint8_t, 32>;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Digest, SessionIdentity> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_SESSION_REGISTRY_H_
