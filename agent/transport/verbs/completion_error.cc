#include "agent/transport/verbs/completion_error.h"

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace railsd::verbs {

CompletionError ExplainCompletion(int status) {
  // RC reports in order, so whoever fails by itself says that those before it have not.
  switch (static_cast<CompletionStatus>(status)) {
    case CompletionStatus::kSuccess:
      return {0, "success", true, true};
    case CompletionStatus::kFlushed:
      return {ECONNABORTED, "flushed, for the queue pair is in error", false, false};
    case CompletionStatus::kRetryExceeded:
      return {ETIMEDOUT, "the peer's device does not answer (its link or node is down, or the path loses everything)",
              true, true};
    case CompletionStatus::kReceiverNotReadyExceeded:
      return {ENOBUFS, "the peer posts no receives (is its daemon stopped?)", true, true};
    case CompletionStatus::kRemoteAccess:
      return {EACCES, "the peer refused the address or the key", true, true};
    case CompletionStatus::kRemoteInvalidRequest:
    case CompletionStatus::kRemoteInvalidDomain:
      return {EPROTO, "the peer's device found the request invalid", true, true};
    case CompletionStatus::kRemoteOperation:
    case CompletionStatus::kRemoteAborted:
      return {EREMOTEIO, "the peer's device could not complete the request", true, true};
    case CompletionStatus::kLocalProtection:
    case CompletionStatus::kLocalAccess:
      return {EFAULT, "local memory is not registered as it should be", true, true, true};
    case CompletionStatus::kLocalLength:
      return {EMSGSIZE, "a work request is longer than the port takes", true, true};
    case CompletionStatus::kLocalQueuePair:
      return {ENETDOWN, "this node's queue pair cannot send (is the link down?)", true, true};
    case CompletionStatus::kWindowBind:
      return {EINVAL, "a memory window could not be bound or invalidated", true, true};
    case CompletionStatus::kBadResponse:
      return {EBADMSG, "the peer's device sent an unexpected answer", true, true};
    case CompletionStatus::kFatal:
      return {EIO, "fatal error of this node's device", true, false};
    case CompletionStatus::kResponseTimeout:
      return {ETIMEDOUT, "no answer in time", true, true};
    case CompletionStatus::kLocalEeContext:
    case CompletionStatus::kLocalDomain:
    case CompletionStatus::kInvalidEeNumber:
    case CompletionStatus::kInvalidEeState:
    case CompletionStatus::kGeneral:
      break;
  }
  return {EIO, absl::StrCat("completion status ", status), true, false};
}

}  // namespace railsd::verbs
