// The checks on a submission that need no other rank. They run before any byte moves, on the thread that takes the
// call.
#ifndef RAILSD_AGENT_JOBS_VALIDATE_H_
#define RAILSD_AGENT_JOBS_VALIDATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/jobs/submission.h"
#include "agent/memory/memory_ranges.h"
#include "agent/sessions/prepared_exchanges.h"
#include "agent/sessions/session_memory.h"

namespace railsd {

Digest Sha256(absl::string_view bytes);

// A submission with all that is known of it without the engine's state. The engine's work on it does not depend on the
// number of ranges.
struct CheckedSubmission {
  SessionId session;
  JobKey job;
  Rank rank;
  uint64_t tag = 0;
  bool capacities = false;
  uint64_t vote = 0;
  bool urgent = false;
  absl::Duration timeout;
  Digest digest{};              // SHA-256 of the content; equal ones are the same. 0: not known
  absl::Status verdict;         // why it is refused, unless its number was taken before
  uint64_t peers_end = 0;       // all ranks that it names are below
  const char* last_field = "";  // the field and the flow in it that names the highest of them
  size_t last_flow = 0;
  absl::Span<const CheckedFlow> sends, receives;  // by rank, in `flows` or `cut`; empty when it is refused
  std::shared_ptr<const FlowSet> flows;           // null when it is refused
  std::unique_ptr<CheckedFlow[]> cut;             // the same flows with shorter lengths; null: they use all bytes
  std::shared_ptr<const MemoryTable> memory;      // of `flows`
  uint64_t send_bytes = 0, receive_bytes = 0;
  std::shared_ptr<const HeldSegments> segments;
  std::shared_ptr<const UsedMemory> uses;
  std::optional<MemoryClaim> claim;  // on `uses`; none when it is refused or is not to be a job
  PreparedId prepared;               // the exchange that gave the ranges, or that they are to become; 0: none

  uint64_t ranges = 0;  // that it was submitted with

  // Gives the session's segments and memory back. The lists are freed with this object.
  void Release();
};

// Checks ranks (none twice), segments (of this session), bounds and overflow, overlap of receive ranges with each other
// and with send ranges (a flow of the rank with itself may stay in place), and `max_ranges`. Looks for submissions of
// the session that write what this one uses, or use what this one writes. `memory` is that of the session, null for an
// unknown one. The cost for a prepared exchange does not depend on the number of ranges.
// Verdicts: INVALID_ARGUMENT with field and value, or with rank, length and capacity, or for more than
// Submission::kMaxCapacityRanges ranges; NOT_FOUND for a segment, or for a prepared exchange that the rank does not
// have; RESOURCE_EXHAUSTED for too many ranges.
CheckedSubmission CheckSubmission(const Submission& submission, const std::shared_ptr<SessionMemory>& memory,
                                  uint32_t max_ranges);
// Checks ranges that are to become a prepared exchange in the same way. Makes no claim.
CheckedSubmission CheckLayout(const Submission& layout, const std::shared_ptr<SessionMemory>& memory,
                              uint32_t max_ranges);

// Accepts the claim of a submission whose verdict is OK. FAILED_PRECONDITION names the bytes and the job under way that
// uses them.
absl::Status ClaimMemory(const CheckedSubmission& submission);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_VALIDATE_H_
