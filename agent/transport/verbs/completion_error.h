// What a failed completion means: an errno for events, words for people, and whose fault it is. Pure: statuses are
// numbered as in libibverbs, which does not need to be there.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_COMPLETION_ERROR_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_COMPLETION_ERROR_H_

#include <cstdint>
#include <string>

namespace railsd::verbs {

// enum ibv_wc_status.
enum class CompletionStatus : uint8_t {
  kSuccess = 0,
  kLocalLength = 1,
  kLocalQueuePair = 2,
  kLocalEeContext = 3,
  kLocalProtection = 4,
  kFlushed = 5,
  kWindowBind = 6,
  kBadResponse = 7,
  kLocalAccess = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccess = 10,
  kRemoteOperation = 11,
  kRetryExceeded = 12,
  kReceiverNotReadyExceeded = 13,
  kLocalDomain = 14,
  kRemoteInvalidDomain = 15,
  kRemoteAborted = 16,
  kInvalidEeNumber = 17,
  kInvalidEeState = 18,
  kFatal = 19,
  kResponseTimeout = 20,
  kGeneral = 21,
};

struct CompletionError {
  int error_number = 0;       // errno
  std::string text;           // what happened, and what to look at
  bool is_first = true;       // false: it only follows from an error of the queue pair that came before
  bool earlier_done = false;  // all work requests before it on the queue pair have been acknowledged
  bool local_memory = false;  // memory of this node could not be read
};

// Any value of `status`, known or not.
CompletionError ExplainCompletion(int status);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_COMPLETION_ERROR_H_
