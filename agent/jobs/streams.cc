#include "agent/jobs/streams.h"

#include <numeric>
#include <utility>

namespace railsd {

StreamBuilder::StreamBuilder(const NodeJob& job, std::shared_ptr<const GroupLayout> layout)
    : layout_(std::move(layout)) {
  parts_.reserve(job.parts.size());
  for (const auto& [rank, part] : job.parts) parts_.push_back(&part.submission);
}

void StreamBuilder::Sort(FlowsOf flows, KeyOf key, size_t keys) {
  const auto for_each = [&](auto visit) {
    for (uint32_t p = 0; p < parts_.size(); ++p) {
      for (const PreparedFlow& flow : parts_[p]->*flows) {
        const GroupLayout::Place& place = layout_->ranks[flow.peer.value()];
        if (place.node != GroupLayout::kLocal && flow.bytes > 0) visit(flow, p, place.*key);
      }
    }
  };
  places_.assign(keys + 1, 0);
  for_each([&](const PreparedFlow& /*flow*/, uint32_t /*part*/, uint32_t k) { ++places_[k + 1]; });
  std::partial_sum(places_.begin(), places_.end(), places_.begin());
  sorted_.resize(places_.back());
  for_each([&](const PreparedFlow& flow, uint32_t part, uint32_t k) { sorted_[places_[k]++] = {&flow, part}; });
}

void StreamBuilder::Append(bool sends, std::vector<Stream>* streams) {
  streams->resize(layout_->peers.size());
  size_t next = 0;
  for (uint32_t node = 0; node < streams->size(); ++node) {
    Stream& stream = (*streams)[node];
    stream.begin = flows_->size();
    memory_->Begin();
    for (; next < sorted_.size(); ++next) {
      const auto& [flow, p] = sorted_[next];
      if (layout_->ranks[flow->peer.value()].node != node) break;
      const PreparedSubmission& part = *parts_[p];
      flows_->push_back({sends ? flow->peer : part.rank, sends ? part.rank : flow->peer, p, flow->bytes,
                         memory_->stream().total_bytes});
      memory_->Append(part.memory->Pieces(flow->memory));
    }
    stream.end = flows_->size();
    stream.memory = memory_->stream();
  }
}

void StreamBuilder::Build() {
  flows_ = std::make_shared<std::vector<StreamFlow>>();
  memory_ = std::make_shared<MemoryTable>();
  size_t flows = 0, pieces = 0;
  for (const PreparedSubmission* part : parts_) {
    memory_->Hold(*part->memory);
    for (const auto* list : {&part->sends, &part->receives}) {
      for (const PreparedFlow& flow : *list) {
        const bool remote = layout_->ranks[flow.peer.value()].node != GroupLayout::kLocal;
        flows += remote;
        pieces += remote ? flow.memory.count : 0;
      }
    }
  }
  flows_->reserve(flows);
  memory_->Reserve(pieces);
  // The stream is in the order of destination, then source. Sends of a rank are in the order of destinations already.
  Sort(&PreparedSubmission::sends, &GroupLayout::Place::order, layout_->ranks.size());
  Append(/*sends=*/true, &out_);
  Sort(&PreparedSubmission::receives, &GroupLayout::Place::node, layout_->peers.size());
  Append(/*sends=*/false, &in_);
}

void StreamBuilder::Give(NodeJob* job) {
  for (size_t node = 0; node < out_.size(); ++node) {
    Exchange& exchange = *job->With(layout_->peers[node]);
    const Stream &out = out_[node], &in = in_[node];
    exchange.out.SetStream({flows_, out.begin, out.end}, {memory_, out.memory});
    exchange.in.SetStream({flows_, in.begin, in.end}, {memory_, in.memory});
    job->out_bytes += exchange.out.total_bytes();
    job->in_bytes += exchange.in.total_bytes();
  }
  job->by_place.clear();
  for (auto& [rank, part] : job->parts) job->by_place.push_back(&part);
}

}  // namespace railsd
