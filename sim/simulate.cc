#include "sim/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/network/fluid.h"
#include "sim/network/packet.h"
#include "sim/policies/policy.h"

namespace railsd::sim {
namespace {

using rails::workload::TrafficMatrix;

struct NodeBytes {
  std::vector<double> out, in;  // to and from other nodes
};

NodeBytes SumNodes(const Fabric& fabric, const TrafficMatrix& matrix) {
  NodeBytes sums{std::vector<double>(fabric.nodes, 0), std::vector<double>(fabric.nodes, 0)};
  for (size_t from = 0; from < fabric.ranks(); ++from) {
    const size_t source = from / fabric.gpus_per_node;
    for (size_t node = 0; node < fabric.nodes; ++node) {
      if (node == source) continue;
      uint64_t bytes = 0;
      for (size_t gpu = 0; gpu < fabric.gpus_per_node; ++gpu) {
        bytes += matrix.at(from, node * fabric.gpus_per_node + gpu);
      }
      sums.out[source] += static_cast<double>(bytes);
      sums.in[node] += static_cast<double>(bytes);
    }
  }
  return sums;
}

// The time at which the rails of a node have carried `bytes` one way.
double NodeSeconds(const Fabric& fabric, const std::vector<SpeedPeriod>& periods, size_t node, double bytes) {
  if (bytes <= 0) return 0;
  for (size_t p = 0; p < periods.size(); ++p) {
    double speed = 0;
    for (size_t rail = 0; rail < fabric.rails(); ++rail) speed += periods[p].speeds[fabric.Nic(node, rail)];
    const bool last = p + 1 == periods.size();
    const double length = last ? std::numeric_limits<double>::infinity() : periods[p + 1].since - periods[p].since;
    if (speed > 0 && bytes <= speed * length) return periods[p].since + bytes / speed;
    if (!last) bytes -= speed * length;
  }
  return std::numeric_limits<double>::infinity();
}

double Bound(const Fabric& fabric, const NodeBytes& sums) {
  const std::vector<SpeedPeriod> periods = SpeedPeriods(fabric);
  double bound = 0;
  for (size_t node = 0; node < fabric.nodes; ++node) {
    bound = std::max(bound, NodeSeconds(fabric, periods, node, std::max(sums.out[node], sums.in[node])));
  }
  return bound;
}

absl::Status CheckMatrix(const Request& request) {
  const size_t ranks = request.fabric.ranks();
  if (request.matrix.size() == ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the matrix is of ", request.matrix.size(), " GPUs, the fabric of ",
                                                 request.fabric.nodes, " nodes x ", request.fabric.gpus_per_node,
                                                 " GPUs = ", ranks));
}

absl::Status CheckNumbers(const Request& request) {
  if (request.chunk_bytes == 0) return absl::InvalidArgumentError("chunk_bytes is 0; give at least 1");
  if (request.min_chunk_bytes == 0 || request.min_chunk_bytes > request.chunk_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("min_chunk_bytes is ", request.min_chunk_bytes, "; give 1 to ",
                                                   request.chunk_bytes, " (chunk_bytes)"));
  }
  if (!(request.fluid.tolerance >= 0 && request.fluid.tolerance <= 0.1)) {
    return absl::InvalidArgumentError(absl::StrCat("fluid.tolerance is ", request.fluid.tolerance, "; give 0 to 0.1"));
  }
  constexpr size_t kMostBins = 1 << 20;
  if (request.timeline_bins > kMostBins) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeline_bins is ", request.timeline_bins, "; give 0 to ", kMostBins));
  }
  return request.mode == NetworkMode::kPacket ? CheckPacketOptions(request.packet) : absl::OkStatus();
}

absl::StatusOr<const PolicyEntry*> FindPolicy(std::string_view name) {
  std::string names;
  for (const PolicyEntry& entry : PolicyTable()) {
    if (entry.info.name == name) return &entry;
    names.append(names.empty() ? "" : ", ").append(entry.info.name);
  }
  return absl::NotFoundError(absl::StrCat("policy \"", std::string(name), "\" is none of ", names));
}

absl::Status CheckPolicy(const PolicyInfo& info, const Fabric& fabric) {
  if (info.most_nodes > 0 && fabric.nodes > info.most_nodes) {
    return absl::FailedPreconditionError(absl::StrCat("policy ", std::string(info.name), " computes clusters of up to ",
                                                      info.most_nodes, " nodes; there are ", fabric.nodes));
  }
  const bool one_rail = std::min(fabric.gpus_per_node, fabric.rails()) == 1;
  if (info.crosses_rails && fabric.spines == 0 && !one_rail) {
    return absl::FailedPreconditionError(
        absl::StrCat("policy ", std::string(info.name),
                     " sends from rail to rail, and there are no spines to join them; give some"));
  }
  return absl::OkStatus();
}

// The outcome of the floor: divides every node's bytes over its rails by their speeds; all end at the bound.
Outcome Floor(const Fabric& fabric, const NodeBytes& sums, const std::vector<double>& speeds, double bound) {
  Outcome outcome;
  outcome.seconds = outcome.network_seconds = outcome.busiest_nic_seconds = outcome.bound_seconds = bound;
  for (size_t node = 0; node < fabric.nodes; ++node) {
    double sum = 0;
    for (size_t rail = 0; rail < fabric.rails(); ++rail) sum += speeds[fabric.Nic(node, rail)];
    for (size_t rail = 0; rail < fabric.rails(); ++rail) {
      const double speed = speeds[fabric.Nic(node, rail)];
      const double part = sum > 0 ? speed / sum : 0;
      outcome.sent_bytes.push_back(sums.out[node] * part);
      outcome.received_bytes.push_back(sums.in[node] * part);
      outcome.send_busy_seconds.push_back(speed > 0 ? outcome.sent_bytes.back() / speed : 0);
      outcome.receive_busy_seconds.push_back(speed > 0 ? outcome.received_bytes.back() / speed : 0);
    }
  }
  outcome.pair_finish_seconds.assign(fabric.nodes * fabric.nodes, 0);
  if (std::isinf(bound)) outcome.unfinished_bytes = 1;
  return outcome;
}

