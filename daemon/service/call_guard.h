// Limits of gRPC calls that gRPC does not keep, or keeps and tells nobody: it holds a caller to the number of calls and
// the length of headers only once that caller has acknowledged its settings, which a hostile one never does.
#ifndef RAILSD_DAEMON_SERVICE_CALL_GUARD_H_
#define RAILSD_DAEMON_SERVICE_CALL_GUARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "agent/base/limit.h"

struct grpc_auth_context;
struct grpc_call;
namespace grpc {
class ServerContextBase;
}

namespace railsd {

// Calls that were refused while gRPC serves them all the same: what serves them must change nothing. Any thread.
class RefusedCalls {
 public:
  void Add(const grpc_call* call);
  void Remove(const grpc_call* call);
  bool Contains(grpc::ServerContextBase* context) const;

 private:
  std::atomic<size_t> size_{0};  // nearly always 0: then nobody waits for the mutex
  mutable absl::Mutex mutex_;    // a leaf
  absl::flat_hash_set<const grpc_call*> calls_ ABSL_GUARDED_BY(mutex_);
};

struct CallLimits {
  uint32_t max_calls = 0;  // at once on one connection
  Limit calls_limit = Limit::kCallsPerClientConnection;
  uint64_t max_headers_bytes = 0;
  uint64_t max_message_bytes = 0;
};

// Of one server. Any thread.
class CallGuard {
 public:
  CallGuard(CallLimits limits, std::shared_ptr<LimitCounters> refused, std::shared_ptr<RefusedCalls> refused_calls);

  // One call, from when its headers are here until it is over.
  class Call {
   public:
    // `context` is the call's, and gRPC has begun it.
    Call(CallGuard* guard, grpc::ServerContextBase* context);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    // Of a request, as it would be on the wire.
    void CheckMessage(uint64_t bytes);

   private:
    void Refuse(Limit limit, const std::string& text);

    CallGuard& guard_;
    grpc_call* const call_;  // may be gone in the destructor, unless it was refused
    grpc_auth_context* const connection_;
    bool refused_ = false;
  };

 private:
  // gRPC has a context of this kind for each connection, which tells even those of a Unix socket apart. Each call holds
  // it, so that no other can have its address meanwhile. Says how many calls it has now.
  uint32_t Enter(grpc_auth_context* connection);
  void Leave(grpc_auth_context* connection);

  const CallLimits limits_;
  const std::shared_ptr<LimitCounters> refused_;
  const std::shared_ptr<RefusedCalls> refused_calls_;
  absl::Mutex mutex_;  // a leaf
  absl::flat_hash_map<grpc_auth_context*, uint32_t> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_CALL_GUARD_H_
