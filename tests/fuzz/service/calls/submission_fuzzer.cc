// Any bytes as a trainer's submission or join: refused with the field's name, or within the limits.
#include <cstdint>
#include <cstdlib>

#include "daemon/services/conversion.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"

namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

railsd::AgentLimits Limits() {
  railsd::AgentLimits limits;
  limits.max_ranges_per_submission = 16;
  limits.max_world_size = 64;
  return limits;
}

void CheckRanges(const absl::StatusOr<railsd::Submission>& submission) {
  if (!submission.ok()) return Require(!submission.status().message().empty());
  for (const auto* flows : {&submission->sends, &submission->receives}) {
    size_t ranges = 0;
    for (const railsd::FlowRanges& flow : *flows) {
      ranges += flow.ranges.size();
      for (const railsd::Range& range : flow.ranges)
        Require(range.offset_bytes + range.length_bytes >= range.length_bytes);
    }
    Require(ranges <= Limits().max_ranges_per_submission);
  }
}

void ReadSubmissions(const uint8_t* bytes, size_t size) {
  const railsd::SessionId session(1);
  rails::v1::SubmitAllToAllRequest submission;
  if (submission.ParseFromArray(bytes, static_cast<int>(size))) {
    CheckRanges(railsd::SubmissionFrom(submission, session, Limits()));
  }
  rails::v1::PrepareAllToAllRequest layout;
  if (layout.ParseFromArray(bytes, static_cast<int>(size))) {
    const auto read = railsd::LayoutFrom(layout, session, Limits());
    CheckRanges(read);
    Require(!read.ok() || read->prepared != railsd::PreparedId());
  }
  rails::v1::SubmitPreparedRequest prepared;
  if (prepared.ParseFromArray(bytes, static_cast<int>(size))) {
    const auto read = railsd::PreparedSubmissionFrom(prepared, session);
    if (!read.ok()) return Require(!read.status().message().empty());
    Require(read->prepared != railsd::PreparedId());
    Require(read->lengths_bytes.size() == static_cast<size_t>(prepared.lengths_bytes_size()));
  }
}

void ReadJoin(const uint8_t* bytes, size_t size) {
  rails::v1::JoinGroupRequest request;
  if (!request.ParseFromArray(bytes, static_cast<int>(size))) return;
  const auto join = railsd::JoinFrom(request, railsd::SessionId(1), Limits());
  if (!join.ok()) return Require(!join.status().message().empty());
  Require(join->world_size > 0 && join->world_size <= Limits().max_world_size);
  Require(join->rank.value() < join->world_size && !join->name.empty() && join->name.size() <= 256);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  ReadSubmissions(bytes, size);
  ReadJoin(bytes, size);
  return 0;
}
