#include "agent/jobs/streams.h"

#include <numeric>
#include <utility>

namespace railsd {

void StreamBuilder::Take(const NodeJob& job, std::shared_ptr<const GroupLayout> layout) {
  layout_ = std::move(layout);
  parts_.clear();
  parts_.reserve(job.parts.size());
  for (const RankPart* part : job.parts) {
    parts_.push_back({part->report.rank, &part->submission, part->submission.memory->Pieces()});
  }
}

template <StreamBuilder::FlowsOf flows, StreamBuilder::KeyOf key>
absl::Span<const StreamBuilder::Item> StreamBuilder::Sort(size_t keys, std::vector<uint64_t>* by_source) {
  constexpr bool kSends = flows == &CheckedSubmission::sends;
  by_source->assign(layout_->most_local_ranks, 0);
  places_.assign(keys + 1, 0);
  counts_.assign(layout_->peers.size(), 0);
  // Locals, because stores into the tables could change the members for all that the compiler knows.
  uint64_t* const bytes = by_source->data();
  uint32_t* const places = places_.data();
  uint32_t* const counts = counts_.data();
  const GroupLayout::Place* const ranks = layout_->ranks.data();
  const auto for_each = [&](auto visit) {
    for (uint32_t p = 0; p < parts_.size(); ++p) {
      for (const CheckedFlow& flow : parts_[p].submission->*flows) {
        const GroupLayout::Place& place = ranks[flow.peer.value()];
        if (place.node != GroupLayout::kLocal && flow.bytes > 0) visit(flow, p, place);
      }
    }
  };
  size_t pieces = 0;
  for_each([&](const CheckedFlow& flow, uint32_t part, const GroupLayout::Place& place) {
    ++places[place.*key + 1];
    ++counts[place.node];
    pieces += flow.memory.count;
    bytes[kSends ? part : place.local_rank] += flow.bytes;  // parts are in the order of ranks
  });
  std::partial_sum(places_.begin(), places_.end(), places_.begin());
  const size_t count = places_.back();
  if (count > sorted_.size()) sorted_.resize(count);
  Item* const sorted = sorted_.data();
  for_each([&](const CheckedFlow& flow, uint32_t part, const GroupLayout::Place& place) {
    sorted[places[place.*key]++] = {&flow, part};
  });
  // A rank mostly receives into as many pieces as it sends from: then the table grows once.
  memory_->Reserve(kSends ? 2 * pieces : pieces);
  return absl::MakeConstSpan(sorted_).first(count);
}

template <bool sends>
void StreamBuilder::Append(absl::Span<const Item> sorted, std::shared_ptr<StreamFlow[]>* flows,
                           std::vector<Stream>* streams) {
  *flows = std::make_shared<StreamFlow[]>(sorted.size());
  streams->resize(layout_->peers.size());
  StreamFlow* const table = flows->get();
  const Part* const parts = parts_.data();
  MemoryTable::Writer memory(memory_.get());
  size_t i = 0;
  for (uint32_t node = 0; node < streams->size(); ++node) {
    Stream& stream = (*streams)[node];
    stream.begin = i;
    for (const size_t end = i + counts_[node]; i < end; ++i) {
      const CheckedFlow& flow = *sorted[i].flow;
      const Part& part = parts[sorted[i].part];
      const Rank source = sends ? part.rank : flow.peer, destination = sends ? flow.peer : part.rank;
      table[i] = {source, destination, flow.bytes, memory.total_bytes(), sorted[i].part};
      memory.Append(part.pieces + flow.memory.first, flow.bytes);
    }
    stream.end = i;
    stream.memory = memory.End();
  }
}

void StreamBuilder::Build() {
  memory_ = std::make_shared<MemoryTable>();
  size_t segments = 0;
  for (const Part& part : parts_) segments += part.submission->memory->segments();
  memory_->Reserve(0, segments);
  for (const Part& part : parts_) memory_->Hold(*part.submission->memory);
  // The stream is in the order of destination, then source. Sends of a rank are in the order of destinations already.
  Append<true>(Sort<&CheckedSubmission::sends, &GroupLayout::Place::order>(layout_->ranks.size(), &out_bytes_),
               &out_flows_, &out_);
  Append<false>(Sort<&CheckedSubmission::receives, &GroupLayout::Place::node>(layout_->peers.size(), &in_bytes_),
                &in_flows_, &in_);
}

void StreamBuilder::Give(NodeJob* job) {
  for (size_t node = 0; node < out_.size(); ++node) {
    Exchange& exchange = *job->With(layout_->peers[node]);
    const Stream &out = out_[node], &in = in_[node];
    exchange.out.SetStream({out_flows_, out.begin, out.end}, {memory_, out.memory});
    exchange.in.SetStream({in_flows_, in.begin, in.end}, {memory_, in.memory});
    job->out_bytes += exchange.out.total_bytes();
    job->in_bytes += exchange.in.total_bytes();
  }
  const size_t rails = job->pinned_tx_bytes.size();
  for (size_t place = 0; place < out_bytes_.size(); ++place) {
    job->pinned_tx_bytes[place % rails] += out_bytes_[place];
    job->pinned_rx_bytes[place % rails] += in_bytes_[place];
  }
  out_flows_ = in_flows_ = nullptr;
  memory_ = nullptr;
  layout_ = nullptr;
}

}  // namespace railsd
