#include "agent/jobs/streams.h"

#include <numeric>
#include <utility>

namespace railsd {

StreamBuilder::StreamBuilder(const NodeJob& job, std::shared_ptr<const GroupLayout> layout)
    : layout_(std::move(layout)) {
  parts_.reserve(job.parts.size());
  for (const auto& [rank, part] : job.parts) parts_.push_back({rank, &part.submission});
}

void StreamBuilder::Sort(FlowsOf flows, KeyOf key, size_t keys) {
  const auto for_each = [&](auto visit) {
    for (uint32_t p = 0; p < parts_.size(); ++p) {
      for (const PreparedFlow& flow : parts_[p].submission->*flows) {
        const GroupLayout::Place& place = layout_->ranks[flow.peer.value()];
        if (place.node != GroupLayout::kLocal && flow.bytes > 0) visit(Item{&flow, p, place.node}, place.*key);
      }
    }
  };
  size_t pieces = 0;
  places_.assign(keys + 1, 0);
  for_each([&](const Item& item, uint32_t k) {
    ++places_[k + 1];
    pieces += item.flow->memory.count;
  });
  std::partial_sum(places_.begin(), places_.end(), places_.begin());
  sorted_.resize(places_.back());
  for_each([&](const Item& item, uint32_t k) { sorted_[places_[k]++] = item; });
  memory_->Reserve(pieces);
}

void StreamBuilder::Append(bool sends, std::vector<StreamFlow>* flows, std::vector<Stream>* streams) {
  flows->reserve(sorted_.size());
  streams->resize(layout_->peers.size());
  auto item = sorted_.cbegin();
  for (uint32_t node = 0; node < streams->size(); ++node) {
    Stream& stream = (*streams)[node];
    stream.begin = flows->size();
    memory_->Begin();
    for (; item != sorted_.cend() && item->node == node; ++item) {
      const PreparedFlow& flow = *item->flow;
      const auto& [rank, submission] = parts_[item->part];
      const uint64_t begin_bytes = memory_->stream().total_bytes;
      flows->push_back({sends ? flow.peer : rank, sends ? rank : flow.peer, item->part, flow.bytes, begin_bytes});
      memory_->Append(submission->memory->Pieces(flow.memory), flow.bytes);
    }
    stream.end = flows->size();
    stream.memory = memory_->stream();
  }
}

void StreamBuilder::Build() {
  out_flows_ = std::make_shared<std::vector<StreamFlow>>();
  in_flows_ = std::make_shared<std::vector<StreamFlow>>();
  memory_ = std::make_shared<MemoryTable>();
  for (const Part& part : parts_) memory_->Hold(*part.submission->memory);
  // The stream is in the order of destination, then source. Sends of a rank are in the order of destinations already.
  Sort(&PreparedSubmission::sends, &GroupLayout::Place::order, layout_->ranks.size());
  Append(/*sends=*/true, out_flows_.get(), &out_);
  Sort(&PreparedSubmission::receives, &GroupLayout::Place::node, layout_->peers.size());
  Append(/*sends=*/false, in_flows_.get(), &in_);
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
  job->by_place.clear();
  for (auto& [rank, part] : job->parts) job->by_place.push_back(&part);
}

}  // namespace railsd
