#include <algorithm>

#include "absl/time/clock.h"
#include "daemon/services/overview.h"
#include "rails/v1/operator.pb.h"

namespace railsd {
namespace {

// Smallest time of an event that has happened, because 0 means that it has not.
constexpr double kFirstMoment = 1e-9;

// Converts times to seconds since the job's begin; 0 if the event has not happened.
class Since {
 public:
  explicit Since(absl::Time begun) : begun_(begun) {}
  double operator()(absl::Time at) const {
    if (at == absl::InfinitePast() || at == absl::InfiniteFuture()) return 0;
    return std::max(kFirstMoment, absl::ToDoubleSeconds(at - begun_));
  }
  // How long before the begin an event happened; 0 if not before, or not at all.
  double Before(absl::Time at) const {
    return at == absl::InfinitePast() ? 0 : std::max(0.0, absl::ToDoubleSeconds(begun_ - at));
  }

 private:
  const absl::Time begun_;
};

uint64_t At(const BytesByRail& values, size_t index) { return index < values.size() ? values[index] : 0; }

void RailsTo(const JobExplanation& explanation, const std::vector<RailSpec>& rails, const Since& since,
             rails::v1::ExplainJobResponse* out) {
  const JobReport& report = explanation.report;
  for (size_t r = 0; r < explanation.timeline.rails().size(); ++r) {
    const JobTimeline::Rail& from = explanation.timeline.rails()[r];
    auto* rail = out->add_rails();
    if (r < rails.size()) {
      rail->set_rail(rails[r].name);
      rail->set_speed_bytes_per_second(rails[r].speed_bytes_per_s);
    }
    rail->set_planned_bytes(At(report.rail_planned_bytes, r));
    rail->set_tx_bytes(At(report.rail_tx_bytes, r));
    rail->set_rx_bytes(At(report.rail_rx_bytes, r));
    rail->set_chunks(from.chunks);
    rail->set_returned_chunks(from.returned_chunks);
    rail->set_first_posted_seconds(since(from.first_posted));
    rail->set_last_acknowledged_seconds(since(from.last_acknowledged));
    rail->set_last_received_seconds(since(from.last_received));
    rail->set_busy_seconds(absl::ToDoubleSeconds(from.busy));
    rail->set_drained((report.drained_rails >> r & 1) != 0);
  }
}

void ExchangeTo(const JobExplanation::Exchange& from, const Since& since, rails::v1::ExchangePart* out) {
  out->set_node(from.node);
  out->set_out_bytes(from.out_bytes);
  out->set_in_bytes(from.in_bytes);
  out->set_ready_sent_seconds(since(from.times.ready_sent));
  out->set_ready_received_seconds(since(from.times.ready_received));
  out->set_ready_early_seconds(since.Before(from.times.ready_received));
  out->set_grant_sent_seconds(since(from.times.grant_sent));
  out->set_grant_received_seconds(since(from.times.grant_received));
  out->set_planned_seconds(since(from.times.planned));
  out->set_last_acknowledged_seconds(since(from.times.last_acknowledged));
  out->set_last_received_seconds(since(from.times.last_received));
  out->set_left_out(from.left_out);
  out->set_eager_out(from.eager_out);
  out->set_eager_in(from.eager_in);
}

void ChunksTo(const JobExplanation& explanation, const Since& since, rails::v1::ExplainJobResponse* out) {
  for (const JobTimeline::Chunk& chunk : explanation.timeline.chunks()) {
    const auto exchange = std::find_if(explanation.exchanges.begin(), explanation.exchanges.end(),
                                       [&](const auto& e) { return e.peer == chunk.peer; });
    auto* record = out->add_chunks();
    record->set_rail(chunk.rail.value());
    record->set_exchange(static_cast<uint32_t>(exchange - explanation.exchanges.begin()));
    record->set_source_rank(chunk.source.value());
    record->set_length_bytes(chunk.length_bytes);
    record->set_posted_seconds(since(chunk.posted));
    record->set_ended_seconds(since(chunk.ended));
    record->set_returned(chunk.returned);
  }
  out->set_chunks_left_out(explanation.timeline.left_out());
}

}  // namespace

void ExplanationTo(const JobExplanation& explanation, const ServiceContext& context,
                   rails::v1::ExplainJobResponse* out) {
  const Since since(explanation.begun);
  ReportTo(explanation.report, out->mutable_report());
  out->set_node(context.node);
  out->set_begun_seconds(absl::ToDoubleSeconds(explanation.begun_at - absl::UnixEpoch()));
  for (const JobExplanation::RankTimes& rank : explanation.ranks) {
    auto* part = out->add_ranks();
    part->set_rank(rank.rank.value());
    part->set_submitted_seconds(absl::ToDoubleSeconds(rank.submitted - explanation.begun));
    part->set_ended_seconds(since(rank.ended));
  }
  RailsTo(explanation, context.rails, since, out);
  for (const JobExplanation::Exchange& exchange : explanation.exchanges) {
    ExchangeTo(exchange, since, out->add_exchanges());
  }
  ChunksTo(explanation, since, out);
  out->set_waits_for(explanation.waits_for);
}

}  // namespace railsd
