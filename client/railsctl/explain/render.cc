#include "client/railsctl/explain/render.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/explain/causes.h"
#include "client/railsctl/format.h"
#include "client/railsctl/inspect/render.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/table.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

using Align = Table::Align;

constexpr size_t kColumns = 60;  // of the timeline

// Prints a time; "-" if the event has not happened. An event at the job's beginning has 1 ns, because 0 means none.
std::string At(double seconds) { return seconds == 0 ? "-" : FormatSeconds(seconds <= 1e-9 ? 0 : seconds); }

// From the first submission here until all ranks here have ended, or until now.
double TotalSeconds(const v1::ExplainJobResponse& job) {
  double total = job.report().elapsed_seconds();
  for (const auto& rank : job.ranks()) total = std::max({total, rank.submitted_seconds(), rank.ended_seconds()});
  return total;
}

std::string Head(const v1::ExplainJobResponse& job, bool color) {
  const v1::JobReport& report = job.report();
  const bool ended = report.state() == v1::JOB_STATE_DONE || report.state() == v1::JOB_STATE_FAILED;
  const Cell state = JobStateCell(report);
  std::string out = absl::StrCat("job ", report.job().seq(), " of ", report.group(), " (tenant ", report.tenant(),
                                 ", tag ", report.tag(), ") on ", job.node(), ": ");
  absl::StrAppend(&out, Paint(state.text, state.mark, color), ended ? " in " : " for ",
                  FormatSeconds(TotalSeconds(job)));
  if (report.ratio_to_bound() > 0) {
    absl::StrAppend(&out, "; ", FormatRatio(report.ratio_to_bound()), " x the bound of ",
                    FormatSeconds(report.node_bound_seconds()), " since the last rank here submitted");
  }
  absl::StrAppend(&out, "\n");
  const v1::SwitchingEfficiency& efficiency = report.efficiency();
  if (efficiency.total() > 0) {
    absl::StrAppendFormat(&out, "switching efficiency %.3f = data %.3f x moving %.3f x utilisation %.3f\n",
                          efficiency.total(), efficiency.data(), efficiency.moving(), efficiency.utilisation());
  }
  return out;
}

// The directions of the exchange that were eager.
std::string EagerText(const v1::ExchangePart& exchange) {
  if (!exchange.eager_out() && !exchange.eager_in()) return "";
  if (exchange.eager_out() && exchange.eager_in()) return "eager";
  return exchange.eager_out() ? "eager out" : "eager in";
}

std::string Waits(const v1::ExplainJobResponse& job, bool color) {
  const v1::JobReport& report = job.report();
  Table phases({{"PHASE"}, {"TIME", Align::kRight}, {"OF ALL", Align::kRight}, {""}});
  const auto add = [&](const char* name, double seconds) {
    const double total = TotalSeconds(job), part = total > 0 ? seconds / total : 0;
    phases.AddRow({name, FormatSeconds(seconds), absl::StrFormat("%.0f %%", 100 * part), Bar(part, 1, 20)});
  };
  double started = 0;
  for (const auto& rank : job.ranks()) started = std::max(started, rank.submitted_seconds());
  add("waiting for ranks of this node", started);
  add("waiting for peers", report.waiting_for_peers_seconds());
  add("sending", report.sending_seconds());
  add("receiving (meanwhile)", report.receiving_seconds());
  Table ranks({{"RANK", Align::kRight}, {"SUBMITTED", Align::kRight}, {"ENDED", Align::kRight}});
  for (const auto& rank : job.ranks()) {
    ranks.AddRow({absl::StrCat(rank.rank()), FormatSeconds(rank.submitted_seconds()), At(rank.ended_seconds())});
  }
  std::string out = absl::StrCat("\n", phases.Render(color), "\n", ranks.Render(color));
  if (job.exchanges_size() == 0) return out;
  Table peers({{"PEER"},
               {"TO IT", Align::kRight},
               {"FROM IT", Align::kRight},
               {"READY", Align::kRight},
               {"ITS READY", Align::kRight},
               {"GRANT", Align::kRight},
               {"ITS GRANT", Align::kRight},
               {"ALL SENT", Align::kRight},
               {"ALL HERE", Align::kRight},
               {""}});
  for (const auto& exchange : job.exchanges()) {
    peers.AddRow({exchange.node(), FormatBytes(exchange.out_bytes()), FormatBytes(exchange.in_bytes()),
                  At(exchange.ready_sent_seconds()), At(exchange.ready_received_seconds()),
                  At(exchange.grant_sent_seconds()), At(exchange.grant_received_seconds()),
                  At(exchange.last_acknowledged_seconds()), At(exchange.last_received_seconds()),
                  exchange.left_out() ? Cell("LEFT OUT", Mark::kBad) : Cell(EagerText(exchange))});
  }
  return absl::StrCat(out, "\n", peers.Render(color));
}

