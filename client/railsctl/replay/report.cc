#include "client/railsctl/replay/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/format.h"
#include "client/railsctl/table.h"

namespace rails::ctl {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Align = Table::Align;

double Ratio(double seconds, double bound_seconds) { return bound_seconds > 0 ? seconds / bound_seconds : 0; }

// An unknown ratio becomes null.
OrderedJson RatioJson(double seconds, double bound_seconds) {
  return bound_seconds > 0 ? OrderedJson(seconds / bound_seconds) : OrderedJson(nullptr);
}

void AddPhase(const PhaseResult& phase, OrderedJson* json) {
  (*json)["bytes"] = phase.bytes.network;
  (*json)["local_bytes"] = phase.bytes.local;
  (*json)["self_bytes"] = phase.bytes.self;
  (*json)["seconds"] = phase.seconds;
  (*json)["bound_seconds"] = phase.bound_seconds;
  (*json)["ratio_to_bound"] = RatioJson(phase.seconds, phase.bound_seconds);
}

void Add(const PhaseResult& phase, PhaseResult* sum) {
  sum->bytes.network += phase.bytes.network;
  sum->bytes.local += phase.bytes.local;
  sum->bytes.self += phase.bytes.self;
  sum->seconds += phase.seconds;
  sum->bound_seconds += phase.bound_seconds;
}

PhaseResult Total(const ReplayReport& report) {
  PhaseResult total;
  for (const StepResult& step : report.steps) Add(step.Sum(), &total);
  return total;
}

OrderedJson BalanceJson(const Balance& balance) {
  return {{"tx_max_over_mean", balance.tx_max_over_mean}, {"rx_max_over_mean", balance.rx_max_over_mean}};
}

OrderedJson StepsJson(const ReplayReport& report) {
  OrderedJson steps = OrderedJson::array();
  for (size_t i = 0; i < report.steps.size(); ++i) {
    const StepResult& step = report.steps[i];
    OrderedJson json = {{"step", i}, {"model", step.model}, {"layer", step.layer}, {"iteration", step.iteration}};
    AddPhase(step.Sum(), &json);
    json["balance"] = BalanceJson(step.balance);
    for (const PhaseResult& phase : step.phases) AddPhase(phase, &json["phases"][phase.name]);
    steps.push_back(std::move(json));
  }
  return steps;
}

OrderedJson RailsJson(const std::vector<NodeRails>& nodes) {
  OrderedJson rails = OrderedJson::array();
  for (const NodeRails& node : nodes) {
    for (size_t i = 0; i < node.rails.size(); ++i) {
      const RailBytes& rail = node.rails[i];
      rails.push_back({{"node", node.node},
                       {"rail", i},
                       {"name", rail.name},
                       {"speed_bytes_per_second", rail.speed_bytes_per_second},
                       {"tx_bytes", rail.tx_bytes},
                       {"rx_bytes", rail.rx_bytes},
                       {"drained", rail.drained},
                       {"tx_max_over_mean", node.TxMaxOverMean()},
                       {"rx_max_over_mean", node.RxMaxOverMean()}});
    }
  }
  return rails;
}

OrderedJson EagerJson(const std::vector<NodeRails>& nodes) {
  uint64_t tx = 0, rx = 0;
  for (const NodeRails& node : nodes) {
    tx += node.eager_tx_bytes;
    rx += node.eager_rx_bytes;
  }
  return {{"tx_bytes", tx}, {"rx_bytes", rx}};
}

OrderedJson WrongByteJson(const WrongByteReport& wrong) {
  OrderedJson json = {{"phase", wrong.phase},
                      {"step", wrong.step},
                      {"warmup", wrong.warmup},
                      {"destination_rank", wrong.receiving_rank},
                      {"outside_of_ranges", wrong.byte.guard()}};
  json["source_rank"] = wrong.byte.guard() ? OrderedJson(nullptr) : OrderedJson(wrong.byte.source_rank());
  json["flow_offset"] = wrong.byte.guard() ? OrderedJson(nullptr) : OrderedJson(wrong.byte.flow_offset());
  json["segment_offset"] = wrong.byte.segment_offset();
  json["expected"] = wrong.byte.expected();
  json["got"] = wrong.byte.got();
  return json;
}

std::vector<Cell> Row(const std::string& step, const std::string& what, const PhaseResult& phase,
                      const Balance* balance) {
  return {step,
          what,
          FormatBytes(phase.bytes.network),
          FormatBytes(phase.bytes.local),
          FormatSeconds(phase.seconds),
          phase.bound_seconds > 0 ? FormatSeconds(phase.bound_seconds) : "-",
          FormatRatio(Ratio(phase.seconds, phase.bound_seconds)),
          phase.seconds > 0 ? FormatByteRate(static_cast<double>(phase.bytes.network) / phase.seconds) : "-",
          balance == nullptr ? "" : FormatRatio(balance->tx_max_over_mean),
          balance == nullptr ? "" : FormatRatio(balance->rx_max_over_mean)};
}

std::string StepTable(const ReplayReport& report, bool color) {
  constexpr size_t kMaxRows = 40;  // --json has all rows
  Table table({{"STEP", Align::kRight},
               {"WHAT"},
               {"BYTES", Align::kRight},
               {"LOCAL", Align::kRight},
               {"TIME", Align::kRight},
               {"BOUND", Align::kRight},
               {"RATIO", Align::kRight},
               {"RATE", Align::kRight},
               {"TX MAX/MEAN", Align::kRight},
               {"RX MAX/MEAN", Align::kRight}});
  const size_t shown = std::min(report.steps.size(), kMaxRows);
  for (size_t i = 0; i < shown; ++i) {
    const StepResult& step = report.steps[i];
    const std::string what = absl::StrCat(step.model, " layer ", step.layer, " iteration ", step.iteration);
    table.AddRow(Row(absl::StrCat(i), what, step.Sum(), &step.balance));
  }
  if (shown < report.steps.size()) {
    table.AddRow({"...", absl::StrCat(report.steps.size() - shown, " more steps; --json has them all")});
  }
  PhaseResult dispatch, combine;
  for (const StepResult& step : report.steps) {
    for (const PhaseResult& phase : step.phases) Add(phase, phase.name == "dispatch" ? &dispatch : &combine);
  }
  if (combine.seconds > 0) {
    table.AddRow(Row("", "all dispatch", dispatch, nullptr));
    table.AddRow(Row("", "all combine", combine, nullptr));
  }
  const Balance balance = WorstBalance(report.rails);
  table.AddRow(Row("", "all", Total(report), &balance));
  return table.Render(color);
}

std::string RailPlot(const std::vector<NodeRails>& nodes, bool color) {
  constexpr size_t kWidth = 24;
  uint64_t max = 0;
  for (const NodeRails& node : nodes) {
    for (const RailBytes& rail : node.rails) max = std::max({max, rail.tx_bytes, rail.rx_bytes});
  }
  const auto scale = static_cast<double>(max);
  Table table({{"NODE"}, {"RAIL"}, {"SENT", Align::kRight}, {""}, {"RECEIVED", Align::kRight}, {""}, {"MAX/MEAN"}});
  for (const NodeRails& node : nodes) {
    for (size_t i = 0; i < node.rails.size(); ++i) {
      const RailBytes& rail = node.rails[i];
      const std::string even =
          absl::StrCat("tx ", FormatRatio(node.TxMaxOverMean()), "  rx ", FormatRatio(node.RxMaxOverMean()));
      table.AddRow({i == 0 ? node.node : "", rail.drained ? rail.name + " DRAINED" : rail.name,
                    FormatBytes(rail.tx_bytes), Bar(static_cast<double>(rail.tx_bytes), scale, kWidth),
                    FormatBytes(rail.rx_bytes), Bar(static_cast<double>(rail.rx_bytes), scale, kWidth),
                    i == 0 ? even : ""});
    }
  }
  return table.Render(color);
}

}  // namespace

