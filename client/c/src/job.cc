// Jobs and prepared exchanges.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "client/c/src/error.h"
#include "client/c/src/handles.h"
#include "client/c/src/options.h"

namespace rails::c {
namespace {

// The members of the handle's group. The handle may be NULL.
template <typename Handle>
const Members* MembersOf(const Handle* handle) {
  return handle == nullptr ? nullptr : &handle->facts->members;
}

constexpr absl::Duration kSubmitTimeout = absl::Seconds(30);

absl::StatusOr<std::vector<FlowRanges>> ReadFlows(const rails_flow* flows, size_t count, const char* field) {
  std::vector<FlowRanges> read;
  if (count == 0) return read;
  if (flows == nullptr) return absl::InvalidArgumentError(absl::StrCat(field, " is NULL, and its count is ", count));
  read.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const rails_flow& flow = flows[i];
    if (flow.ranges == nullptr && flow.range_count > 0) {
      return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "].ranges is NULL"));
    }
    FlowRanges& to = read.emplace_back();
    to.rank = flow.rank;
    to.ranges.reserve(flow.range_count);
    for (uint32_t r = 0; r < flow.range_count; ++r) {
      const rails_range& range = flow.ranges[r];
      if (range.segment == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "].ranges[", r, "].segment is NULL"));
      }
      to.ranges.push_back({range.segment->segment, range.offset, range.length});
    }
  }
  return read;
}

absl::StatusOr<AllToAllv> ReadLayout(const rails_layout* given) {
  if (absl::Status status = Require(given, "layout"); !status.ok()) return status;
  const absl::StatusOr<rails_layout> layout = Read(given, "layout");
  if (!layout.ok()) return layout.status();
  absl::StatusOr<std::vector<FlowRanges>> sends = ReadFlows(layout->sends, layout->send_count, "sends");
  if (!sends.ok()) return sends.status();
  absl::StatusOr<std::vector<FlowRanges>> receives = ReadFlows(layout->receives, layout->receive_count, "receives");
  if (!receives.ok()) return receives.status();
  return AllToAllv{*std::move(sends), *std::move(receives)};
}

// One range for each rank that gets any bytes, one after the other.
absl::StatusOr<std::vector<FlowRanges>> ReadBuffer(const rails_segment* segment, uint64_t offset, const uint64_t* bytes,
                                                   uint32_t world_size, const char* field) {
  if (bytes == nullptr) return absl::InvalidArgumentError(absl::StrCat("buffers->", field, "_bytes is NULL"));
  std::vector<FlowRanges> flows;
  flows.reserve(world_size);
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    if (bytes[rank] == 0) continue;
    if (segment == nullptr) return absl::InvalidArgumentError(absl::StrCat("buffers->", field, " is NULL"));
    flows.push_back({rank, {{segment->segment, offset, bytes[rank]}}});
    if (__builtin_add_overflow(offset, bytes[rank], &offset)) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffers->", field, "_bytes[", rank, "] ", bytes[rank], " brings the offset past 2^64"));
    }
  }
  return flows;
}

absl::StatusOr<AllToAllv> ReadBuffers(const rails_buffers* given, uint32_t world_size) {
  if (absl::Status status = Require(given, "buffers"); !status.ok()) return status;
  const absl::StatusOr<rails_buffers> buffers = Read(given, "buffers");
  if (!buffers.ok()) return buffers.status();
  absl::StatusOr<std::vector<FlowRanges>> sends =
      ReadBuffer(buffers->send, buffers->send_offset, buffers->send_bytes, world_size, "send");
  if (!sends.ok()) return sends.status();
  absl::StatusOr<std::vector<FlowRanges>> receives =
      ReadBuffer(buffers->receive, buffers->receive_offset, buffers->receive_bytes, world_size, "receive");
  if (!receives.ok()) return receives.status();
  return AllToAllv{*std::move(sends), *std::move(receives)};
}