std::string Rails(const v1::ExplainJobResponse& job, bool color) {
  Table table({{"RAIL"},
               {"PLANNED", Align::kRight},
               {"SENT", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"CHUNKS", Align::kRight},
               {"RETURNED", Align::kRight},
               {"BUSY", Align::kRight},
               {"RATE", Align::kRight},
               {"OF SPEED", Align::kRight},
               {"FIRST SENT", Align::kRight},
               {"LAST SENT", Align::kRight},
               {"LAST HERE", Align::kRight}});
  for (const auto& rail : job.rails()) {
    if (rail.drained()) {
      table.AddRow({rail.rail(), Cell("DRAINED", Mark::kWarn)});
      continue;
    }
    const double rate = rail.busy_seconds() > 0 ? static_cast<double>(rail.tx_bytes()) / rail.busy_seconds() : 0;
    const double part =
        rail.speed_bytes_per_second() == 0 ? 0 : rate / static_cast<double>(rail.speed_bytes_per_second());
    table.AddRow({rail.rail(), FormatBytes(rail.planned_bytes()), FormatBytes(rail.tx_bytes()),
                  FormatBytes(rail.rx_bytes()), absl::StrCat(rail.chunks()),
                  Cell(absl::StrCat(rail.returned_chunks()), rail.returned_chunks() == 0 ? Mark::kNone : Mark::kWarn),
                  FormatSeconds(rail.busy_seconds()), FormatBitRate(rate), part > 0 ? FormatRatio(part) : "-",
                  At(rail.first_posted_seconds()), At(rail.last_acknowledged_seconds()),
                  At(rail.last_received_seconds())});
  }
  return table.empty() ? "" : absl::StrCat("\n", table.Render(color));
}

// One rail's timeline: the part of its speed that its chunks used. A chunk counts evenly over its time in flight.
struct RailRow {
  std::vector<double> bytes = std::vector<double>(kColumns, 0);
  std::vector<bool> returned = std::vector<bool>(kColumns, false);
};

std::vector<RailRow> RailRows(const v1::ExplainJobResponse& job, double end) {
  std::vector<RailRow> rows(static_cast<size_t>(job.rails_size()));
  const double width = end / static_cast<double>(kColumns);
  const auto column = [&](double at) {  // 0 for NaN
    return at / width > 0 ? static_cast<size_t>(std::min(at / width, double{kColumns - 1})) : 0;
  };
  for (const auto& chunk : job.chunks()) {
    if (chunk.rail() >= rows.size()) continue;
    RailRow& row = rows[chunk.rail()];
    const double from = chunk.posted_seconds();
    const double to = std::max(chunk.ended_seconds() > 0 ? chunk.ended_seconds() : end, from + 1e-9);
    if (chunk.returned()) {
      row.returned[column(to)] = true;
      continue;
    }
    for (size_t c = column(from); c <= column(to); ++c) {
      const double begin = static_cast<double>(c) * width;
      const double overlap = std::min(to, begin + width) - std::max(from, begin);
      row.bytes[c] += static_cast<double>(chunk.length_bytes()) * std::max(0.0, overlap) / (to - from);
    }
  }
  return rows;
}

std::string Timeline(const v1::ExplainJobResponse& job, bool color) {
  static constexpr const char* kLevels[] = {"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double end = TotalSeconds(job);
  if (job.chunks_size() == 0 || end <= 0) return "";
  size_t name_width = 0;
  for (const auto& rail : job.rails()) name_width = std::max(name_width, DisplayWidth(rail.rail()));
  const double column_seconds = end / static_cast<double>(kColumns);
  std::string out = absl::StrCat("\nchunks sent by rail, from 0 to ", FormatSeconds(end),
                                 "; full height is the rail's speed, ! a chunk that came back\n");
  const std::vector<RailRow> rows = RailRows(job, end);
  for (size_t r = 0; r < rows.size(); ++r) {
    const v1::RailPart& rail = job.rails(static_cast<int>(r));
    double full = static_cast<double>(rail.speed_bytes_per_second()) * column_seconds;
    if (full <= 0) full = std::max(1.0, *std::max_element(rows[r].bytes.begin(), rows[r].bytes.end()));
    absl::StrAppend(&out, "  ", rail.rail(), std::string(name_width - DisplayWidth(rail.rail()), ' '), " |");
    for (size_t c = 0; c < kColumns; ++c) {
      const double level = std::min(1.0, rows[r].bytes[c] / full);
      const auto step = static_cast<size_t>(std::lround(level * 8));
      absl::StrAppend(&out, rows[r].returned[c] ? Paint("!", Mark::kBad, color)
                                                : kLevels[rows[r].bytes[c] > 0 ? std::max<size_t>(step, 1) : 0]);
    }
    absl::StrAppend(&out, "|\n");
  }
  if (job.chunks_left_out() > 0) {
    absl::StrAppend(&out, "  the first ", job.chunks_size(), " chunks only; ", job.chunks_left_out(),
                    " more are in the sums above\n");
  }
  return out;
}

}  // namespace

std::string RenderExplanation(const v1::ExplainJobResponse& job, bool color) {
  std::string out = absl::StrCat(Head(job, color), Waits(job, color), Rails(job, color), Timeline(job, color));
  const std::vector<std::string> causes = Causes(job);
  if (!causes.empty()) absl::StrAppend(&out, "\nwhy\n");
  for (const std::string& cause : causes) absl::StrAppend(&out, "  ", cause, "\n");
  return out;
}

}  // namespace rails::ctl
