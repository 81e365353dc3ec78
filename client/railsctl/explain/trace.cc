// The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/railsctl/explain/render.h"
#include "common/json/json.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

using Json = nlohmann::ordered_json;

class Trace {
 public:
  // Begins a process: the next rows belong to it, and its times count from `begun_seconds` of the trace.
  void Process(const std::string& name, double begun_seconds) {
    ++process_;
    rows_ = 0;
    begun_seconds_ = begun_seconds;
    Add({{"name", "process_name"}, {"ph", "M"}, {"pid", process_}, {"tid", 0}, {"args", {{"name", name}}}});
  }
  // Adds a row below the others.
  int Row(const std::string& name) {
    const int row = ++rows_;
    Add({{"name", "thread_name"}, {"ph", "M"}, {"pid", process_}, {"tid", row}, {"args", {{"name", name}}}});
    Add({{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", process_}, {"tid", row}, {"args", {{"sort_index", row}}}});
    return row;
  }
  // Leaves out spans that have not begun or not ended.
  void Span(int row, const std::string& name, double from, double to, Json args = Json::object()) {
    if (to < from || to <= 0) return;
    Add({{"name", name},
         {"ph", "X"},
         {"pid", process_},
         {"tid", row},
         {"ts", (begun_seconds_ + from) * 1e6},
         {"dur", (to - from) * 1e6},
         {"args", std::move(args)}});
  }
  void Mark(int row, const std::string& name, double at) {
    if (at <= 0) return;
    Add({{"name", name},
         {"ph", "i"},
         {"s", "t"},
         {"pid", process_},
         {"tid", row},
         {"ts", (begun_seconds_ + at) * 1e6}});
  }
  std::string Dump(Json about) {
    const Json trace = {
        {"displayTimeUnit", "ms"}, {"otherData", std::move(about)}, {"traceEvents", std::move(events_)}};
    return DumpJson(trace) + "\n";
  }

 private:
  void Add(Json event) { events_.push_back(std::move(event)); }
  Json events_ = Json::array();
  int process_ = 0, rows_ = 0;
  double begun_seconds_ = 0;
};

void AddPhases(const v1::ExplainJobResponse& job, Trace* trace) {
  const v1::JobReport& report = job.report();
  const int row = trace->Row(absl::StrCat("job ", report.job().seq()));
  double started = 0;
  for (const auto& rank : job.ranks()) started = std::max(started, rank.submitted_seconds());
  const double running = started + report.waiting_for_peers_seconds();
  trace->Span(row, "waiting for ranks", 0, started);
  trace->Span(row, "waiting for peers", started, running);
  trace->Span(row, "sending", running, running + report.sending_seconds());
  const int receiving = trace->Row("receiving");
  trace->Span(receiving, "receiving", running, running + report.receiving_seconds());
  for (const auto& rank : job.ranks()) {
    trace->Span(trace->Row(absl::StrCat("rank ", rank.rank())), "submitted to ended", rank.submitted_seconds(),
                rank.ended_seconds());
  }
}

void AddExchanges(const v1::ExplainJobResponse& job, Trace* trace) {
  for (const auto& exchange : job.exchanges()) {
    const int row = trace->Row(absl::StrCat("peer ", exchange.node()));
    if (exchange.eager_out()) {
      trace->Span(row, "eager, with our READY", exchange.ready_sent_seconds(), exchange.last_acknowledged_seconds(),
                  {{"bytes", exchange.out_bytes()}});
    }
    trace->Span(row, "until its grant", exchange.ready_sent_seconds(), exchange.grant_received_seconds());
    trace->Span(row, "sending to it", exchange.planned_seconds(), exchange.last_acknowledged_seconds(),
                {{"bytes", exchange.out_bytes()}});
    trace->Mark(row, "its READY", exchange.ready_received_seconds());
    trace->Mark(row, "our grant", exchange.grant_sent_seconds());
    trace->Mark(row, exchange.eager_in() ? "eager bytes from it, with its READY" : "last bytes from it",
                exchange.last_received_seconds());
  }
}

// Puts chunks that overlap in time on separate rows.
void AddRail(const v1::ExplainJobResponse& job, uint32_t index, Trace* trace) {
  const std::string& name = job.rails(static_cast<int>(index)).rail();
  std::vector<std::pair<int, double>> rows;  // row, and the time when its last chunk ends
  for (const auto& chunk : job.chunks()) {
    if (chunk.rail() != index || chunk.ended_seconds() <= 0) continue;
    auto free =
        std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.second <= chunk.posted_seconds(); });
    if (free == rows.end()) {
      rows.emplace_back(trace->Row(absl::StrCat(name, rows.empty() ? "" : absl::StrCat(" +", rows.size()))), 0);
      free = std::prev(rows.end());
    }
    free->second = chunk.ended_seconds();
    const auto peer = static_cast<int>(chunk.exchange());
    const std::string node = peer < job.exchanges_size() ? job.exchanges(peer).node() : "?";
    trace->Span(
        free->first, absl::StrCat(chunk.returned() ? "RETURNED, to " : "to ", node), chunk.posted_seconds(),
        chunk.ended_seconds(),
        {{"bytes", chunk.length_bytes()}, {"source_rank", chunk.source_rank()}, {"returned", chunk.returned()}});
  }
}

}  // namespace

std::string TraceJson(absl::Span<const v1::ExplainJobResponse> jobs, absl::Span<const double> begun_seconds) {
  Trace trace;
  Json nodes = Json::array();
  for (size_t n = 0; n < jobs.size(); ++n) {
    const v1::ExplainJobResponse& job = jobs[n];
    const v1::JobReport& report = job.report();
    trace.Process(absl::StrCat(job.node(), ": job ", report.job().seq(), " of ", report.group()), begun_seconds[n]);
    AddPhases(job, &trace);
    AddExchanges(job, &trace);
    for (int rail = 0; rail < job.rails_size(); ++rail) AddRail(job, static_cast<uint32_t>(rail), &trace);
    nodes.push_back({{"node", job.node()},
                     {"tenant", report.tenant()},
                     {"group", report.group()},
                     {"seq", report.job().seq()},
                     {"state", JobStateName(report.state())},
                     {"begun_seconds", job.begun_seconds()},
                     {"chunks_left_out", job.chunks_left_out()}});
  }
  return trace.Dump(jobs.size() == 1 ? nodes[0] : Json{{"nodes", nodes}});
}

}  // namespace rails::ctl