PhaseResult StepResult::Sum() const {
  PhaseResult sum;
  for (const PhaseResult& phase : phases) Add(phase, &sum);
  return sum;
}

std::string DescribeWrongBytes(const ReplayReport& report) {
  std::string text = absl::StrCat(report.wrong_bytes, " wrong bytes");
  if (!report.first_wrong.has_value()) return text;
  const WrongByteReport& wrong = *report.first_wrong;
  absl::StrAppend(&text, "; the first: ", wrong.warmup ? "warm-up step " : "step ", wrong.step, ", ", wrong.phase,
                  ", received by rank ", wrong.receiving_rank);
  if (wrong.byte.guard()) {
    absl::StrAppend(&text, " outside of every range");
  } else {
    absl::StrAppend(&text, " from rank ", wrong.byte.source_rank(), " at byte ", wrong.byte.flow_offset(),
                    " of the flow");
  }
  absl::StrAppendFormat(&text, " (byte %d of the segment): expected 0x%02x, got 0x%02x", wrong.byte.segment_offset(),
                        wrong.byte.expected(), wrong.byte.got());
  return text;
}

OrderedJson ReplayJson(const ReplayReport& report) {
  const PhaseResult total = Total(report);
  OrderedJson json = {{"verified", report.verified()},
                      {"checked", report.checked},
                      {"workload", report.workload},
                      {"seed", report.seed},
                      {"scale_factor", report.scale_factor},
                      {"bytes_per_rank", report.bytes_per_rank},
                      {"nodes", report.nodes},
                      {"ranks", report.nodes * report.ranks_per_node},
                      {"ranks_per_node", report.ranks_per_node},
                      {"warmup_steps", report.warmup},
                      {"steps", report.steps.size()}};
  AddPhase(total, &json);
  json["wrong_bytes"] = report.wrong_bytes;
  if (report.first_wrong.has_value()) json["first_wrong_byte"] = WrongByteJson(*report.first_wrong);
  json["balance"] = BalanceJson(WorstBalance(report.rails));
  json["rails"] = RailsJson(report.rails);
  json["eager"] = EagerJson(report.rails);
  json["rails_from"] = report.rails_from_counters ? "counters" : "jobs";
  json["per_step"] = StepsJson(report);
  return json;
}

