#include "client/src/prepared.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/submission.h"

namespace rails::internal {

absl::StatusOr<std::shared_ptr<PreparedCore>> PreparedCore::Build(const AllToAllv& layout, const SegmentTable* table,
                                                                  uint32_t world_size, uint32_t rank,
                                                                  std::weak_ptr<const PreparedOwner> owner) {
  std::shared_ptr<PreparedCore> core(new PreparedCore(std::move(owner)));
  v1::SubmitAllToAllRequest ranges;
  Submission submission;
  submission.request = &ranges;
  if (absl::Status s = BuildSubmission(layout, table, world_size, &submission); !s.ok()) return s;
  core->request_.set_rank(rank);
  core->request_.mutable_sends()->Swap(ranges.mutable_sends());
  core->request_.mutable_receives()->Swap(ranges.mutable_receives());
  core->segments_ = std::move(submission.segments);
  Note(layout.sends, &core->sends_);
  Note(layout.receives, &core->receives_);
  return core;
}

void PreparedCore::Note(const std::vector<FlowRanges>& flows, Flows* out) {
  out->all.reserve(flows.size());
  for (const FlowRanges& flow : flows) {
    Flow& noted = out->all.emplace_back();
    noted.rank = flow.rank;
    noted.sent = !flow.ranges.empty();
    for (const Range& range : flow.ranges) noted.capacity_bytes += range.length_bytes;
  }
}

PreparedCore::~PreparedCore() {
  if (!process_.IsThis()) return;
  absl::MutexLock lock(&mutex_);
  if (session_ == nullptr) return;
  // If the epoch has ended for this rank, the daemon has released its copy already.
  const std::shared_ptr<const PreparedOwner> owner = owner_.lock();
  if (owner != nullptr && owner->Lasts(generation_)) session_->ReleasePrepared(id_);
}

absl::Status PreparedCore::CheckUsable() const {
  for (const std::shared_ptr<SegmentCore>& segment : segments_) {
    if (absl::Status status = segment->CheckUsable(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> PreparedCore::PrepareIn(const std::shared_ptr<Session>& session, const v1::Epoch& epoch,
                                                 uint64_t generation, Deadline deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (session_ == session && generation_ == generation) return id_;
    session_ = nullptr;  // the daemon drops its copy at the end of the epoch
  }
  const uint64_t id = session->NextPreparedId();
  *request_.mutable_epoch() = epoch;
  request_.set_prepared_id(id);
  if (absl::Status status = session->Prepare(request_, deadline); !status.ok()) {
    // The daemon may still take the unanswered request.
    if (absl::IsDeadlineExceeded(status)) session->ReleasePrepared(id);
    return status;
  }
  absl::MutexLock lock(&mutex_);
  session_ = session;
  generation_ = generation;
  return id_ = id;
}

std::shared_ptr<JobCore::Request> PreparedCore::TakeRequest() {
  std::unique_ptr<JobCore::Request> request;
  {
    absl::MutexLock lock(&idle_->mutex);
    if (!idle_->all.empty()) {
      request = std::move(idle_->all.back());
      idle_->all.pop_back();
    }
  }
  if (request == nullptr) request = std::make_unique<JobCore::Request>();
  request->prepared = this;
  return {request.release(), [idle = idle_, process = process_](JobCore::Request* used) {
            constexpr size_t kKept = 4;
            std::unique_ptr<JobCore::Request> dropped(used);
            if (!process.IsThis()) return;
            absl::MutexLock lock(&idle->mutex);
            if (idle->all.size() < kKept) idle->all.push_back(std::move(dropped));
          }};
}

absl::Status PreparedCore::FillDirection(const Flows& flows, const std::vector<uint64_t>& lengths,
                                         v1::SubmitPreparedRequest* message) const {
  if (!lengths.empty() && lengths.size() != flows.all.size()) {
    return absl::InvalidArgumentError(absl::StrCat("lengths.", flows.field, ": ", lengths.size(),
                                                   " entries, and the layout has ", flows.all.size(), " flows"));
  }
  for (size_t i = 0; i < flows.all.size(); ++i) {
    const Flow& flow = flows.all[i];
    const uint64_t bytes = lengths.empty() ? flow.capacity_bytes : lengths[i];
    if (bytes > flow.capacity_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("lengths.", flows.field, "[", i, "]: ", bytes, " bytes ",
                                                     &flows == &sends_ ? "to" : "from", " rank ", flow.rank,
                                                     ", more than its capacity of ", flow.capacity_bytes));
    }
    if (flow.sent && message != nullptr) message->add_lengths_bytes(bytes);
  }
  return absl::OkStatus();
}

absl::Status PreparedCore::Fill(const Lengths& lengths, v1::SubmitPreparedRequest* request) const {
  if (lengths.timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("timeout ", absl::FormatDuration(lengths.timeout), " is negative"));
  }
  request->clear_lengths_bytes();
  v1::SubmitPreparedRequest* const message = lengths.sends.empty() && lengths.receives.empty() ? nullptr : request;
  if (absl::Status s = FillDirection(sends_, lengths.sends, message); !s.ok()) return s;
  if (absl::Status s = FillDirection(receives_, lengths.receives, message); !s.ok()) return s;
  request->set_capacities(lengths.capacities);
  request->set_tag(lengths.tag);
  request->set_vote(lengths.vote);
  request->set_urgent(lengths.urgent);
  request->set_timeout_milliseconds(lengths.timeout == absl::InfiniteDuration() ? 0
                                                                                : WholeMilliseconds(lengths.timeout));
  return absl::OkStatus();
}

}  // namespace rails::internal
