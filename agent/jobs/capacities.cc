#include "agent/jobs/capacities.h"

#include <memory>
#include <utility>
#include <vector>

#include "agent/jobs/local_copies.h"

namespace railsd {

void AddReceived(RankPart& part, Rank source, uint64_t bytes) {
  part.report.bytes_to_receive += bytes;
  part.report.received_by_rank[source.value()] = bytes;
}

void TakeLengths(NodeJob& job, Exchange& exchange, const Ready::Flows& sent) {
  uint64_t total_bytes = 0;
  for (const Ready::Flow& flow : sent) {
    AddReceived(*job.parts.Find(flow.destination), flow.source, flow.bytes);
    total_bytes += flow.bytes;
  }
  if (total_bytes == exchange.in.total_bytes()) return;  // every source fills its capacity
  auto flows = std::make_shared<StreamFlow[]>(sent.size());
  size_t count = 0;
  auto memory = std::make_shared<MemoryTable>();
  for (const RankPart* part : job.parts) memory->Hold(*part->submission.memory);
  // A range that spans several flows is split: at most one more range for each flow.
  memory->Reserve(exchange.in.memory().range_count() + sent.size());
  MemoryTable::Writer writer(memory.get());
  for (const StreamFlow& flow : exchange.in.flows()) job.pinned_rx_bytes[job.OwnRail(flow.source)] -= flow.bytes;
  for (const Ready::Flow& flow : sent) {
    if (flow.bytes == 0) continue;
    const uint32_t place = job.parts.PlaceOf(flow.destination);
    const CheckedSubmission& submission = job.parts[place].submission;
    const CheckedFlow& receive = *FlowWith(flow.source, submission.receives);
    flows[count++] = {flow.source, flow.destination, flow.bytes, writer.total_bytes(), place};
    writer.Append(submission.memory->Pieces() + receive.memory.first, flow.bytes);
    job.pinned_rx_bytes[job.OwnRail(flow.source)] += flow.bytes;
  }
  const MemoryTable::Stream stream = writer.End();
  job.in_bytes -= exchange.in.total_bytes() - stream.total_bytes;
  exchange.in.SetStream({std::move(flows), 0, count}, {std::move(memory), stream});
}

}  // namespace railsd
