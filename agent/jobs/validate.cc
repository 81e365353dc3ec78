#include "agent/jobs/validate.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace railsd {
namespace {

// Only one may be in use on a thread at a time. Allocates nothing once its thread has used one.
class Sha256Stream {
 public:
  Sha256Stream() { EVP_DigestInit_ex(context(), sha256(), nullptr); }
  void Add(const void* data, size_t length_bytes) { EVP_DigestUpdate(context(), data, length_bytes); }
  Digest Finish() {
    Digest digest{};
    unsigned int length = 0;
    EVP_DigestFinal_ex(context(), digest.data(), &length);
    return digest;
  }

 private:
  // EVP_sha256() looks the algorithm up again each time.
  static const EVP_MD* sha256() {
    static EVP_MD* const fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    return fetched;
  }
  static EVP_MD_CTX* context() {
    struct Free {
      void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
    };
    thread_local const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
    return context.get();
  }
};

// Ordered and compared by file: two segments of a session may share one.
struct Placed {
  FileId file;
  uint64_t begin, end;
  uint32_t segment;
  friend auto operator<=>(const Placed&, const Placed&) = default;

  std::string ToString() const { return absl::StrCat("[", begin, ", ", end, ") of segment ", segment); }
};

// Names a flow in messages: "sends[3]".
struct FlowName {
  absl::string_view field;
  size_t flow = 0;
  std::string Text() const { return absl::StrCat(field, "[", flow, "]"); }
};

// Entries [begin, end) of a list.
struct Entries {
  size_t begin = 0, end = 0;
};

size_t RangesOf(const std::vector<FlowRanges>& flows) {
  size_t ranges = 0;
  for (const FlowRanges& flow : flows) ranges += flow.ranges.size();
  return ranges;
}

size_t RangesOf(const Submission& submission) { return RangesOf(submission.sends) + RangesOf(submission.receives); }

// Checks the flows of one direction, finds their memory and holds their segments.
class FlowReader {
 public:
  // `table`: of all flows, in their order; it has room for their ranges. `self`: whose flows they are.
  FlowReader(Rank self, SessionMemory* memory, MemoryTable* table, HeldSegments* segments)
      : self_(self), memory_(*memory), table_(*table), writer_(table), segments_(*segments) {}

  // `own`: the entries of `placed` for the flow of the rank with itself.
  absl::Status Read(absl::string_view field, const std::vector<FlowRanges>& flows, std::vector<CheckedFlow>* checked,
                    std::vector<Placed>* placed, Entries* own) {
    checked->reserve(flows.size());
    placed->reserve(RangesOf(flows));
    for (size_t f = 0; f < flows.size(); ++f) {
      const Rank peer = flows[f].peer;
      const size_t first = placed->size();
      if (absl::Status s = ReadRanges({field, f}, flows[f].ranges, placed); !s.ok()) return s;
      if (peer == self_) *own = {first, placed->size()};
      const MemoryTable::Stream stream = writer_.End();
      checked->push_back({peer, stream.total_bytes, stream});
    }
    const auto before = [](const CheckedFlow& a, const CheckedFlow& b) { return a.peer < b.peer; };
    if (!std::is_sorted(checked->begin(), checked->end(), before)) std::sort(checked->begin(), checked->end(), before);
    const auto same = [](const CheckedFlow& a, const CheckedFlow& b) { return a.peer == b.peer; };
    const auto twice = std::adjacent_find(checked->begin(), checked->end(), same);
    if (twice == checked->end()) return absl::OkStatus();
    size_t last = flows.size() - 1;
    while (flows[last].peer != twice->peer) --last;
    return absl::InvalidArgumentError(
        absl::StrCat(FlowName{field, last}.Text(), ".peer_rank: ", twice->peer.value(), " appears twice"));
  }

