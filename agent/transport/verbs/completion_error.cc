#include "agent/transport/verbs/completion_error.h"

#include <infiniband/verbs.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace railsd::verbs {

CompletionError ExplainCompletion(int status) {
  // RC completes in order: if a request fails on its own, all requests before it have succeeded.
  switch (status) {
    case IBV_WC_SUCCESS:
      return {0, "success", true};
    case IBV_WC_WR_FLUSH_ERR:
      return {ECONNABORTED, "flushed, because the queue pair is in error", false};
    case IBV_WC_RETRY_EXC_ERR:
      return {ETIMEDOUT, "the peer's device does not answer (its link or node is down, or the path loses everything)",
              true};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {ENOBUFS, "the peer posts no receives (is its daemon stopped?)", true};
    case IBV_WC_REM_ACCESS_ERR:
      return {EACCES, "the peer refused the address or the key", true};
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
      return {EPROTO, "the peer's device found the request invalid", true};
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return {EREMOTEIO, "the peer's device could not complete the request", true};
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return {EFAULT, "local memory is not registered for this access", true};
    case IBV_WC_LOC_LEN_ERR:
      return {EMSGSIZE, "a work request is longer than the port takes", true};
    case IBV_WC_LOC_QP_OP_ERR:
      return {ENETDOWN, "this node's queue pair cannot send (is the link down?)", true};
    case IBV_WC_MW_BIND_ERR:
      return {EINVAL, "a memory window could not be bound or invalidated", true};
    case IBV_WC_BAD_RESP_ERR:
      return {EBADMSG, "the peer's device sent an unexpected answer", true};
    case IBV_WC_FATAL_ERR:
      return {EIO, "fatal error of this node's device", false};
    case IBV_WC_RESP_TIMEOUT_ERR:
      return {ETIMEDOUT, "no answer in time", true};
    default:
      return {EIO, absl::StrCat("completion status ", status), false};
  }
}

}  // namespace railsd::verbs
