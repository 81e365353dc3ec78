#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/railsctl/bench/measure.h"
#include "client/railsctl/format.h"
#include "client/railsctl/table.h"

namespace rails::ctl {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Align = Table::Align;

OrderedJson SamplesJson(const Samples& samples) {
  if (samples.size() == 0) return nullptr;
  return {{"samples", samples.size()},    {"min", samples.Min()},          {"p50", samples.Median()},
          {"p90", samples.Quantile(0.9)}, {"p99", samples.Quantile(0.99)}, {"max", samples.Max()}};
}

double Rate(const Measurement& m, uint64_t bytes) {
  return m.phase.Median() > 0 ? static_cast<double>(bytes) / m.phase.Median() : 0;
}

OrderedJson MeasurementJson(const Measurement& m) {
  return {
      {"bytes", m.bytes.network},
      {"local_bytes", m.bytes.local},
      {"self_bytes", m.bytes.self},
      {"ranges_per_submission", m.ranges},
      {"seconds", SamplesJson(m.phase)},
      {"bytes_per_second", Rate(m, m.bytes.network)},
      {"bound_seconds", m.bound_seconds},
      {"ratio_to_bound", m.bound_seconds > 0 ? OrderedJson(m.phase.Median() / m.bound_seconds) : OrderedJson(nullptr)},
      {"submit_seconds", SamplesJson(m.submit)}};
}

OrderedJson HopsJson(const Hops& hops) {
  return {{"outside_daemon", SamplesJson(hops.outside)},
          {"waiting_for_ranks", SamplesJson(hops.ranks)},
          {"waiting_for_peers", SamplesJson(hops.peers)},
          {"bytes", SamplesJson(hops.bytes)}};
}

void AddSamples(const std::string& what, const Samples& samples, Table* table) {
  if (samples.size() == 0) return;
  table->AddRow({what, absl::StrCat(samples.size()), FormatSeconds(samples.Min()), FormatSeconds(samples.Median()),
                 FormatSeconds(samples.Quantile(0.9)), FormatSeconds(samples.Quantile(0.99)),
                 FormatSeconds(samples.Max())});
}

}  // namespace

OrderedJson BenchJson(const BenchReport& report) {
  OrderedJson json = {{"nodes", report.nodes},
                      {"ranks", report.nodes * report.ranks_per_node},
                      {"verified", report.wrong_bytes() == 0},
                      {"wrong_bytes", report.wrong_bytes()}};
  if (report.throughput.has_value()) json["throughput"] = MeasurementJson(*report.throughput);
  if (report.small_jobs.has_value()) {
    json["small_jobs"] = MeasurementJson(*report.small_jobs);
    json["small_jobs"]["hops_seconds"] = HopsJson(report.small_jobs->hops);
  }
  if (report.submit.has_value()) {
    const Measurement& m = *report.submit;
    json["submit"] = {{"ranges", m.ranges},
                      {"bytes", m.bytes.network + m.bytes.local},
                      {"submit_to_accepted_seconds", SamplesJson(m.submit)},
                      {"submit_to_first_chunk_seconds", SamplesJson(m.first_chunk)},
                      {"submit_to_done_seconds", SamplesJson(m.rank_done)}};
  }
  return json;
}

std::string RenderBench(const BenchReport& report, bool explain, bool color) {
  std::string out = absl::StrCat(FormatCount(report.nodes * report.ranks_per_node, "rank"), " on ",
                                 FormatCount(report.nodes, "node"), "\n\n");
  Table table({{"WHAT"},
               {"SAMPLES", Align::kRight},
               {"MIN", Align::kRight},
               {"P50", Align::kRight},
               {"P90", Align::kRight},
               {"P99", Align::kRight},
               {"MAX", Align::kRight}});
  if (report.throughput.has_value()) {
    AddSamples("all-to-all", report.throughput->phase, &table);
    AddSamples("  submission", report.throughput->submit, &table);
  }
  if (report.small_jobs.has_value()) {
    AddSamples("small all-to-all", report.small_jobs->phase, &table);
    AddSamples("  submission", report.small_jobs->submit, &table);
    if (explain) {
      const Hops& hops = report.small_jobs->hops;
      AddSamples("  into and out of the daemon", hops.outside, &table);
      AddSamples("  until all ranks of the node are here", hops.ranks, &table);
      AddSamples("  until every node is ready", hops.peers, &table);
      AddSamples("  until all bytes are there", hops.bytes, &table);
    }
  }
  if (report.submit.has_value()) {
    AddSamples(absl::StrCat(report.submit->ranges, " ranges: until accepted"), report.submit->submit, &table);
    AddSamples("  until the first chunk is at a rail", report.submit->first_chunk, &table);
    AddSamples("  until done", report.submit->rank_done, &table);
  }
  absl::StrAppend(&out, table.Render(color), "\n");
  if (report.throughput.has_value()) {
    const Measurement& m = *report.throughput;
    absl::StrAppend(&out, FormatBytes(m.bytes.network), " over the network and ",
                    FormatBytes(m.bytes.local + m.bytes.self), " inside nodes at ",
                    FormatByteRate(Rate(m, m.bytes.network)), "; over the bound ",
                    FormatRatio(m.bound_seconds > 0 ? m.phase.Median() / m.bound_seconds : 0), "\n");
  }
  const uint64_t wrong = report.wrong_bytes();
  absl::StrAppend(&out,
                  wrong == 0 ? Paint("every byte of the checked exchanges was right", Mark::kGood, color)
                             : Paint(absl::StrCat(wrong, " WRONG BYTES"), Mark::kBad, color),
                  "\n");
  return out;
}

}  // namespace rails::ctl
