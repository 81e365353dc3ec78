#include "client/railsctl/bench/measure.h"

#include <algorithm>
#include <cmath>

#include "client/railsctl/replay/layout.h"

namespace rails::ctl {
namespace {

class Measurer {
 public:
  Measurer(const MeasureRequest& request, Coordinator* coordinator, uint64_t* job)
      : request_(request), coordinator_(*coordinator), job_(*job) {}

  absl::StatusOr<Measurement> All() {
    result_.bytes = CountBytes(request_.ranks, request_.ranks_per_node);
    result_.bound_seconds = BoundSeconds(request_.ranks, request_.ranks_per_node, request_.node_speeds);
    absl::StatusOr<RankLayout> layout =
        LayOut(RowOf(request_.ranks, 0), ColumnOf(request_.ranks, 0), request_.ranges_per_flow);
    if (!layout.ok()) return layout.status();
    for (const PlacedFlow& flow : layout->sends) result_.ranges += flow.ranges.size();

    absl::Status status = Checked();
    if (status.ok()) status = Timed();
    if (status.ok()) status = Checked();
    if (!status.ok()) return status;
    return std::move(result_);
  }

 private:
  PhaseRequest Request(bool fill) {
    return {.job = job_++,
            .ranks = &request_.ranks,
            .ranges_per_flow = request_.ranges_per_flow,
            .fill = fill,
            .check = fill,
            .barrier = true,
            .prepared = request_.prepared};
  }

  absl::Status Checked() {
    absl::StatusOr<PhaseOutcome> outcome = coordinator_.RunPhase(Request(true));
    if (outcome.ok()) result_.wrong_bytes += outcome->wrong_bytes;
    return outcome.status();
  }

  absl::Status Timed() {
    if (absl::Status status = coordinator_.Prepare(Request(false)); !status.ok()) return status;
    for (uint32_t i = 0; i < request_.warmup + request_.iterations; ++i) {
      absl::StatusOr<PhaseOutcome> outcome = request_.rank0_last ? coordinator_.GoLast() : coordinator_.Go();
      if (!outcome.ok()) return outcome.status();
      if (i >= request_.warmup) Add(*outcome);
    }
    return absl::OkStatus();
  }

  void Add(const PhaseOutcome& outcome) {
    result_.phase.Add(outcome.seconds);
    for (size_t rank = 0; rank < outcome.done.size(); ++rank) {
      const DoneEvent& done = outcome.done[rank];
      const double submit = static_cast<double>(done.accepted_ns() - done.submit_ns()) * 1e-9;
      if (!request_.rank0_last || rank == 0) result_.submit.Add(submit);
      AddHops(done);
      if (rank > 0) continue;
      result_.rank_done.Add(static_cast<double>(done.done_ns() - done.submit_ns()) * 1e-9);
      // The daemon counts from its acceptance, which is before the call's return.
      if (done.to_first_chunk_seconds() > 0) result_.first_chunk.Add(submit + done.to_first_chunk_seconds());
    }
  }

  void AddHops(const DoneEvent& done) {
    const double ranks = done.waiting_for_ranks_seconds(), peers = done.waiting_for_peers_seconds();
    const double whole = static_cast<double>(done.done_ns() - done.submit_ns()) * 1e-9;
    result_.hops.outside.Add(std::max(0.0, whole - done.elapsed_seconds()));
    result_.hops.ranks.Add(ranks);
    result_.hops.peers.Add(peers);
    result_.hops.bytes.Add(std::max(0.0, done.elapsed_seconds() - ranks - peers));
  }

  const MeasureRequest& request_;
  Coordinator& coordinator_;
  uint64_t& job_;
  Measurement result_;
};

}  // namespace

void Samples::Add(double seconds) {
  sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), seconds), seconds);
}

double Samples::Quantile(double part) const {
  if (sorted_.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(std::clamp(part, 0.0, 1.0) * static_cast<double>(sorted_.size())));
  return sorted_[std::max<size_t>(rank, 1) - 1];
}

absl::StatusOr<Measurement> Measure(const MeasureRequest& request, Coordinator* coordinator, uint64_t* job) {
  return Measurer(request, coordinator, job).All();
}

workload::TrafficMatrix UniformMatrix(size_t ranks, uint64_t bytes_per_rank) {
  workload::TrafficMatrix matrix(ranks);
  for (size_t source = 0; source < ranks; ++source) {
    for (size_t i = 0; i < ranks; ++i) {
      // The remaining bytes go to the next ranks, so that every rank also receives the same.
      matrix.at(source, (source + i) % ranks) = bytes_per_rank / ranks + (i < bytes_per_rank % ranks ? 1 : 0);
    }
  }
  return matrix;
}

workload::TrafficMatrix FromRankZero(size_t ranks, uint32_t ranks_per_node, uint64_t bytes) {
  workload::TrafficMatrix matrix(ranks);
  const size_t first = ranks > ranks_per_node ? ranks_per_node : 1;
  for (size_t rank = first; rank < ranks; ++rank) {
    const size_t count = ranks - first;
    matrix.at(0, rank) = bytes / count + (rank - first < bytes % count ? 1 : 0);
  }
  return matrix;
}

uint64_t BenchReport::wrong_bytes() const {
  uint64_t sum = 0;
  for (const auto* measurement : {&throughput, &small_jobs, &submit}) {
    if (measurement->has_value()) sum += (*measurement)->wrong_bytes;
  }
  return sum;
}

}  // namespace rails::ctl
