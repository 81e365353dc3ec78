#include "agent/job/validate.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace railsd {
namespace {

// Ordered and compared by file: two segments of a session may share one.
struct Placed {
  FileId file;
  uint64_t begin, end;
  uint32_t segment;
  friend auto operator<=>(const Placed&, const Placed&) = default;

  std::string ToString() const { return absl::StrCat("[", begin, ", ", end, ") of segment ", segment); }
};

absl::Status CheckFlows(absl::string_view field, const std::vector<FlowRanges>& flows, const Submission& submission,
                        const Session& session, uint32_t world_size, std::vector<Placed>* placed) {
  std::vector<bool> seen(world_size, false);
  for (size_t f = 0; f < flows.size(); ++f) {
    const FlowRanges& flow = flows[f];
    const uint32_t rank = flow.peer.value();
    const auto at = [&] { return absl::StrCat(field, "[", f, "]"); };
    if (rank >= world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(at(), ".peer_rank: ", rank, " is not below the world size ", world_size));
    }
    if (flow.peer == submission.rank) {
      return absl::InvalidArgumentError(
          absl::StrCat(at(), ".peer_rank: ", rank, " is the rank itself; its client copies those bytes"));
    }
    if (seen[rank]) return absl::InvalidArgumentError(absl::StrCat(at(), ".peer_rank: ", rank, " appears twice"));
    seen[rank] = true;
    uint64_t total = 0;
    for (size_t r = 0; r < flow.ranges.size(); ++r) {
      const Range& range = flow.ranges[r];
      const auto where = [&] { return absl::StrCat(at(), ".ranges[", r, "]"); };
      auto segment = session.segments.find(range.segment);
      if (segment == session.segments.end()) {
        return absl::NotFoundError(
            absl::StrCat(where(), ".segment_id: ", range.segment.value(), " is not a segment of this session"));
      }
      const uint64_t end = range.offset_bytes + range.length_bytes;
      if (end < range.offset_bytes || end > segment->second->segment->length_bytes()) {
        return absl::InvalidArgumentError(absl::StrCat(
            where(), ": offset ", range.offset_bytes, " + length ", range.length_bytes, " passes the end of segment ",
            range.segment.value(), " (", segment->second->segment->length_bytes(), " bytes)"));
      }
      if (total + range.length_bytes < total) {
        return absl::InvalidArgumentError(absl::StrCat(at(), ": the lengths overflow 64 bits"));
      }
      total += range.length_bytes;
      if (range.length_bytes > 0) {
        placed->push_back({segment->second->segment->file(), range.offset_bytes, end, range.segment.value()});
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOverlap(std::vector<Placed>& receives, const std::vector<Placed>& sends) {
  if (!std::is_sorted(receives.begin(), receives.end())) std::sort(receives.begin(), receives.end());
  for (size_t i = 1; i < receives.size(); ++i) {
    const Placed &a = receives[i - 1], &b = receives[i];
    if (a.file == b.file && b.begin < a.end) {
      return absl::InvalidArgumentError(
          absl::StrCat("receives: the ranges ", a.ToString(), " and ", b.ToString(), " overlap"));
    }
  }
  for (const Placed& send : sends) {
    auto it = std::upper_bound(receives.begin(), receives.end(), Placed{send.file, send.begin, ~uint64_t{0}, 0});
    const bool with_next = it != receives.end() && it->file == send.file && it->begin < send.end;
    const bool with_last = it != receives.begin() && (it - 1)->file == send.file && (it - 1)->end > send.begin;
    if (with_next || with_last) {
      const Placed& hit = with_next ? *it : *(it - 1);
      return absl::InvalidArgumentError(
          absl::StrCat("sends: range ", send.ToString(), " overlaps the receive range ", hit.ToString()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSubmission(const Submission& submission, const Session& session, uint32_t world_size,
                             uint32_t max_ranges) {
  size_t ranges = 0;
  for (const auto* flows : {&submission.sends, &submission.receives}) {
    for (const FlowRanges& flow : *flows) ranges += flow.ranges.size();
  }
  if (ranges > max_ranges) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.max_ranges_per_submission: ", ranges, " ranges, the limit is ", max_ranges));
  }
  std::vector<Placed> sends, receives;
  sends.reserve(ranges);
  receives.reserve(ranges);
  if (absl::Status s = CheckFlows("sends", submission.sends, submission, session, world_size, &sends); !s.ok())
    return s;
  if (absl::Status s = CheckFlows("receives", submission.receives, submission, session, world_size, &receives);
      !s.ok()) {
    return s;
  }
  return CheckOverlap(receives, sends);
}

Digest Sha256(absl::string_view bytes) {
  Digest digest{};
  unsigned int length = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  return digest;
}

Digest SubmissionDigest(const Submission& submission) {
  std::string bytes;
  const auto put = [&bytes](uint64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  put(submission.rank.value());
  put(submission.tag);
  for (const auto* flows : {&submission.sends, &submission.receives}) {
    put(flows->size());
    for (const FlowRanges& flow : *flows) {
      put(flow.peer.value());
      put(flow.ranges.size());
      for (const Range& range : flow.ranges) {
        put(range.segment.value());
        put(range.offset_bytes);
        put(range.length_bytes);
      }
    }
  }
  return Sha256(bytes);
}

}  // namespace railsd
