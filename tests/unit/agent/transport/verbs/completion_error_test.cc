#include "agent/transport/verbs/completion_error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace railsd::verbs {
namespace {

struct Case {
  CompletionStatus status;
  int error_number;
  bool is_first;
  bool earlier_done;
  bool local_memory;
};

TEST(ExplainCompletion, EveryStatus) {
  using S = CompletionStatus;
  const std::vector<Case> cases{
      {S::kSuccess, 0, true, true, false},
      {S::kFlushed, ECONNABORTED, false, false, false},
      {S::kRetryExceeded, ETIMEDOUT, true, true, false},
      {S::kReceiverNotReadyExceeded, ENOBUFS, true, true, false},
      {S::kRemoteAccess, EACCES, true, true, false},
      {S::kRemoteInvalidRequest, EPROTO, true, true, false},
      {S::kRemoteInvalidDomain, EPROTO, true, true, false},
      {S::kRemoteOperation, EREMOTEIO, true, true, false},
      {S::kRemoteAborted, EREMOTEIO, true, true, false},
      {S::kLocalProtection, EFAULT, true, true, true},
      {S::kLocalAccess, EFAULT, true, true, true},
      {S::kLocalLength, EMSGSIZE, true, true, false},
      {S::kLocalQueuePair, ENETDOWN, true, true, false},
      {S::kWindowBind, EINVAL, true, true, false},
      {S::kBadResponse, EBADMSG, true, true, false},
      {S::kResponseTimeout, ETIMEDOUT, true, true, false},
      {S::kFatal, EIO, true, false, false},
      {S::kGeneral, EIO, true, false, false},
      {S::kLocalEeContext, EIO, true, false, false},
      {S::kLocalDomain, EIO, true, false, false},
      {S::kInvalidEeNumber, EIO, true, false, false},
      {S::kInvalidEeState, EIO, true, false, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(static_cast<int>(c.status));
    const CompletionError error = ExplainCompletion(static_cast<int>(c.status));
    EXPECT_EQ(error.error_number, c.error_number);
    EXPECT_EQ(error.is_first, c.is_first);
    EXPECT_EQ(error.earlier_done, c.earlier_done) << "what has not been acknowledged is never taken to be";
    EXPECT_EQ(error.local_memory, c.local_memory);
    EXPECT_FALSE(error.text.empty());
  }
}

TEST(ExplainCompletion, UnknownOnesAreErrors) {
  for (const int status : {-1, 22, 23, 100000}) {
    EXPECT_EQ(ExplainCompletion(status).error_number, EIO);
    EXPECT_FALSE(ExplainCompletion(status).earlier_done);
    EXPECT_NE(ExplainCompletion(status).text.find(std::to_string(status)), std::string::npos);
  }
}

}  // namespace
}  // namespace railsd::verbs