std::string RenderReplay(const ReplayReport& report, bool color) {
  std::string out = absl::StrCat(
      report.workload, ", ", report.steps.size(), " of ", report.steps_available, " steps, seed ", report.seed, "; ",
      FormatCount(report.nodes * report.ranks_per_node, "rank"), " on ", FormatCount(report.nodes, "node"));
  if (report.bytes_per_rank == 0) {
    absl::StrAppend(&out, "; volumes as they are\n\n");
  } else {
    absl::StrAppendFormat(&out, "; volumes times %.6g for %s a rank\n\n", report.scale_factor,
                          FormatBytes(report.bytes_per_rank));
  }
  absl::StrAppend(&out, StepTable(report, color), "\n", RailPlot(report.rails, color), "\n");
  uint64_t eager = 0;
  for (const NodeRails& node : report.rails) eager += node.eager_tx_bytes;
  if (eager > 0) {
    absl::StrAppend(&out, FormatBytes(eager), " in short exchanges went with messages; no rail carried them\n");
  }
  const PhaseResult total = Total(report);
  if (Ratio(total.seconds, total.bound_seconds) < kLeastRatio && total.bound_seconds > 0) {
    absl::StrAppend(&out,
                    Paint("faster than the bound: the rails are faster than their configured speeds, which bounds "
                          "and shares follow (`railsctl rails` shows them)",
                          Mark::kWarn, color),
                    "\n");
  }
  if (!report.rails_from_counters) {
    absl::StrAppend(&out,
                    "the rails also carried other bytes (other jobs, or chunks sent again): those above are from the "
                    "jobs' reports\n");
  }
  if (report.wrong_bytes > 0) {
    absl::StrAppend(&out, Paint(DescribeWrongBytes(report), Mark::kBad, color), "\n");
  } else if (report.checked) {
    absl::StrAppend(&out, Paint("every byte was right", Mark::kGood, color), "\n");
  } else {
    absl::StrAppend(&out, Paint("bytes were not checked", Mark::kWarn, color), "\n");
  }
  return out;
}

}  // namespace rails::ctl
