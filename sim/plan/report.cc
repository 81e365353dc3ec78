#include "sim/plan/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/format.h"
#include "client/railsctl/table.h"

namespace railsd::sim {
namespace {

void AddTo(Figure* figure, double value) {
  figure->worst = std::max(figure->worst, value);
  figure->mean += value;
}

Figure Averaged(const Figure& sum, size_t count) {
  return count == 0 ? Figure{} : Figure{sum.worst, sum.mean / static_cast<double>(count)};
}

nlohmann::ordered_json Json(const Figure& figure) { return {{"worst", figure.worst}, {"mean", figure.mean}}; }

// Shows four decimals. The colour separates a policy at the bound from one far from it.
rails::ctl::Cell Ratio(double value) {
  using rails::ctl::Mark;
  return {absl::StrFormat("%.4f", value), value <= 1.01 ? Mark::kGood : value <= 1.1 ? Mark::kNone : Mark::kWarn};
}

std::string Heading(const PlanReport& report) {
  double sum_of_speeds = 0;
  for (const double speed : report.rail_speeds) sum_of_speeds += speed;
  std::string text = absl::StrFormat(
      "%d nodes x %d rails (%s a node), %d ranks a node; %d %s, %d exchanges, %s between nodes\n", report.nodes,
      report.rail_speeds.size(), rails::ctl::FormatBitRate(sum_of_speeds), report.ranks_per_node, report.steps,
      report.steps == 1 ? "step" : "steps", report.exchanges, rails::ctl::FormatBytes(report.bytes));
  if (report.scale != 1) absl::StrAppend(&text, "Volumes are scaled by ", absl::StrFormat("%.6g", report.scale), "\n");
  return text;
}

}  // namespace

void PolicyTally::Add(const NicBytes& bytes, const std::vector<double>& rail_speeds) {
  const Balance balance = Measure(bytes, rail_speeds);
  AddTo(&send_, balance.send_max_over_mean);
  AddTo(&receive_, balance.receive_max_over_mean);
  AddTo(&completion_, balance.CompletionOverBound());
  seconds_ += balance.seconds;
  bound_seconds_ += balance.bound_seconds;
  total_.Add(bytes);
  for (const uint64_t b : bytes.sent) bytes_ += b;
  ++exchanges_;
}

PolicyReport PolicyTally::Finish(Policy policy, const std::vector<double>& rail_speeds) const {
  PolicyReport report{.policy = policy,
                      .send = Averaged(send_, exchanges_),
                      .receive = Averaged(receive_, exchanges_),
                      .completion = Averaged(completion_, exchanges_),
                      .in_all = Measure(total_, rail_speeds)};
  report.in_all.seconds = seconds_;
  report.in_all.bound_seconds = bound_seconds_;
  return report;
}

std::string RenderJson(const PlanReport& report) {
  nlohmann::ordered_json json = {{"nodes", report.nodes},
                                 {"rails", report.rail_speeds.size()},
                                 {"rail_speeds_bytes_per_second", report.rail_speeds},
                                 {"ranks_per_node", report.ranks_per_node},
                                 {"chunk_bytes", report.chunk_bytes},
                                 {"min_chunk_bytes", report.min_chunk_bytes},
                                 {"steps", report.steps},
                                 {"exchanges", report.exchanges},
                                 {"bytes", report.bytes},
                                 {"scale", report.scale},
                                 {"policies", nlohmann::ordered_json::array()}};
  for (const PolicyReport& policy : report.policies) {
    json["policies"].push_back({{"policy", std::string(PolicyName(policy.policy))},
                                {"tx_max_over_mean", policy.in_all.send_max_over_mean},
                                {"rx_max_over_mean", policy.in_all.receive_max_over_mean},
                                {"completion_over_bound", policy.in_all.CompletionOverBound()},
                                {"seconds", policy.in_all.seconds},
                                {"bound_seconds", policy.in_all.bound_seconds},
                                {"per_exchange",
                                 {{"tx_max_over_mean", Json(policy.send)},
                                  {"rx_max_over_mean", Json(policy.receive)},
                                  {"completion_over_bound", Json(policy.completion)}}}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string RenderTable(const PlanReport& report, bool color) {
  using rails::ctl::Table;
  constexpr auto kRight = Table::Align::kRight;
  constexpr size_t kBarColumns = 24;
  Table table({{"POLICY"},
               {"SENT MEAN", kRight},
               {"WORST", kRight},
               {"RECEIVED MEAN", kRight},
               {"WORST", kRight},
               {"TIME/BOUND MEAN", kRight},
               {"WORST", kRight},
               {"MEAN TIME"}});
  double longest = 0;
  for (const PolicyReport& policy : report.policies) longest = std::max(longest, policy.completion.mean);
  for (const PolicyReport& policy : report.policies) {
    table.AddRow({std::string(PolicyName(policy.policy)), Ratio(policy.send.mean), Ratio(policy.send.worst),
                  Ratio(policy.receive.mean), Ratio(policy.receive.worst), Ratio(policy.completion.mean),
                  Ratio(policy.completion.worst), rails::ctl::Bar(policy.completion.mean, longest, kBarColumns)});
  }
  return absl::StrCat(
      Heading(report), "\n", table.Render(color),
      "\nSent and received: the busiest rail of a node over the mean of its rails, at the worst node of "
      "each exchange.\nTime: the busiest NIC's, over the least possible one. 1 is perfect.\n");
}

}  // namespace railsd::sim
