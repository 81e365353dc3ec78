// Builds the request from the caller's exchange: makes every check that needs no daemon, and writes the columns.
#ifndef RAILS_CLIENT_SRC_SUBMISSION_H_
#define RAILS_CLIENT_SRC_SUBMISSION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/src/segment.h"
#include "rails/client.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

struct Submission {
  v1::SubmitAllToAllRequest* request = nullptr;        // not owned; its job is not set here
  std::vector<std::shared_ptr<SegmentCore>> segments;  // each once
};

// Fills `submission` from `exchange`. INVALID_ARGUMENT names the field and its value; FAILED_PRECONDITION: a poisoned
// segment.
absl::Status BuildSubmission(const AllToAllv& exchange, const SegmentTable* table, uint32_t world_size,
                             Submission* submission);

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_SUBMISSION_H_
