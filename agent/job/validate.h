// The checks on a submission that need no other rank: everything here happens before any byte moves.
#ifndef RAILSD_AGENT_JOB_VALIDATE_H_
#define RAILSD_AGENT_JOB_VALIDATE_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/job/sessions.h"
#include "agent/job/submission.h"

namespace railsd {

// Checks ranks (inside the world, none twice, not the rank itself), segments (of this session), bounds and overflow,
// overlap of receive ranges with each other and with send ranges, and `max_ranges`.
// Errors: INVALID_ARGUMENT with field and value, NOT_FOUND for a segment, RESOURCE_EXHAUSTED for too many ranges.
absl::Status CheckSubmission(const Submission& submission, const Session& session, uint32_t world_size,
                             uint32_t max_ranges);

using Digest = std::array<uint8_t, 32>;
// SHA-256 over everything that makes a submission what it is; equal digests are the same submission.
Digest SubmissionDigest(const Submission& submission);
Digest Sha256(absl::string_view bytes);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_VALIDATE_H_
