#include "agent/jobs/validate.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
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

size_t RangesOf(const std::vector<FlowRanges>& flows) {
  size_t ranges = 0;
  for (const FlowRanges& flow : flows) ranges += flow.ranges.size();
  return ranges;
}

size_t RangesOf(const Submission& submission) {
  return RangesOf(submission.sends) + RangesOf(submission.receives) + submission.own_reads.size() +
         submission.own_writes.size();
}

// Checks the flows of one direction, finds their memory and holds their segments.
class FlowReader {
 public:
  // `table`: of all flows, in their order.
  FlowReader(Rank self, SessionMemory* memory, MemoryTable* table, PreparedSubmission* out)
      : self_(self), memory_(*memory), table_(*table), out_(*out) {}

  absl::Status Read(absl::string_view field, const std::vector<FlowRanges>& flows, std::vector<PreparedFlow>* prepared,
                    std::vector<Placed>* placed) {
    absl::flat_hash_set<Rank> seen;
    prepared->reserve(flows.size());
    placed->reserve(RangesOf(flows));
    for (size_t f = 0; f < flows.size(); ++f) {
      const Rank peer = flows[f].peer;
      const std::string at = absl::StrCat(field, "[", f, "]");
      if (peer == self_) {
        return absl::InvalidArgumentError(
            absl::StrCat(at, ".peer_rank: ", peer.value(), " is the rank itself; its client copies those bytes"));
      }
      if (!seen.insert(peer).second) {
        return absl::InvalidArgumentError(absl::StrCat(at, ".peer_rank: ", peer.value(), " appears twice"));
      }
      table_.Begin();
      if (absl::Status s = ReadRanges(at, flows[f].ranges, &table_, placed); !s.ok()) return s;
      prepared->push_back({peer, table_.stream().total_bytes, table_.stream()});
    }
    const auto before = [](const PreparedFlow& a, const PreparedFlow& b) { return a.peer < b.peer; };
    std::sort(prepared->begin(), prepared->end(), before);
    return absl::OkStatus();
  }

  absl::Status ReadOwn(absl::string_view field, const std::vector<Range>& ranges, std::vector<Placed>* placed) {
    return ReadRanges(std::string(field), ranges, nullptr, placed);
  }

 private:
  absl::Status ReadRanges(const std::string& at, const std::vector<Range>& ranges, MemoryTable* table,
                          std::vector<Placed>* placed) {
    uint64_t total = 0;
    for (size_t r = 0; r < ranges.size(); ++r) {
      const Range& range = ranges[r];
      const Segment* segment = Hold(range.segment);
      if (segment == nullptr) {
        return absl::NotFoundError(absl::StrCat(at, ".segment_ids: ", range.segment.value(), ", of range ", r,
                                                ", is not a segment of this session"));
      }
      const uint64_t end = range.offset_bytes + range.length_bytes;
      if (end < range.offset_bytes || end > segment->length_bytes()) {
        return absl::InvalidArgumentError(absl::StrCat(
            at, ".offsets_bytes[", r, "]: ", range.offset_bytes, " + length ", range.length_bytes,
            " passes the end of segment ", range.segment.value(), " (", segment->length_bytes(), " bytes)"));
      }
      if (__builtin_add_overflow(total, range.length_bytes, &total)) {
        return absl::InvalidArgumentError(absl::StrCat(at, ": the lengths overflow 64 bits"));
      }
      if (range.length_bytes == 0) continue;
      placed->push_back({segment->file(), range.offset_bytes, end, range.segment.value()});
      if (table != nullptr) table->Append(held_->segment, range.offset_bytes, range.length_bytes);
    }
    return absl::OkStatus();
  }

  // Null for an unknown one. Ranges mostly name the segment of the range before.
  const Segment* Hold(SegmentId id) {
    if (held_ == nullptr || id != held_id_) {
      auto [it, added] = out_.segments.try_emplace(id);
      if (added) it->second = memory_.Find(id);
      held_ = it->second.get();
      held_id_ = id;
    }
    return held_ == nullptr ? nullptr : held_->segment.get();
  }

  const Rank self_;
  SessionMemory& memory_;
  MemoryTable& table_;
  PreparedSubmission& out_;
  SegmentId held_id_;
  const HeldSegment* held_ = nullptr;
};

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

void NotePeers(absl::string_view field, const std::vector<FlowRanges>& flows, PreparedSubmission* out) {
  for (size_t f = 0; f < flows.size(); ++f) {
    if (flows[f].peer.value() < out->peers_end) continue;
    out->peers_end = uint64_t{flows[f].peer.value()} + 1;
    out->last_peer = absl::StrCat(field, "[", f, "].peer_rank: ", flows[f].peer.value());
  }
}

uint64_t TotalBytes(const std::vector<PreparedFlow>& flows) {
  uint64_t total = 0;
  for (const PreparedFlow& flow : flows) total += flow.bytes;
  return total;
}

