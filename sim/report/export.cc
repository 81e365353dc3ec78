#include "sim/report/export.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"

namespace railsd::sim {
namespace {

using Json = nlohmann::ordered_json;

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json FixedJson(const FixedSeconds& fixed) {
  return {{"seconds", fixed.Sum()}, {"job", fixed.job},       {"peers", fixed.peers},
          {"flows", fixed.flows},   {"shares", fixed.shares}, {"ready", fixed.ready}};
}

Json PolicyJson(const PointResult& point, size_t index) {
  const PolicyResult& policy = point.policies[index];
  if (!policy.error.empty()) return {{"policy", policy.policy}, {"error", policy.error}};
  Json json = {{"policy", policy.policy},
               {"best", point.IsBest(index)},
               {"seconds", Number(policy.seconds())},
               {"network_seconds", Number(policy.network_seconds)},
               {"over_bound", Number(policy.OverBound())},
               {"bus_bytes_per_second", policy.Ends() ? Json(policy.bus_bytes_per_second) : Json(nullptr)},
               {"send_imbalance", Number(policy.send_imbalance)},
               {"receive_imbalance", Number(policy.receive_imbalance)},
               {"fixed", FixedJson(policy.fixed)},
               {"fixed_share", policy.Ends() ? Json(policy.FixedShare()) : Json(nullptr)},
               {"moves", policy.moves},
               {"unfinished_bytes", policy.unfinished_bytes}};
  if (point.packets) {
    json["queue_peak_bytes"] = policy.queue_peak_bytes;
    json["dropped_packets"] = policy.dropped_packets;
    json["marked_packets"] = policy.marked_packets;
    json["paused_seconds"] = policy.paused_seconds;
  }
  if (policy.iteration.has_value()) {
    const IterationTime& time = *policy.iteration;
    json["iteration"] = {{"seconds", Number(time.seconds)},
                         {"compute_seconds", time.compute_seconds},
                         {"exchange_seconds", Number(time.exchange_seconds)},
                         {"hidden_seconds", time.hidden_seconds}};
  }
  return json;
}

Json ChangesJson(const PointResult& point) {
  Json json = Json::array();
  for (const RailChange& change : point.changes) {
    json.push_back({{"at_seconds", absl::ToDoubleSeconds(change.at)},
                    {"rail", change.rail},
                    {"node", change.node.has_value() ? Json(*change.node) : Json(nullptr)},
                    {"bytes_per_second", change.bytes_per_second}});
  }
  return json;
}

Json PointJson(const Report& report, const PointResult& point) {
  Json json = Json::object();
  Json values = Json::object();
  for (size_t i = 0; i < report.swept.size(); ++i) values[report.swept[i]] = point.values[i];
  json["point"] = values;
  json["workload"] = point.workload;
  json["nodes"] = point.nodes;
  json["gpus"] = point.gpus;
  json["rails"] = point.rail_speeds.size();
  json["rail_bytes_per_second"] = point.rail_speeds;
  json["changes"] = ChangesJson(point);
  json["mode"] = point.packets ? "packet" : "fluid";
  json["exchanges"] = point.exchanges;
  json["bytes_between_nodes"] = point.bytes_between_nodes;
  json["scale"] = point.scale;
  json["bound_seconds"] = Number(point.BoundSeconds());
  json["policies"] = Json::array();
  for (size_t i = 0; i < point.policies.size(); ++i) json["policies"].push_back(PolicyJson(point, i));
  return json;
}

std::string CsvText(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string CsvNumber(double value) { return std::isfinite(value) ? absl::StrFormat("%.9g", value) : ""; }

constexpr char kColumns[] =
    "workload,nodes,gpus,rails,mode,exchanges,bytes_between_nodes,bound_seconds,policy,best,seconds,network_seconds,"
    "over_bound,bus_bytes_per_second,send_imbalance,receive_imbalance,queue_peak_bytes,dropped_packets,"
    "fixed_seconds,fixed_job,fixed_peers,fixed_flows,fixed_shares,fixed_ready,iteration_seconds,unfinished_bytes,"
    "error\n";

std::string CsvRow(const PointResult& point, size_t index) {
  const PolicyResult& policy = point.policies[index];
  std::string row =
      absl::StrCat(CsvText(point.workload), ",", point.nodes, ",", point.gpus, ",", point.rail_speeds.size(), ",",
                   point.packets ? "packet" : "fluid", ",", point.exchanges, ",", point.bytes_between_nodes, ",",
                   CsvNumber(point.BoundSeconds()), ",", CsvText(policy.policy), ",");
  absl::StrAppend(&row, point.IsBest(index) ? 1 : 0, ",");
  const bool ran = policy.error.empty();
  const double bus = policy.Ends() ? policy.bus_bytes_per_second : policy.seconds();  // infinite ones are left empty
  for (const double value : {policy.seconds(), policy.network_seconds, policy.OverBound(), bus, policy.send_imbalance,
                             policy.receive_imbalance}) {
    absl::StrAppend(&row, ran ? CsvNumber(value) : "", ",");
  }
  absl::StrAppend(&row, ran && point.packets ? CsvNumber(policy.queue_peak_bytes) : "", ",",
                  ran && point.packets ? absl::StrCat(policy.dropped_packets) : "", ",");
  const FixedSeconds& fixed = policy.fixed;
  for (const double value : {fixed.Sum(), fixed.job, fixed.peers, fixed.flows, fixed.shares, fixed.ready}) {
    absl::StrAppend(&row, ran ? CsvNumber(value) : "", ",");
  }
  absl::StrAppend(&row, policy.iteration.has_value() ? CsvNumber(policy.iteration->seconds) : "", ",",
                  ran ? absl::StrCat(policy.unfinished_bytes) : "", ",", CsvText(policy.error), "\n");
  return row;
}

}  // namespace

std::string RenderJson(const Report& report) {
  Json json = {{"title", report.title}, {"swept", report.swept}, {"points", Json::array()}};
  for (const PointResult& point : report.points) json["points"].push_back(PointJson(report, point));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string RenderCsv(const Report& report) {
  std::string csv;
  for (const std::string& key : report.swept) absl::StrAppend(&csv, CsvText(key), ",");
  absl::StrAppend(&csv, kColumns);
  for (const PointResult& point : report.points) {
    for (size_t i = 0; i < point.policies.size(); ++i) {
      for (const std::string& value : point.values) absl::StrAppend(&csv, CsvText(value), ",");
      absl::StrAppend(&csv, CsvRow(point, i));
    }
  }
  return csv;
}

}  // namespace railsd::sim
