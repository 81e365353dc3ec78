// The checks on a submission that need no other rank: everything here happens before any byte moves, and off the
// engine's thread.
#ifndef RAILSD_AGENT_JOBS_VALIDATE_H_
#define RAILSD_AGENT_JOBS_VALIDATE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/jobs/submission.h"
#include "agent/memory/memory_ranges.h"
#include "agent/sessions/session_memory.h"

namespace railsd {

using Digest = std::array<uint8_t, 32>;
Digest Sha256(absl::string_view bytes);

// One flow of a submission.
struct PreparedFlow {
  Rank peer;
  uint64_t bytes = 0;
  MemoryTable::Stream memory = {};  // in the submission's table
};

// A submission with all that is known of it without the engine's state. The engine's work on it does not depend on the
// number of ranges.
struct PreparedSubmission {
  SessionId session;
  JobKey job;
  Rank rank;
  uint64_t attempt = 0;
  bool question = false;
  uint64_t tag = 0;
  absl::Duration timeout;
  Digest digest{};                            // SHA-256 of the content; equal digests are the same submission
  absl::Status verdict;                       // why it is refused, unless its number was taken before
  uint64_t peers_end = 0;                     // all ranks that it names are below
  std::string last_peer;                      // field and value of the highest of them
  std::vector<PreparedFlow> sends, receives;  // by rank; empty when it is refused
  std::shared_ptr<const MemoryTable> memory;  // of both
  uint64_t send_bytes = 0, receive_bytes = 0;
  // The segments that its ranges name. They stay the session's while they are held.
  absl::flat_hash_map<SegmentId, std::shared_ptr<const HeldSegment>> segments;
  std::unique_ptr<MemoryClaim> claim;  // on the bytes of its ranges; null when it is refused

  uint64_t ranges = 0;  // that it was submitted with

  // Gives the session's segments and memory back. The lists are freed with this object.
  void Release();
};

// Checks ranks (none twice, not the rank itself), segments (of this session), bounds and overflow, overlap of receive
// ranges with each other and with send ranges, and `max_ranges`; and looks for submissions of the session that write
// what this one uses, or use what this one writes. `memory` is that of the session, null for an unknown one.
// Verdicts: INVALID_ARGUMENT with field and value, NOT_FOUND for a segment, RESOURCE_EXHAUSTED for too many ranges.
PreparedSubmission Prepare(const Submission& submission, const std::shared_ptr<SessionMemory>& memory,
                           uint32_t max_ranges);

// Makes the claim of a submission, whose verdict is OK, count. FAILED_PRECONDITION names the bytes and the job under
// way that uses them.
absl::Status ClaimMemory(const PreparedSubmission& submission);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_VALIDATE_H_