std::vector<Extent> ExtentsOf(const std::vector<Placed>& placed) {
  std::vector<Extent> extents;
  extents.reserve(placed.size());
  for (const Placed& range : placed) extents.push_back({range.file, range.begin, range.end});
  if (!std::is_sorted(extents.begin(), extents.end())) std::sort(extents.begin(), extents.end());
  JoinExtents(&extents);
  return extents;
}

absl::Status Check(const Submission& submission, const std::shared_ptr<SessionMemory>& memory, uint32_t max_ranges,
                   PreparedSubmission* out) {
  if (memory == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", submission.session.value(), " is not open"));
  }
  const uint64_t ranges = RangesOf(submission);
  if (ranges > max_ranges) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limits.max_ranges_per_submission: ", ranges, " ranges, the limit is ", max_ranges));
  }
  std::vector<Placed> sends, receives;
  auto table = std::make_shared<MemoryTable>();
  table->Reserve(RangesOf(submission.sends) + RangesOf(submission.receives));
  FlowReader reader(submission.rank, memory.get(), table.get(), out);
  if (absl::Status s = reader.Read("sends", submission.sends, &out->sends, &sends); !s.ok()) return s;
  if (absl::Status s = reader.Read("receives", submission.receives, &out->receives, &receives); !s.ok()) return s;
  out->memory = std::move(table);
  out->send_bytes = TotalBytes(out->sends);
  out->receive_bytes = TotalBytes(out->receives);
  if (absl::Status s = CheckOverlap(receives, sends); !s.ok()) return s;
  // The client has compared the rank's own bytes with the others.
  if (absl::Status s = reader.ReadOwn("own_sends", submission.own_reads, &sends); !s.ok()) return s;
  if (absl::Status s = reader.ReadOwn("own_receives", submission.own_writes, &receives); !s.ok()) return s;
  JobMemory uses{submission.job, submission.rank, ExtentsOf(sends), ExtentsOf(receives)};
  out->claim = std::make_unique<MemoryClaim>(memory->claimed(), std::move(uses));
  return absl::OkStatus();
}

Digest SubmissionDigest(const Submission& submission) {
  std::string bytes;
  const auto put = [&bytes](uint64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  const auto put_ranges = [&put](const std::vector<Range>& ranges) {
    put(ranges.size());
    for (const Range& range : ranges) {
      put(range.segment.value());
      put(range.offset_bytes);
      put(range.length_bytes);
    }
  };
  put(submission.rank.value());
  put(submission.tag);
  for (const auto* flows : {&submission.sends, &submission.receives}) {
    put(flows->size());
    for (const FlowRanges& flow : *flows) {
      put(flow.peer.value());
      put_ranges(flow.ranges);
    }
  }
  put_ranges(submission.own_reads);
  put_ranges(submission.own_writes);
  return Sha256(bytes);
}

}  // namespace

Digest Sha256(absl::string_view bytes) {
  Digest digest{};
  unsigned int length = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  return digest;
}

void PreparedSubmission::Release() {
  if (claim != nullptr) claim->Drop();
  segments.clear();
}

absl::Status ClaimMemory(const PreparedSubmission& submission) {
  const std::optional<MemoryConflict> conflict = submission.claim->Accept();
  if (!conflict) return absl::OkStatus();
  const auto segment = std::find_if(submission.segments.begin(), submission.segments.end(), [&](const auto& held) {
    return held.second->segment->file() == conflict->extent.file;
  });
  return absl::FailedPreconditionError(
      absl::StrCat(conflict->writes ? "receives" : "sends", ": [", conflict->extent.begin, ", ", conflict->extent.end,
                   ") of segment ", segment->first.value(), " overlaps [", conflict->other.begin, ", ",
                   conflict->other.end, ") of the same memory, which job ", conflict->job.seq.value(), " of rank ",
                   conflict->rank.value(), conflict->other_writes ? " receives" : " sends",
                   " and which has not ended; wait for that job, or use other memory"));
}

PreparedSubmission Prepare(const Submission& submission, const std::shared_ptr<SessionMemory>& memory,
                           uint32_t max_ranges) {
  PreparedSubmission out;
  out.session = submission.session;
  out.job = submission.job;
  out.rank = submission.rank;
  out.attempt = submission.attempt;
  out.question = submission.question;
  if (out.question) return out;
  out.tag = submission.tag;
  out.timeout = submission.timeout;
  out.ranges = RangesOf(submission);
  out.digest = SubmissionDigest(submission);
  NotePeers("sends", submission.sends, &out);
  NotePeers("receives", submission.receives, &out);
  out.verdict = Check(submission, memory, max_ranges, &out);
  if (!out.verdict.ok()) {
    out.Release();
    out.claim.reset();
    out.sends.clear();
    out.receives.clear();
    out.memory.reset();
  }
  return out;
}

}  // namespace railsd
