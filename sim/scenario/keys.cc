#include "sim/scenario/keys.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "sim/scenario/parse.h"

namespace railsd::sim {
namespace {

using Text = const std::string&;
constexpr uint64_t kAny32 = UINT32_MAX;

std::string SetWord(Text text, const std::vector<std::string>& names, void (*set)(size_t, Scenario*), Scenario* s) {
  size_t place = 0;
  std::string mistake = ParseWord(text, names, &place);
  if (mistake.empty()) set(place, s);
  return mistake;
}

template <typename T>
std::string SetOptional(Text text, uint64_t least, std::optional<T>* field) {
  return SetInteger(text, least, kAny32, &field->emplace());
}

std::string SetWorkload(Text text, Scenario* s) {
  size_t place = 0;
  std::string mistake = ParseWord(text, WorkloadNames(), &place);
  if (mistake.empty()) s->workload = text;
  return mistake;
}

std::string SetFile(Text text, Scenario* s) {
  if (text.empty()) return "names no file";
  s->file = text;
  return "";
}

std::string SetExchanges(Text text, Scenario* s) {
  return SetWord(
      text, {"auto", "dispatch", "combine", "both"},
      [](size_t place, Scenario* to) { to->exchanges = static_cast<Exchanges>(place); }, s);
}

std::string SetSpread(Text text, Scenario* s) {
  return SetWord(
      text, {"skewed", "even"}, [](size_t place, Scenario* to) { to->even_spread = place == 1; }, s);
}

std::string SetCopies(Text text, Scenario* s) {
  return SetWord(
      text, {"expert", "rank", "node"}, [](size_t place, Scenario* to) { to->copies = static_cast<Copies>(place); }, s);
}

std::string SetMode(Text text, Scenario* s) {
  return SetWord(
      text, {"fluid", "packet"}, [](size_t place, Scenario* to) { to->mode = static_cast<NetworkMode>(place); }, s);
}

std::string SetFull(Text text, Scenario* s) {
  return SetWord(
      text, {"drop", "ecn", "pause"},
      [](size_t place, Scenario* to) { to->packet.queue_mode = static_cast<QueueMode>(place); }, s);
}

// clang-format off
// One line a key.
const Key kKeys[] = {
    {"fabric.nodes", "--nodes", "N", "4, or as the file", "Nodes of the cluster.", KeyUse::kAlways, [](Text t, Scenario* s) { return SetInteger(t, 1, 2048, &s->nodes); }},
    {"fabric.gpus", "--gpus", "N", "8", "GPUs of a node; each is one rank.", KeyUse::kAlways, [](Text t, Scenario* s) { return SetInteger(t, 1, 1024, &s->gpus); }},
    {"fabric.rails", "--rails", "N", "8", "Rails: NICs of a node, each on a switch of its own.", KeyUse::kAlways, [](Text t, Scenario* s) { return SetInteger(t, 1, 1024, &s->rails); }},
    {"fabric.speed", "--speed", "RATE", "400gbit", "Speed of a rail, or of each, separated by commas in one text; 0 is a dead rail.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseSpeeds(t, &s->speeds); }},
    {"fabric.inner", "--inner", "RATE", "450GB/s", "Speed of a GPU to and from the others of its node.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseSpeed(t, false, &s->inner); }},
    {"fabric.propagation", "--propagation", "TIME", "1us", "Delay of a link, one way.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseTime(t, &s->propagation, absl::Seconds(1)); }},
    {"fabric.spines", "--spines", "N", "8", "Switches that join the rails; policies that change rails in the network need one.", KeyUse::kAlways, [](Text t, Scenario* s) { return SetInteger(t, 0, 4096, &s->spines); }},
    {"fabric.spine_speed", "--spine-speed", "RATE", "0", "Speed of a link between a rail's switch and a spine; 0: the spines do not block.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseSpeed(t, true, &s->spine_speed); }},
    {"fabric.changes", "--changes", "CHANGES", "", "Rails that change while bytes move: RAIL:TIME:SPEED, or RAIL@NODE:TIME:SPEED for one node, separated by commas. TIME counts from the start of each exchange, for example 0, 100us or 1.5ms. SPEED is for example 100gbit or 12.5GB/s; 0: the rail is dead.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseChanges(t, &s->changes); }},

    {"workload.kind", "--workload", "NAME", "zipf", "A generator, a model or a file.", KeyUse::kAlways, SetWorkload},
    {"workload.file", "--file", "FILE", "", "A routing trace or a traffic matrix between nodes or GPUs, plain or gzip.", KeyUse::kFile, SetFile},
    {"workload.bytes_per_rank", "--bytes-per-rank", "SIZE", "16MiB; a file as it is", "Scales all steps by one factor, so that a rank sends this much in the largest step.", KeyUse::kNoModel, [](Text t, Scenario* s) { return ParseSize(t, 1, &s->bytes_per_rank); }},
    {"workload.zipf_exponent", "--zipf-exponent", "X", "1.2", "Popularity of nodes falls as 1 / place^X.", KeyUse::kZipf, [](Text t, Scenario* s) { return ParseReal(t, 0, 8, &s->zipf_exponent); }},
    {"workload.sparse_fraction", "--sparse-fraction", "X", "0.25", "Probability that a pair of nodes exchanges.", KeyUse::kSparse, [](Text t, Scenario* s) { return ParseReal(t, 1e-6, 1, &s->sparse_fraction); }},
    {"workload.spread", "--spread", "WORD", "skewed", "How traffic of nodes is spread over their GPUs: even, or skewed as experts are.", KeyUse::kNoModel, SetSpread},
    {"workload.steps", "--steps", "N", "1", "Number of steps: generated, drawn, or from the start of a trace.", KeyUse::kAlways, [](Text t, Scenario* s) { return SetInteger(t, 1, 10000, &s->steps); }},
    {"workload.exchanges", "--exchanges", "WORD", "auto", "dispatch, combine or both; auto is both of a model or trace, and dispatch otherwise.", KeyUse::kAlways, SetExchanges},
    {"workload.trace_model", "--trace-model", "NAME", "all; mixtral-8x7b-e8k2", "Only this model of the trace, or the one that mixtral imitates.", KeyUse::kTrace, [](Text t, Scenario* s) { s->trace_model = t; return std::string(); }},
    {"workload.trace_ranks_per_node", "--trace-ranks-per-node", "N", "8", "Ranks of a node in the trace.", KeyUse::kFile, [](Text t, Scenario* s) { return SetInteger(t, 1, 65536, &s->trace_ranks_per_node); }},

    {"model.hidden", "--hidden", "N", "", "Hidden size: elements of a token.", KeyUse::kModel, [](Text t, Scenario* s) { return SetOptional(t, 1, &s->model.hidden); }},
    {"model.layers", "--layers", "N", "", "Layers with experts.", KeyUse::kModel, [](Text t, Scenario* s) { return SetOptional(t, 1, &s->model.layers); }},
    {"model.experts", "--experts", "N", "", "Routed experts of a layer.", KeyUse::kModel, [](Text t, Scenario* s) { return SetOptional(t, 1, &s->model.experts); }},
    {"model.top_k", "--top-k", "N", "", "Experts of a token.", KeyUse::kModel, [](Text t, Scenario* s) { return SetOptional(t, 1, &s->model.top_k); }},
    {"model.expert_hidden", "--expert-hidden", "N", "", "Intermediate size of an expert.", KeyUse::kModel, [](Text t, Scenario* s) { return SetOptional(t, 1, &s->model.expert_hidden); }},
    {"model.shared_experts", "--shared-experts", "N", "", "Experts that every token has; they compute and are not sent to.", KeyUse::kModel, [](Text t, Scenario* s) { return SetOptional(t, 0, &s->model.shared_experts); }},
    {"model.node_limit", "--node-limit", "N", "", "Most nodes that a token is sent to; 0: no limit.", KeyUse::kModel, [](Text t, Scenario* s) { return SetOptional(t, 0, &s->model.node_limit); }},
    {"model.tokens", "--tokens", "N", "4096", "Tokens of a rank in a layer.", KeyUse::kModel, [](Text t, Scenario* s) { return SetInteger(t, 1, kAny32, &s->tokens); }},
    {"model.skew", "--skew", "X", "0.6", "Popularity of experts falls as 1 / place^X.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseReal(t, 0, 8, &s->skew); }},
    {"model.group_nodes", "--group-nodes", "N", "0", "Nodes that hold all experts once; 0: as many as possible.", KeyUse::kModel, [](Text t, Scenario* s) { return SetInteger(t, 0, 4096, &s->group_nodes); }},
    {"model.experts_per_gpu", "--experts-per-gpu", "N", "0", "Most experts that a GPU holds; 0: any number.", KeyUse::kModel, [](Text t, Scenario* s) { return SetInteger(t, 0, 65536, &s->experts_per_gpu); }},
    {"model.copies", "--copies", "WORD", "expert", "Copies of a token: one for each expert, for each rank or for each node.", KeyUse::kModel, SetCopies},
    {"model.dispatch_bytes", "--dispatch-bytes", "X", "", "Bytes of an element that is sent to the experts.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseReal(t, 0.125, 64, &s->model.dispatch_bytes.emplace()); }},
    {"model.combine_bytes", "--combine-bytes", "X", "", "Bytes of an element that is sent back.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseReal(t, 0.125, 64, &s->model.combine_bytes.emplace()); }},

    {"iteration.device", "--device", "FLOPS", "989tflops", "Operations of a GPU in a second.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseFlops(t, &s->compute.device_flops); }},
    {"iteration.efficiency", "--efficiency", "X", "0.4", "Part of them that a layer reaches.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseReal(t, 1e-6, 1, &s->compute.efficiency); }},
    {"iteration.sequence", "--sequence", "N", "4096", "Tokens that attention looks back on.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseReal(t, 0, 1e9, &s->compute.sequence); }},
    {"iteration.overlap", "--overlap", "X", "0", "Part of the shorter of compute and exchanges that is hidden, 0 to 1.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseReal(t, 0, 1, &s->compute.overlap); }},
    {"iteration.backward", "--backward", "BOOL", "true", "Training: the backward pass has both exchanges again and twice the compute.", KeyUse::kModel, [](Text t, Scenario* s) { return ParseFlag(t, &s->compute.backward); }},

    {"network.mode", "--mode", "WORD", "fluid", "fluid: max-min fair rates; packet: every packet and queue.", KeyUse::kAlways, SetMode},
    {"network.tolerance", "--tolerance", "X", "0.001", "Ends of transfers closer than this part of the time are one event; 0: exact.", KeyUse::kFluid, [](Text t, Scenario* s) { return ParseReal(t, 0, 0.1, &s->fluid.tolerance); }},
    {"network.packet", "--packet", "SIZE", "4KiB", "Bytes of a packet.", KeyUse::kPacket, [](Text t, Scenario* s) { uint64_t v = 0; std::string m = ParseSize(t, 64, &v); return m.empty() ? SetInteger(std::to_string(v), 64, 1 << 24, &s->packet.packet_bytes) : m; }},
    {"network.queue", "--queue", "SIZE", "1MiB", "Bytes that a port of a switch queues.", KeyUse::kPacket, [](Text t, Scenario* s) { return ParseSize(t, 1, &s->packet.queue_bytes); }},
    {"network.full", "--full", "WORD", "ecn", "A full queue: drop; ecn: mark before that; pause: stop the senders.", KeyUse::kPacket, SetFull},
    {"network.mark", "--mark", "SIZE", "256KiB", "Length of a queue from which ecn marks packets.", KeyUse::kEcn, [](Text t, Scenario* s) { return ParseSize(t, 1, &s->packet.mark_bytes); }},
    {"network.acks_wait", "--acks-wait", "BOOL", "false", "Acknowledgements wait behind bytes in the same direction, as over TCP.", KeyUse::kPacket, [](Text t, Scenario* s) { return ParseFlag(t, &s->packet.acks_wait); }},
    {"network.window", "--window", "SIZE", "0", "Bytes in flight of a pair of NICs; 0: two bandwidth-delay products and a share of the queue.", KeyUse::kPacket, [](Text t, Scenario* s) { return ParseSize(t, 0, &s->packet.window_bytes); }},

    {"policy", "--policy", "NAME", "all", "Policies that are compared at every point.", KeyUse::kAlways, nullptr},
    {"chunk", "--chunk", "SIZE", "1MiB", "Largest chunk of policies that cut flows; a daemon's is 256 KiB unless `plan.chunk` is set.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseSize(t, 1, &s->chunk_bytes); }},
    {"min_chunk", "--min-chunk", "SIZE", "8KiB", "Smallest chunk of this project's planner.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseSize(t, 1, &s->min_chunk_bytes); }},
    {"seed", "--seed", "N", "1", "Seed of all that is drawn.", KeyUse::kAlways, [](Text t, Scenario* s) { return SetInteger(t, 0, UINT64_MAX, &s->seed); }},

    {"fixed_cost.count", "--fixed-cost", "BOOL", "true", "Adds the fixed cost of an exchange to its time.", KeyUse::kAlways, [](Text t, Scenario* s) { return ParseFlag(t, &s->count_fixed_cost); }},
    {"fixed_cost.job", "--cost-job", "TIME", "88.9us", "A job: wakes of client and engine, and work of the engine.", KeyUse::kFixedCost, [](Text t, Scenario* s) { return ParseSeconds(t, &s->fixed_cost.job); }},
    {"fixed_cost.peer", "--cost-peer", "TIME", "17.5us", "A node that bytes are exchanged with: READY out and in.", KeyUse::kFixedCost, [](Text t, Scenario* s) { return ParseSeconds(t, &s->fixed_cost.peer); }},
    {"fixed_cost.flow", "--cost-flow", "TIME", "90ns", "A flow between two ranks.", KeyUse::kFixedCost, [](Text t, Scenario* s) { return ParseSeconds(t, &s->fixed_cost.flow); }},
    {"fixed_cost.share", "--cost-share", "TIME", "700ns", "A share: what goes from one node to another over one rail.", KeyUse::kFixedCost, [](Text t, Scenario* s) { return ParseSeconds(t, &s->fixed_cost.share); }},
    {"fixed_cost.ready", "--cost-ready", "TIME", "16.3us", "Flight of READY.", KeyUse::kFixedCost, [](Text t, Scenario* s) { return ParseSeconds(t, &s->fixed_cost.ready); }},
};
// clang-format on

// The least number of letters to insert, remove or replace to get from one text to the other.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

absl::Span<const Key> Keys() { return kKeys; }

const Key* FindKey(std::string_view name) {
  const auto at = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& key) { return key.name == name; });
  return at == std::end(kKeys) ? nullptr : &*at;
}

bool Applies(KeyUse use, const Scenario& s) {
  switch (use) {
    case KeyUse::kAlways:
      return true;
    case KeyUse::kZipf:
      return s.workload == "zipf";
    case KeyUse::kSparse:
      return s.workload == "sparse";
    case KeyUse::kFile:
      return s.workload == kFileWorkload;
    case KeyUse::kTrace:
      return s.workload == kFileWorkload || s.workload == "mixtral";
    case KeyUse::kNoModel:
      return !IsModel(s);
    case KeyUse::kModel:
      return IsModel(s);
    case KeyUse::kPacket:
      return s.mode == NetworkMode::kPacket;
    case KeyUse::kEcn:
      return s.mode == NetworkMode::kPacket && s.packet.queue_mode == QueueMode::kEcn;
    case KeyUse::kFluid:
      return s.mode == NetworkMode::kFluid;
    case KeyUse::kFixedCost:
      return s.count_fixed_cost;
  }
  return true;
}

std::string_view DescribeUse(KeyUse use) {
  switch (use) {
    case KeyUse::kAlways:
      return "";
    case KeyUse::kZipf:
      return "needs workload.kind zipf";
    case KeyUse::kSparse:
      return "needs workload.kind sparse";
    case KeyUse::kFile:
      return "needs workload.kind file";
    case KeyUse::kTrace:
      return "needs workload.kind file or mixtral";
    case KeyUse::kNoModel:
      return "needs a generated workload or a file; the bytes of a model follow from its tokens";
    case KeyUse::kModel:
      return "needs a model as workload.kind";
    case KeyUse::kPacket:
      return "needs network.mode packet";
    case KeyUse::kEcn:
      return "needs network.mode packet and network.full ecn";
    case KeyUse::kFluid:
      return "needs network.mode fluid";
    case KeyUse::kFixedCost:
      return "needs fixed_cost.count true";
  }
  return "";
}

std::optional<std::string_view> Nearest(std::string_view text, absl::Span<const std::string_view> candidates) {
  std::optional<std::string_view> nearest;
  size_t least = std::max<size_t>(2, text.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const size_t distance = Distance(text, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace railsd::sim
