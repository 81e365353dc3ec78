#include "agent/jobs/streams.h"

#include <numeric>
#include <utility>

namespace railsd {

void StreamBuilder::Take(const NodeJob& job, std::shared_ptr<const GroupLayout> layout) {
  layout_ = std::move(layout);
  parts_.clear();
  parts_.reserve(job.parts.size());
  for (const RankPart* part : job.parts) parts_.push_back({part->report.rank, &part->submission});
}

absl::Span<const StreamBuilder::Item> StreamBuilder::Sort(FlowsOf flows, KeyOf key, size_t keys) {
  const auto for_each = [&](auto visit) {
    for (uint32_t p = 0; p < parts_.size(); ++p) {
      for (const CheckedFlow& flow : parts_[p].submission->*flows) {
        const GroupLayout::Place& place = layout_->ranks[flow.peer.value()];
        if (place.node != GroupLayout::kLocal && flow.bytes > 0) visit(Item{&flow, p, place.node}, place.*key);
      }
    }
  };
  places_.assign(keys + 1, 0);
  size_t pieces = 0;
  for_each([&](const Item& item, uint32_t k) {
    ++places_[k + 1];
    pieces += item.flow->memory.count;
  });
  std::partial_sum(places_.begin(), places_.end(), places_.begin());
  const size_t count = places_.back();
  if (count > sorted_.size()) sorted_.resize(count);
  for_each([&](const Item& item, uint32_t k) { sorted_[places_[k]++] = item; });
  // A rank mostly receives into as many pieces as it sends from: then the table grows once.
  memory_->Reserve(flows == &CheckedSubmission::sends ? 2 * pieces : pieces);
  return absl::MakeConstSpan(sorted_).first(count);
}

void StreamBuilder::Append(bool sends, absl::Span<const Item> sorted, std::shared_ptr<StreamFlow[]>* flows,
                           std::shared_ptr<Ready::Flow[]>* told, std::vector<Stream>* streams) {
  *flows = std::make_shared<StreamFlow[]>(sorted.size());
  *told = std::make_shared<Ready::Flow[]>(sorted.size());
  streams->resize(layout_->peers.size());
  size_t i = 0;
  for (uint32_t node = 0; node < streams->size(); ++node) {
    Stream& stream = (*streams)[node];
    stream.begin = i;
    memory_->Begin();
    uint64_t begin_bytes = 0;
    for (; i < sorted.size() && sorted[i].node == node; ++i) {
      const CheckedFlow& flow = *sorted[i].flow;
      const Part& part = parts_[sorted[i].part];
      const Rank source = sends ? part.rank : flow.peer, destination = sends ? flow.peer : part.rank;
      (*flows)[i] = {destination, source, sorted[i].part, flow.bytes, begin_bytes};
      (*told)[i] = {source, destination, flow.bytes};
      begin_bytes += flow.bytes;
      memory_->Append(part.submission->memory->Pieces(flow.memory), flow.bytes);
    }
    stream.end = i;
    stream.memory = memory_->stream();
  }
}

void StreamBuilder::Build() {
  memory_ = std::make_shared<MemoryTable>();
  size_t segments = 0;
  for (const Part& part : parts_) segments += part.submission->memory->segments();
  memory_->Reserve(0, segments);
  for (const Part& part : parts_) memory_->Hold(*part.submission->memory);
  // The stream is in the order of destination, then source. Sends of a rank are in the order of destinations already.
  Append(/*sends=*/true, Sort(&CheckedSubmission::sends, &GroupLayout::Place::order, layout_->ranks.size()),
         &out_flows_, &out_told_, &out_);
  Append(/*sends=*/false, Sort(&CheckedSubmission::receives, &GroupLayout::Place::node, layout_->peers.size()),
         &in_flows_, &in_told_, &in_);
}

void StreamBuilder::Give(NodeJob* job) {
  for (size_t node = 0; node < out_.size(); ++node) {
    Exchange& exchange = *job->With(layout_->peers[node]);
    const Stream &out = out_[node], &in = in_[node];
    exchange.out.SetStream({out_flows_, out.begin, out.end}, {memory_, out.memory});
    exchange.in.SetStream({in_flows_, in.begin, in.end}, {memory_, in.memory});
    exchange.sends = {out_told_, out.begin, out.end};
    exchange.receives = {in_told_, in.begin, in.end};
    job->out_bytes += exchange.out.total_bytes();
    job->in_bytes += exchange.in.total_bytes();
  }
  out_flows_ = in_flows_ = nullptr;
  out_told_ = in_told_ = nullptr;
  memory_ = nullptr;
  layout_ = nullptr;
}

}  // namespace railsd