 private:
  absl::Status ReadRanges(const FlowName& at, absl::Span<const Range> ranges, std::vector<Placed>* placed) {
    uint64_t total = 0;
    for (size_t r = 0; r < ranges.size(); ++r) {
      const Range& range = ranges[r];
      const Segment* segment = Hold(range.segment);
      if (segment == nullptr) {
        return absl::NotFoundError(absl::StrCat(at.Text(), ".segment_ids: ", range.segment.value(), ", of range ", r,
                                                ", is not a segment of this session"));
      }
      const uint64_t end = range.offset_bytes + range.length_bytes;
      if (end < range.offset_bytes || end > segment->length_bytes()) {
        return absl::InvalidArgumentError(absl::StrCat(
            at.Text(), ".offsets_bytes[", r, "]: ", range.offset_bytes, " + length ", range.length_bytes,
            " passes the end of segment ", range.segment.value(), " (", segment->length_bytes(), " bytes)"));
      }
      if (__builtin_add_overflow(total, range.length_bytes, &total)) {
        return absl::InvalidArgumentError(absl::StrCat(at.Text(), ": the lengths overflow 64 bits"));
      }
      if (range.length_bytes == 0) continue;
      placed->push_back({segment->file(), range.offset_bytes, end, range.segment.value()});
      writer_.Append(segment, segment->base() + range.offset_bytes, range.length_bytes);
      table_.Hold(held_->segment);
    }
    return absl::OkStatus();
  }

  // Null for an unknown one. Ranges mostly name the segment of the range before.
  const Segment* Hold(SegmentId id) {
    if (held_ == nullptr || id != held_id_) {
      auto [it, added] = segments_.try_emplace(id);
      if (added) it->second = memory_.Find(id);
      held_ = it->second.get();
      held_id_ = id;
    }
    return held_ == nullptr ? nullptr : held_->segment.get();
  }