// Outcome::shares. The transfers of one exchange and stage lie side by side.
std::vector<uint32_t> CountShares(const Fabric& fabric, const TransferPlan& plan) {
  std::vector<uint32_t> shares(fabric.nodes, 0);
  struct Last {
    size_t sent = 0, received = 0;  // the last exchange over the rail
  };
  std::vector<Last> rails(fabric.rails());
  size_t exchange = 0;
  const Transfer* before = nullptr;
  for (const Transfer& transfer : plan.transfers) {
    const Path& path = transfer.path;
    const bool same = before != nullptr && before->stage == transfer.stage &&
                      before->path.source_node == path.source_node &&
                      before->path.destination_node == path.destination_node;
    exchange += same ? 0 : 1;
    shares[path.source_node] += std::exchange(rails[path.source_rail].sent, exchange) == exchange ? 0 : 1;
    shares[path.destination_node] += std::exchange(rails[path.destination_rail].received, exchange) == exchange ? 0 : 1;
    before = &transfer;
  }
  return shares;
}

double BusiestNicSeconds(const Fabric& fabric, const TransferPlan& plan, const std::vector<double>& speeds) {
  std::vector<double> sent(fabric.nics(), 0), received(fabric.nics(), 0);
  for (const Transfer& transfer : plan.transfers) {
    sent[fabric.Nic(transfer.path.source_node, transfer.path.source_rail)] += transfer.bytes;
    received[fabric.Nic(transfer.path.destination_node, transfer.path.destination_rail)] += transfer.bytes;
  }
  double most = 0;
  for (size_t nic = 0; nic < speeds.size(); ++nic) {
    const double bytes = std::max(sent[nic], received[nic]);
    if (bytes > 0) most = std::max(most, bytes / speeds[nic]);
  }
  return most;
}

double InnerSeconds(const Fabric& fabric, const TransferPlan& plan) {
  double most = 0;
  for (const double bytes : plan.inner_sent) most = std::max(most, bytes);
  for (const double bytes : plan.inner_received) most = std::max(most, bytes);
  return most / fabric.inner_bytes_per_second;
}

}  // namespace

double BoundSeconds(const Fabric& fabric, const TrafficMatrix& matrix) {
  return Bound(fabric, SumNodes(fabric, matrix));
}

const std::vector<PolicyInfo>& Policies() {
  static const auto* const kInfos = [] {
    auto* const infos = new std::vector<PolicyInfo>();
    for (const PolicyEntry& entry : PolicyTable()) infos->push_back(entry.info);
    return infos;
  }();
  return *kInfos;
}

std::vector<std::string_view> PolicyNames() {
  std::vector<std::string_view> names;
  for (const PolicyInfo& info : Policies()) names.push_back(info.name);
  return names;
}

absl::Status CanRun(std::string_view policy, const Fabric& fabric) {
  const absl::StatusOr<const PolicyEntry*> entry = FindPolicy(policy);
  return entry.ok() ? CheckPolicy((*entry)->info, fabric) : entry.status();
}

absl::StatusOr<Outcome> Simulate(const Request& request) {
  const Fabric& fabric = request.fabric;
  if (absl::Status status = Validate(fabric); !status.ok()) return status;
  if (absl::Status status = CheckMatrix(request); !status.ok()) return status;
  if (absl::Status status = CheckNumbers(request); !status.ok()) return status;
  const absl::StatusOr<const PolicyEntry*> policy = FindPolicy(request.policy);
  if (!policy.ok()) return policy.status();
  if (absl::Status status = CheckPolicy((*policy)->info, fabric); !status.ok()) return status;
  const std::vector<double> speeds = SpeedPeriods(fabric).front().speeds;
  const NodeBytes sums = SumNodes(fabric, request.matrix);
  const double bound = Bound(fabric, sums);
  if ((*policy)->plan == nullptr) return Floor(fabric, sums, speeds, bound);

  const PolicyInput input{.fabric = fabric,
                          .matrix = request.matrix,
                          .speeds = speeds,
                          .bound_seconds = bound,
                          .seed = request.seed,
                          .chunk_bytes = request.chunk_bytes,
                          .min_chunk_bytes = request.min_chunk_bytes};
  absl::StatusOr<TransferPlan> plan = (*policy)->plan(input);
  if (!plan.ok()) return plan.status();
  const double busiest = BusiestNicSeconds(fabric, *plan, speeds);
  const double inner = InnerSeconds(fabric, *plan);
  std::vector<uint32_t> shares = CountShares(fabric, *plan);
  const std::unique_ptr<Reaction> reaction = (*policy)->reaction == nullptr ? nullptr : (*policy)->reaction(input);
  Outcome outcome = request.mode == NetworkMode::kFluid
                        ? RunFluid(fabric, *std::move(plan), request.fluid, request.timeline_bins, reaction.get())
                        : RunPacket(fabric, *std::move(plan), request.packet, request.timeline_bins,
                                    request.chunk_bytes, (*policy)->rail_scheduler, reaction.get());
  outcome.bound_seconds = bound;
  outcome.busiest_nic_seconds = busiest;
  outcome.inner_seconds = inner;
  outcome.shares = std::move(shares);
  outcome.seconds = std::max(outcome.network_seconds, inner);
  return outcome;
}

}  // namespace railsd::sim