absl::Status Give(absl::StatusOr<std::shared_ptr<Job>> submitted, std::shared_ptr<const GroupFacts> facts,
                  rails_job** job) {
  if (!submitted.ok()) return submitted.status();
  std::unique_ptr<rails_job> handle(new rails_job{*std::move(submitted), std::move(facts)});
  const std::shared_ptr<EndSignal>& ends = handle->facts->ends;
  if (ends->opened()) handle->job->OnDone([ends](const absl::StatusOr<JobReport>&) { ends->Raise(); });
  *job = handle.release();
  return absl::OkStatus();
}

absl::StatusOr<rails_job_options> ReadOptions(const rails_job_options* given) {
  absl::StatusOr<rails_job_options> options = Read(given, "options");
  constexpr uint64_t kFlags = RAILS_JOB_CAPACITIES | RAILS_JOB_ON_STREAM | RAILS_JOB_URGENT;
  if (options.ok() && (options->flags & ~kFlags) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("options->flags ", options->flags, " has an unknown bit"));
  }
  return options;
}

// Copies the options that both kinds of jobs have.
template <typename Exchange>
void Take(const rails_job_options& options, Exchange* out) {
  out->tag = options.tag;
  out->vote = options.vote;
  out->timeout = Time(options.timeout_ns, absl::ZeroDuration());
  out->capacities = (options.flags & RAILS_JOB_CAPACITIES) != 0;
  out->urgent = (options.flags & RAILS_JOB_URGENT) != 0;
}

absl::Status Submit(rails_group* group, absl::StatusOr<AllToAllv> exchange, const rails_job_options* given,
                    rails_job** job) {
  if (!exchange.ok()) return exchange.status();
  if (absl::Status status = Require(job, "job"); !status.ok()) return status;
  const absl::StatusOr<rails_job_options> options = ReadOptions(given);
  if (!options.ok()) return options.status();
  Take(*options, &*exchange);
  const absl::Duration timeout = Time(options->submit_timeout_ns, kSubmitTimeout);
  if ((options->flags & RAILS_JOB_ON_STREAM) == 0) {
    if (options->stream != nullptr) {
      return absl::InvalidArgumentError("options->stream is set, and options->flags lacks RAILS_JOB_ON_STREAM");
    }
    return Give(group->group->Submit(*exchange, timeout), group->facts, job);
  }
  auto* const on_device = dynamic_cast<cuda::Group*>(group->group.get());
  if (on_device == nullptr) {
    return absl::InvalidArgumentError("options->flags has RAILS_JOB_ON_STREAM: the group was joined without a device");
  }
  return Give(on_device->Submit(*exchange, options->stream, timeout), group->facts, job);
}

absl::Status Prepare(rails_group* group, const rails_layout* layout, int64_t timeout_ns, rails_prepared** prepared) {
  if (absl::Status status = Require(group, "group"); !status.ok()) return status;
  if (absl::Status status = Require(prepared, "prepared"); !status.ok()) return status;
  const absl::StatusOr<AllToAllv> exchange = ReadLayout(layout);
  if (!exchange.ok()) return exchange.status();
  absl::StatusOr<std::shared_ptr<Prepared>> made = group->group->Prepare(*exchange, Time(timeout_ns, kSubmitTimeout));
  if (!made.ok()) return made.status();
  *prepared = new rails_prepared{*std::move(made), group->group, group->facts, exchange->sends.size(),
                                 exchange->receives.size()};
  return absl::OkStatus();
}