  const Rank self_;
  SessionMemory& memory_;
  MemoryTable& table_;
  MemoryTable::Writer writer_;
  HeldSegments& segments_;
  SegmentId held_id_;
  const HeldSegment* held_ = nullptr;
};

// True when the bytes of `sends` are the first ones of `receives`, in the same order.
bool BeginsWith(absl::Span<const Placed> receives, absl::Span<const Placed> sends) {
  size_t r = 0;
  uint64_t skipped_bytes = 0;  // of receives[r]
  for (Placed send : sends) {
    while (send.begin < send.end) {
      if (r == receives.size()) return false;
      const Placed& receive = receives[r];
      const uint64_t begin = receive.begin + skipped_bytes;
      if (receive.file != send.file || begin != send.begin) return false;
      const uint64_t same_bytes = std::min(receive.end - begin, send.end - send.begin);
      send.begin += same_bytes;
      skipped_bytes += same_bytes;
      if (receive.begin + skipped_bytes == receive.end) skipped_bytes = 0, ++r;
    }
  }
  return true;
}

// `apart`: entries of `sends` that are not compared.
absl::Status CheckOverlap(std::vector<Placed>& receives, const std::vector<Placed>& sends, Entries apart) {
  if (!std::is_sorted(receives.begin(), receives.end())) std::sort(receives.begin(), receives.end());
  for (size_t i = 1; i < receives.size(); ++i) {
    const Placed &a = receives[i - 1], &b = receives[i];
    if (a.file == b.file && b.begin < a.end) {
      return absl::InvalidArgumentError(
          absl::StrCat("receives: the ranges ", a.ToString(), " and ", b.ToString(), " overlap"));
    }
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    if (i == apart.begin) i = apart.end;
    if (i == sends.size()) break;
    const Placed& send = sends[i];
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

void NotePeers(const char* field, const std::vector<FlowRanges>& flows, CheckedSubmission* out) {
  for (size_t f = 0; f < flows.size(); ++f) {
    if (flows[f].peer.value() < out->peers_end) continue;
    out->peers_end = uint64_t{flows[f].peer.value()} + 1;
    out->last_field = field;
    out->last_flow = f;
  }
}

uint64_t TotalBytes(const std::vector<CheckedFlow>& flows) {
  uint64_t total = 0;
  for (const CheckedFlow& flow : flows) total += flow.bytes;
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

std::vector<uint32_t> PlacesOf(const Submission& layout, const FlowSet& flows) {
  std::vector<uint32_t> places;
  places.reserve(layout.sends.size() + layout.receives.size());
  const auto add = [&places](const std::vector<FlowRanges>& given, const std::vector<CheckedFlow>& by_rank) {
    const auto before = [](const CheckedFlow& flow, Rank rank) { return flow.peer < rank; };
    for (const FlowRanges& flow : given) {
      const auto it = std::lower_bound(by_rank.begin(), by_rank.end(), flow.peer, before);
      places.push_back(static_cast<uint32_t>(it - by_rank.begin()));
    }
  };
  add(layout.sends, flows.sends);
  add(layout.receives, flows.receives);
  return places;
}

std::vector<uint64_t> AllLengths(const FlowSet& flows) {
  std::vector<uint64_t> lengths;
  lengths.reserve(flows.places.size());
  for (size_t i = 0; i < flows.places.size(); ++i) {
    lengths.push_back((i < flows.sends.size() ? flows.sends : flows.receives)[flows.places[i]].bytes);
  }
  return lengths;
}

Digest LengthsDigest(absl::Span<const uint64_t> lengths_bytes) {
  Sha256Stream stream;
  stream.Add(lengths_bytes.data(), lengths_bytes.size() * sizeof(uint64_t));
  return stream.Finish();
}

// Has the submission use all bytes of the flows.
void Use(std::shared_ptr<const FlowSet> flows, CheckedSubmission* out) {
  out->sends = flows->sends;
  out->receives = flows->receives;
  out->memory = flows->memory;
  out->send_bytes = flows->send_bytes;
  out->receive_bytes = flows->receive_bytes;
  out->ranges = flows->ranges;
  out->flows = std::move(flows);
}

// Cuts each flow to its first bytes, as many as `lengths_bytes` says in the order in which the client gave the flows.
absl::Status Cut(absl::Span<const uint64_t> lengths_bytes, CheckedSubmission* out) {
  const FlowSet& flows = *out->flows;
  const size_t sends = flows.sends.size();
  if (lengths_bytes.size() != flows.places.size()) {
    return absl::InvalidArgumentError(absl::StrCat("lengths_bytes: ", lengths_bytes.size(),
                                                   " entries, and the prepared exchange has ", flows.places.size(),
                                                   " flows"));
  }
  out->cut = std::make_unique<CheckedFlow[]>(lengths_bytes.size());
  std::copy(flows.sends.begin(), flows.sends.end(), out->cut.get());
  std::copy(flows.receives.begin(), flows.receives.end(), out->cut.get() + sends);
  out->send_bytes = out->receive_bytes = 0;
  for (size_t i = 0; i < lengths_bytes.size(); ++i) {
    CheckedFlow& flow = out->cut[flows.places[i] + (i < sends ? 0 : sends)];
    if (lengths_bytes[i] > flow.bytes) {
      return absl::InvalidArgumentError(absl::StrCat("lengths_bytes[", i, "]: ", lengths_bytes[i], " bytes ",
                                                     i < sends ? "to" : "from", " rank ", flow.peer.value(),
                                                     ", more than the ", flow.bytes, " that were prepared"));
    }
    flow.bytes = flow.memory.total_bytes = lengths_bytes[i];
    (i < sends ? out->send_bytes : out->receive_bytes) += lengths_bytes[i];
  }
  out->sends = absl::MakeConstSpan(out->cut.get(), sends);
  out->receives = absl::MakeConstSpan(out->cut.get() + sends, flows.receives.size());
  return absl::OkStatus();
}

absl::Status CheckCapacities(const CheckedSubmission& submission) {
  uint64_t ranges = 0;
  for (const CheckedFlow& flow : submission.receives) ranges += flow.memory.count;
  if (!submission.capacities || ranges <= Submission::kMaxCapacityRanges) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("capacities: ", ranges, " ranges of receives, the limit is ",
                                                 Submission::kMaxCapacityRanges, " for a job with capacities"));
}

absl::Status CheckAgain(const Submission& submission, const std::shared_ptr<SessionMemory>& memory,
                        const PreparedExchange* exchange, CheckedSubmission* out) {
  if (memory == nullptr) {
    return absl::NotFoundError(absl::StrCat("session ", submission.session.value(), " is not open"));
  }
  if (exchange == nullptr || exchange->epoch != submission.job.epoch || exchange->rank != submission.rank) {
    return absl::NotFoundError(absl::StrCat("prepared_id: ", submission.prepared.value(),
                                            " is no prepared exchange of rank ", submission.rank.value(),
                                            " in this epoch"));
  }
  Use(exchange->flows, out);
  out->segments = exchange->segments;
  out->uses = exchange->uses;
  if (absl::Status s = CheckCapacities(*out); !s.ok()) return s;
  return submission.lengths_bytes.empty() ? absl::OkStatus() : Cut(submission.lengths_bytes, out);
}

absl::Status Check(const Submission& submission, const std::shared_ptr<SessionMemory>& memory, uint32_t max_ranges,
                   CheckedSubmission* out) {
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
  auto flows = std::make_shared<FlowSet>();
  auto segments = std::make_shared<HeldSegments>();
  FlowReader reader(submission.rank, memory.get(), table.get(), segments.get());
  Entries own_sends, own_receives;
  absl::Status status = reader.Read("sends", submission.sends, &flows->sends, &sends, &own_sends);
  if (status.ok()) {
    status = reader.Read("receives", submission.receives, &flows->receives, &receives, &own_receives);
  }
  if (!status.ok()) return status;
  const auto entries = [](const std::vector<Placed>& of, Entries which) {
    return absl::MakeConstSpan(of).subspan(which.begin, which.end - which.begin);
  };
  flows->own_in_place = BeginsWith(entries(receives, own_receives), entries(sends, own_sends));
  flows->memory = std::move(table);
  flows->send_bytes = TotalBytes(flows->sends);
  flows->receive_bytes = TotalBytes(flows->receives);
  flows->ranges = ranges;
  if (absl::Status s = CheckOverlap(receives, sends, flows->own_in_place ? own_sends : Entries()); !s.ok()) return s;
  out->uses = std::make_shared<UsedMemory>(ExtentsOf(sends), ExtentsOf(receives), submission.prepared != PreparedId(),
                                           memory->claimed()->known());
  out->segments = std::move(segments);
  if (submission.prepared != PreparedId()) {
    flows->places = PlacesOf(submission, *flows);
    flows->lengths = LengthsDigest(AllLengths(*flows));
  }
  Use(std::move(flows), out);
  return CheckCapacities(*out);
}

void Claim(const std::shared_ptr<SessionMemory>& memory, CheckedSubmission* out) {
  out->claim.emplace(memory->claimed(), JobMemory{out->job, out->rank, out->uses});
}

Digest SubmissionDigest(const Submission& submission) {
  std::string bytes;
  const auto put = [&bytes](uint64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  const auto put_ranges = [&put](absl::Span<const Range> ranges) {
    put(ranges.size());
    for (const Range& range : ranges) {
      put(range.segment.value());
      put(range.offset_bytes);
      put(range.length_bytes);
    }
  };
  put(submission.rank.value());
  put(submission.tag);
  put(submission.capacities ? 1 : 0);
  put(submission.vote);
  for (const auto* flows : {&submission.sends, &submission.receives}) {
    put(flows->size());
    for (const FlowRanges& flow : *flows) {
      put(flow.peer.value());
      put_ranges(flow.ranges);
    }
  }
  return Sha256(bytes);
}

// Does not depend on the id: the same ranges with the same lengths are the same content.
Digest DigestOfPrepared(const Submission& submission, const PreparedExchange* exchange) {
  Digest digest{};
  if (exchange == nullptr) return digest;
  // A submission that gives every length in full has the same content as one that gives no lengths.
  const Digest lengths =
      submission.lengths_bytes.empty() ? exchange->flows->lengths : LengthsDigest(submission.lengths_bytes);
  Sha256Stream stream;
  stream.Add(exchange->digest.data(), exchange->digest.size());
  stream.Add(&submission.tag, sizeof(submission.tag));
  stream.Add(&submission.capacities, sizeof(submission.capacities));
  stream.Add(&submission.vote, sizeof(submission.vote));
  stream.Add(lengths.data(), lengths.size());
  return stream.Finish();
}

CheckedSubmission Begin(const Submission& submission) {
  CheckedSubmission out;
  out.session = submission.session;
  out.job = submission.job;
  out.rank = submission.rank;
  out.tag = submission.tag;
  out.capacities = submission.capacities;
  out.vote = submission.vote;
  out.urgent = submission.urgent;
  out.timeout = submission.timeout;
  out.prepared = submission.prepared;
  return out;
}

CheckedSubmission CheckPrepared(const Submission& submission, const std::shared_ptr<SessionMemory>& memory) {
  CheckedSubmission out = Begin(submission);
  const std::shared_ptr<const PreparedExchange> exchange =
      memory == nullptr ? nullptr : memory->prepared().Find(submission.prepared);
  out.digest = DigestOfPrepared(submission, exchange.get());
  out.verdict = CheckAgain(submission, memory, exchange.get(), &out);
  if (out.verdict.ok()) {
    Claim(memory, &out);
  } else {
    out.sends = out.receives = {};
    out.segments.reset();
  }
  return out;
}

}  // namespace

Digest Sha256(absl::string_view bytes) {
  Sha256Stream stream;
  stream.Add(bytes.data(), bytes.size());
  return stream.Finish();
}

void CheckedSubmission::Release() {
  if (claim.has_value()) claim->Drop();
  segments.reset();
}

absl::Status ClaimMemory(const CheckedSubmission& submission) {
  const std::optional<MemoryConflict> conflict = submission.claim->Accept();
  if (!conflict) return absl::OkStatus();
  const MemoryOverlap& overlap = conflict->overlap;
  const auto segment = std::find_if(submission.segments->begin(), submission.segments->end(), [&](const auto& held) {
    return held.second->segment->file() == overlap.extent.file;
  });
  return absl::FailedPreconditionError(
      absl::StrCat(overlap.writes ? "receives" : "sends", ": [", overlap.extent.begin, ", ", overlap.extent.end,
                   ") of segment ", segment->first.value(), " overlaps [", overlap.other.begin, ", ", overlap.other.end,
                   ") of the same memory, which job ", conflict->job.seq.value(), " of rank ", conflict->rank.value(),
                   overlap.other_writes ? " receives" : " sends",
                   " and which has not ended; wait for that job, or use other memory"));
}

CheckedSubmission CheckSubmission(const Submission& submission, const std::shared_ptr<SessionMemory>& memory,
                                  uint32_t max_ranges) {
  if (submission.prepared != PreparedId()) return CheckPrepared(submission, memory);
  CheckedSubmission out = CheckLayout(submission, memory, max_ranges);
  if (out.verdict.ok()) Claim(memory, &out);
  return out;
}

CheckedSubmission CheckLayout(const Submission& layout, const std::shared_ptr<SessionMemory>& memory,
                              uint32_t max_ranges) {
  CheckedSubmission out = Begin(layout);
  out.ranges = RangesOf(layout);
  out.digest = SubmissionDigest(layout);
  NotePeers("sends", layout.sends, &out);
  NotePeers("receives", layout.receives, &out);
  out.verdict = Check(layout, memory, max_ranges, &out);
  // Compares long lists here, because the engine's thread may check submissions of a prepared exchange.
  if (out.verdict.ok()) memory->claimed()->Learn(*out.uses, memory->prepared().Uses());
  return out;
}

}  // namespace railsd
