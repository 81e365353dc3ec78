#include "agent/transport/verbs/completion_error.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <vector>

namespace railsd::verbs {
namespace {

struct Case {
  int status;
  int error_number;
  bool earlier_done;
};

TEST(ExplainCompletion, EveryStatus) {
  const std::vector<Case> cases{
      {IBV_WC_SUCCESS, 0, true},
      {IBV_WC_WR_FLUSH_ERR, ECONNABORTED, false},
      {IBV_WC_RETRY_EXC_ERR, ETIMEDOUT, true},
      {IBV_WC_RNR_RETRY_EXC_ERR, ENOBUFS, true},
      {IBV_WC_REM_ACCESS_ERR, EACCES, true},
      {IBV_WC_REM_INV_REQ_ERR, EPROTO, true},
      {IBV_WC_REM_INV_RD_REQ_ERR, EPROTO, true},
      {IBV_WC_REM_OP_ERR, EREMOTEIO, true},
      {IBV_WC_REM_ABORT_ERR, EREMOTEIO, true},
      {IBV_WC_LOC_PROT_ERR, EFAULT, true},
      {IBV_WC_LOC_ACCESS_ERR, EFAULT, true},
      {IBV_WC_LOC_LEN_ERR, EMSGSIZE, true},
      {IBV_WC_LOC_QP_OP_ERR, ENETDOWN, true},
      {IBV_WC_MW_BIND_ERR, EINVAL, true},
      {IBV_WC_BAD_RESP_ERR, EBADMSG, true},
      {IBV_WC_RESP_TIMEOUT_ERR, ETIMEDOUT, true},
      {IBV_WC_FATAL_ERR, EIO, false},
      {IBV_WC_GENERAL_ERR, EIO, false},
      {IBV_WC_LOC_EEC_OP_ERR, EIO, false},
      {IBV_WC_LOC_RDD_VIOL_ERR, EIO, false},
      {IBV_WC_INV_EECN_ERR, EIO, false},
      {IBV_WC_INV_EEC_STATE_ERR, EIO, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.status);
    const CompletionError error = ExplainCompletion(c.status);
    EXPECT_EQ(error.error_number, c.error_number);
    EXPECT_EQ(error.earlier_done, c.earlier_done) << "what has not been acknowledged is never taken to be";
    EXPECT_FALSE(error.text.empty());
  }
}

TEST(ExplainCompletion, UnknownOnesAreErrors) {
  for (const int status : {-1, 99, 100000}) {
    EXPECT_EQ(ExplainCompletion(status).error_number, EIO);
    EXPECT_FALSE(ExplainCompletion(status).earlier_done);
    EXPECT_NE(ExplainCompletion(status).text.find(std::to_string(status)), std::string::npos);
  }
}

}  // namespace
}  // namespace railsd::verbs
