// Who holds which session: the secret token of a session to the session it stands for.
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
  std::string client_name;
};

// Filled by the descriptor socket, read by the gRPC services. Safe to use from any thread.
class SessionRegistry {
 public:
  // Draws a token (32 random bytes in hexadecimal) for a session.
  std::string Add(SessionIdentity identity);
  void Remove(SessionId session);
  // Looked up by a digest of the token, so that the time it takes says nothing about tokens that exist.
  std::optional<SessionIdentity> Find(absl::string_view token) const;
  size_t size() const;

 private:
  using Digest = std::array<uint8_t, 32>;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Digest, SessionIdentity> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_SESSION_REGISTRY_H_
