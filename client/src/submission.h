// From the caller's exchange to the request: every check that needs no daemon, the columns, and the rank's own bytes.
#ifndef RAILS_CLIENT_SRC_SUBMISSION_H_
#define RAILS_CLIENT_SRC_SUBMISSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/src/segment.h"
#include "rails/client.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

// Bytes that a rank sends to itself.
class SelfCopy {
 public:
  void AddSource(absl::Span<std::byte> bytes) { sources_.push_back(bytes); }
  void AddDestination(absl::Span<std::byte> bytes) { destinations_.push_back(bytes); }
  uint64_t source_bytes() const { return TotalBytes(sources_); }
  uint64_t destination_bytes() const { return TotalBytes(destinations_); }
  const std::vector<absl::Span<std::byte>>& destinations() const { return destinations_; }
  // As if all sources were read before any destination is written. The totals are equal.
  void Run() const;

 private:
  static uint64_t TotalBytes(const std::vector<absl::Span<std::byte>>& list);

  std::vector<absl::Span<std::byte>> sources_, destinations_;
};

struct Submission {
  v1::SubmitAllToAllRequest* request = nullptr;        // not owned; its job is not set here
  std::vector<std::shared_ptr<SegmentCore>> segments;  // each once
  SelfCopy self;
};

// Fills `submission` from `exchange`. INVALID_ARGUMENT names the field and its value; FAILED_PRECONDITION: a poisoned
// segment.
absl::Status BuildSubmission(const AllToAllv& exchange, const SegmentTable* table, uint32_t world_size, uint32_t rank,
                             Submission* submission);

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_SUBMISSION_H_