absl::Status SubmitPrepared(rails_prepared* prepared, const uint64_t* send_bytes, const uint64_t* receive_bytes,
                            const rails_job_options* given, rails_job** job) {
  if (absl::Status status = Require(prepared, "prepared"); !status.ok()) return status;
  if (absl::Status status = Require(job, "job"); !status.ok()) return status;
  const absl::StatusOr<rails_job_options> options = ReadOptions(given);
  if (!options.ok()) return options.status();
  const std::shared_ptr<Group> group = prepared->group.lock();
  if (group == nullptr) return absl::FailedPreconditionError("prepared: the handle of its group has been freed");
  Lengths lengths;
  if (send_bytes != nullptr) lengths.sends.assign(send_bytes, send_bytes + prepared->send_count);
  if (receive_bytes != nullptr) lengths.receives.assign(receive_bytes, receive_bytes + prepared->receive_count);
  Take(*options, &lengths);
  return Give(group->Submit(prepared->prepared, lengths, Time(options->submit_timeout_ns, kSubmitTimeout)),
              prepared->facts, job);
}

// `*done`: the job has ended.
absl::StatusOr<JobReport> Wait(Job& job, absl::Duration timeout, bool* done) {
  absl::StatusOr<JobReport> report = job.Wait(timeout);
  // Without a report, a job's end never has these two codes: they are errors of this call.
  *done = report.ok() ? report->terminal
                      : !absl::IsUnavailable(report.status()) && !absl::IsFailedPrecondition(report.status());
  return report;
}

absl::Status WaitForEnd(rails_job* job, absl::Duration timeout, int32_t* done) {
  if (absl::Status status = Require(job, "job"); !status.ok()) return status;
  if (absl::Status status = Require(done, "done"); !status.ok()) return status;
  *done = 0;
  bool ended = false;
  const absl::StatusOr<JobReport> report = Wait(*job->job, timeout, &ended);
  *done = ended ? 1 : 0;
  return report.ok() ? report->status : report.status();
}

// The report of an ended job. It no longer changes.
absl::StatusOr<const JobReport*> EndReport(rails_job& job) {
  bool done = false;
  absl::StatusOr<JobReport> report = Wait(*job.job, absl::ZeroDuration(), &done);
  if (!done) {
    return report.ok() ? absl::FailedPreconditionError(absl::StrCat("job ", job.job->seq(), " has not ended"))
                       : report.status();
  }
  const std::lock_guard<std::mutex> lock(job.mutex);
  if (!job.report.has_value()) {
    job.report = report.ok() ? *std::move(report) : JobReport{};
    job.report->seq = job.job->seq();
  }
  return &*job.report;
}

absl::Status Report(rails_job* job, rails_report* out) {
  if (absl::Status status = Require(job, "job"); !status.ok()) return status;
  if (absl::Status status = Require(out, "report"); !status.ok()) return status;
  if (out->size < sizeof(out->size)) {
    return absl::InvalidArgumentError(absl::StrCat("report->size is ", out->size, ": begin with RAILS_REPORT_INIT"));
  }
  const absl::StatusOr<const JobReport*> ended = EndReport(*job);
  if (!ended.ok()) return ended.status();
  const JobReport& from = **ended;
  rails_report report{};
  report.size = out->size;
  report.seq = from.seq;
  report.bytes_sent = from.bytes_sent;
  report.bytes_received = from.bytes_received;
  report.elapsed_ns = absl::ToInt64Nanoseconds(from.elapsed);
  report.waiting_for_ranks_ns = absl::ToInt64Nanoseconds(from.waiting_for_ranks);
  report.waiting_for_peers_ns = absl::ToInt64Nanoseconds(from.waiting_for_peers);
  report.to_first_chunk_ns = absl::ToInt64Nanoseconds(from.to_first_chunk);
  report.node_bound_ns = absl::ToInt64Nanoseconds(from.node_bound);
  report.ratio_to_bound = from.ratio_to_bound;
  report.rail_tx_bytes = from.rail_tx_bytes.data();
  report.rail_rx_bytes = from.rail_rx_bytes.data();
  report.rail_count = std::min(from.rail_tx_bytes.size(), from.rail_rx_bytes.size());
  report.eager_sent_bytes = from.eager_sent_bytes;
  report.eager_received_bytes = from.eager_received_bytes;
  report.lost_ranks = from.lost_ranks.data();
  report.lost_rank_count = from.lost_ranks.size();
  report.replays = from.replays;
  report.received_by_rank = from.received_by_rank.empty() ? nullptr : from.received_by_rank.data();
  report.received_count = from.received_by_rank.size();
  report.highest_vote = from.highest_vote;
  if (const auto* const on_device = dynamic_cast<const cuda::Job*>(job->job.get()); on_device != nullptr) {
    const cuda::Copies copies = on_device->copies();
    report.copied_out_bytes = copies.to_host_bytes;
    report.copied_in_bytes = copies.to_device_bytes;
    report.copied_local_bytes = copies.local_bytes;
    report.slices = copies.slices;
  }
  const size_t size = out->size;
  std::memcpy(out, &report, std::min(size, sizeof(report)));
  if (size > sizeof(report)) std::memset(reinterpret_cast<char*>(out) + sizeof(report), 0, size - sizeof(report));
  return absl::OkStatus();
}

}  // namespace
}  // namespace rails::c

