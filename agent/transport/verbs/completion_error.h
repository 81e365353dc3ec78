// The meaning of a failed completion: an errno for events, and words for people.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_COMPLETION_ERROR_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_COMPLETION_ERROR_H_

#include <string>

namespace railsd::verbs {

struct CompletionError {
  int error_number = 0;       // errno
  std::string text;           // what happened, and what to look at
  bool earlier_done = false;  // all work requests before it on the queue pair have been acknowledged
};

// Any value of `status` (enum ibv_wc_status), known or not.
CompletionError ExplainCompletion(int status);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_COMPLETION_ERROR_H_
