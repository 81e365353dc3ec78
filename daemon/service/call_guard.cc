#include "daemon/service/call_guard.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

// As HTTP/2 counts a list of headers (RFC 9113, 10.5.1), so that many short ones are as long as a few long ones.
uint64_t BytesOf(const std::multimap<grpc::string_ref, grpc::string_ref>& headers) {
  uint64_t bytes = 0;
  for (const auto& [name, value] : headers) bytes += name.size() + value.size() + 32;
  return bytes;
}

}  // namespace

void RefusedCalls::Add(const grpc_call* call) {
  absl::MutexLock lock(&mutex_);
  calls_.insert(call);
  size_ = calls_.size();
}

void RefusedCalls::Remove(const grpc_call* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
  size_ = calls_.size();
}

bool RefusedCalls::Contains(grpc::ServerContextBase* context) const {
  if (size_ == 0) return false;
  absl::MutexLock lock(&mutex_);
  return calls_.contains(context->c_call());
}

CallGuard::CallGuard(CallLimits limits, std::shared_ptr<LimitCounters> refused,
                     std::shared_ptr<RefusedCalls> refused_calls)
    : limits_(limits), refused_(std::move(refused)), refused_calls_(std::move(refused_calls)) {}

uint32_t CallGuard::Enter(grpc_auth_context* connection) {
  absl::MutexLock lock(&mutex_);
  return ++calls_[connection];
}

void CallGuard::Leave(grpc_auth_context* connection) {
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find(connection);
  if (--it->second == 0) calls_.erase(it);
}

CallGuard::Call::Call(CallGuard* guard, grpc::ServerContextBase* context)
    : guard_(*guard), call_(context->c_call()), connection_(::grpc_call_auth_context(call_)) {
  const CallLimits& limits = guard_.limits_;
  // Callers that heed what gRPC announces never have more calls than it says; but what counts as over with gRPC may
  // not be with us yet. Twice as many none of them reaches.
  const uint64_t most = uint64_t{2} * limits.max_calls;
  if (const uint32_t calls = guard_.Enter(connection_); calls > most) {
    Refuse(limits.calls_limit, absl::StrCat(calls, " calls at once on one connection, although it was told to make ",
                                            limits.max_calls, " at most"));
  }
  if (const uint64_t bytes = BytesOf(context->client_metadata()); bytes > limits.max_headers_bytes) {
    Refuse(Limit::kHeaders, absl::StrCat(context->client_metadata().size(), " headers of ", bytes,
                                         " bytes (32 more for each), this node takes ", limits.max_headers_bytes));
  }
}

CallGuard::Call::~Call() {
  if (refused_) {
    guard_.refused_calls_->Remove(call_);
    ::grpc_call_unref(call_);
  }
  guard_.Leave(connection_);
  ::grpc_auth_context_release(connection_);
}

void CallGuard::Call::CheckMessage(uint64_t bytes) {
  const uint64_t most = guard_.limits_.max_message_bytes;
  if (bytes <= most) return;
  Refuse(Limit::kMessage, absl::StrCat("a message of ", bytes, " bytes, this node takes ", most,
                                       "; send less at once, or raise it there"));
}

void CallGuard::Call::Refuse(Limit limit, const std::string& text) {
  if (refused_) return;
  refused_ = true;
  ::grpc_call_ref(call_);  // so that no other call has its address while it is among the refused
  guard_.refused_calls_->Add(call_);
  const absl::Status status = guard_.refused_->Refuse(limit, text);
  ::grpc_call_cancel_with_status(call_, GRPC_STATUS_RESOURCE_EXHAUSTED, std::string(status.message()).c_str(), nullptr);
}

}  // namespace railsd