using rails::c::Guard;
using rails::c::MembersOf;
using rails::c::Require;

rails_error* rails_all_to_all_v(rails_group* group, const rails_buffers* buffers, const rails_job_options* options,
                                rails_job** job) {
  return Guard(MembersOf(group), [&] {
    if (absl::Status status = Require(group, "group"); !status.ok()) return status;
    return rails::c::Submit(group, rails::c::ReadBuffers(buffers, group->group->world_size()), options, job);
  });
}

rails_error* rails_all_to_all_ranges(rails_group* group, const rails_layout* layout, const rails_job_options* options,
                                     rails_job** job) {
  return Guard(MembersOf(group), [&] {
    if (absl::Status status = Require(group, "group"); !status.ok()) return status;
    return rails::c::Submit(group, rails::c::ReadLayout(layout), options, job);
  });
}

rails_error* rails_prepare(rails_group* group, const rails_layout* layout, int64_t timeout_ns,
                           rails_prepared** prepared) {
  return Guard(MembersOf(group), [&] { return rails::c::Prepare(group, layout, timeout_ns, prepared); });
}

rails_error* rails_submit_prepared(rails_prepared* prepared, const uint64_t* send_bytes, const uint64_t* receive_bytes,
                                   const rails_job_options* options, rails_job** job) {
  return Guard(MembersOf(prepared),
               [&] { return rails::c::SubmitPrepared(prepared, send_bytes, receive_bytes, options, job); });
}

void rails_prepared_free(rails_prepared* prepared) { delete prepared; }

rails_error* rails_job_wait(rails_job* job, int64_t timeout_ns, int32_t* done) {
  return Guard(MembersOf(job),
               [&] { return rails::c::WaitForEnd(job, rails::c::Time(timeout_ns, absl::ZeroDuration()), done); });
}

rails_error* rails_job_wait_on(rails_job* job, void* stream) {
  return Guard(MembersOf(job), [&] {
    if (absl::Status status = Require(job, "job"); !status.ok()) return status;
    auto* const on_device = dynamic_cast<rails::cuda::Job*>(job->job.get());
    if (on_device != nullptr) return on_device->WaitOn(stream);
    return absl::InvalidArgumentError("job: its group was joined without a device; use rails_job_wait()");
  });
}

rails_error* rails_job_test(rails_job* job, int32_t* done) { return rails_job_wait(job, 0, done); }

rails_error* rails_job_cancel(rails_job* job) {
  return Guard(MembersOf(job), [&] {
    absl::Status status = Require(job, "job");
    return status.ok() ? job->job->Cancel() : status;
  });
}

rails_error* rails_job_report(rails_job* job, rails_report* report) {
  return Guard([&] { return rails::c::Report(job, report); });
}

void rails_job_free(rails_job* job) { delete job; }
