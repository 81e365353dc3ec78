#include "client/railsctl/explain/nodes.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/explain/causes.h"
#include "client/railsctl/format.h"
#include "client/railsctl/inspect/render.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/table.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

using Align = Table::Align;

constexpr size_t kTimelineColumns = 44;  // of the timeline
constexpr double kNotableGap = 0.05;     // part of the job's time; smaller differences are not reported
constexpr double kClockSteps = 1e-6;     // four times the resolution of a double that counts seconds since 1970
constexpr double kEndless = std::numeric_limits<double>::infinity();

const v1::ExchangePart* ExchangeWith(const v1::ExplainJobResponse& job, const std::string& node) {
  const auto found =
      std::find_if(job.exchanges().begin(), job.exchanges().end(), [&](const auto& e) { return e.node() == node; });
  return found == job.exchanges().end() ? nullptr : &*found;
}

// The most by which the clock of `to` can be ahead of that of `from`, by the messages from `from` to `to`.
double MostAhead(const v1::ExplainJobResponse& from, const v1::ExplainJobResponse& to) {
  const v1::ExchangePart* const out = ExchangeWith(from, to.node());
  const v1::ExchangePart* const in = ExchangeWith(to, from.node());
  double most = kEndless;
  if (out == nullptr || in == nullptr) return most;
  const double begun = to.begun_seconds() - from.begun_seconds();
  const auto take = [&](double sent, double received, double early) {
    if (sent > 0 && received > 0) most = std::min(most, begun + (early > 0 ? -early : received) - sent);
  };
  take(out->ready_sent_seconds(), in->ready_received_seconds(), in->ready_early_seconds());
  take(out->grant_sent_seconds(), in->grant_received_seconds(), 0);
  return most;
}

// When the last local rank had submitted, when every peer was ready, and when all was over; in seconds of the node.
struct Phases {
  double submitted = 0, running = 0, ended = 0;
};

bool Runs(const v1::ExplainJobResponse& job) {
  return job.report().state() != v1::JOB_STATE_DONE && job.report().state() != v1::JOB_STATE_FAILED;
}

Phases PhasesOf(const v1::ExplainJobResponse& job) {
  Phases phases;
  for (const auto& rank : job.ranks()) {
    phases.submitted = std::max(phases.submitted, rank.submitted_seconds());
    phases.ended = std::max(phases.ended, rank.ended_seconds());
  }
  if (phases.ended == 0) phases.ended = job.report().elapsed_seconds();  // the job still runs
  phases.running = std::min(phases.submitted + job.report().waiting_for_peers_seconds(), phases.ended);
  return phases;
}

std::string ClockText(const NodeClock& clock) {
  if (!clock.known) return "unknown";
  return absl::StrFormat("%+.0f us", clock.ahead_seconds * 1e6);
}

std::string Timeline(JobParts jobs, absl::Span<const double> begin, double end) {
  size_t width = 0;
  for (const auto& job : jobs) width = std::max(width, DisplayWidth(job.node()));
  std::string out =
      absl::StrCat("\nfrom 0 to ", FormatSeconds(end), ": . waits for ranks of its node, - for peers, # exchanges\n");
  for (size_t n = 0; n < jobs.size(); ++n) {
    const Phases phases = PhasesOf(jobs[n]);
    std::string line(kTimelineColumns, ' ');
    const auto paint = [&](double from, double to, char with) {
      const double columns = static_cast<double>(kTimelineColumns) / end;
      const auto column = [&](double at) {  // 0 for NaN
        return at * columns > 0 ? static_cast<long>(std::min(at * columns, double{kTimelineColumns - 1})) : 0;
      };
      if (to > from) std::fill(line.begin() + column(begin[n] + from), line.begin() + column(begin[n] + to) + 1, with);
    };
    paint(0, phases.submitted, '.');
    paint(phases.submitted, phases.running, '-');
    paint(phases.running, phases.ended, '#');
    absl::StrAppend(&out, "  ", jobs[n].node(), std::string(width - DisplayWidth(jobs[n].node()), ' '), " |", line,
                    "|\n");
  }
  return out;
}

// Nodes that took part in the job and have no answer in `jobs`.
std::vector<std::string> Silent(JobParts jobs) {
  std::set<std::string> nodes;
  for (const auto& job : jobs) {
    for (const auto& exchange : job.exchanges()) nodes.insert(exchange.node());
  }
  for (const auto& job : jobs) nodes.erase(job.node());
  return {nodes.begin(), nodes.end()};
}

// Says whose ranks submitted last, or only the gap if it is not above `notable_seconds`; which nodes were not asked;
// and which node ended last, or has not ended, and why.
std::string WhoWasLast(JobParts jobs, absl::Span<const double> begin, double notable_seconds) {
  size_t late = 0, last = 0;
  double first_submitted = kEndless;
  const auto submitted = [&](size_t n) { return begin[n] + PhasesOf(jobs[n]).submitted; };
  const auto ended = [&](size_t n) { return Runs(jobs[n]) ? kEndless : begin[n] + PhasesOf(jobs[n]).ended; };
  for (size_t n = 0; n < jobs.size(); ++n) {
    first_submitted = std::min(first_submitted, submitted(n));
    if (submitted(n) > submitted(late)) late = n;
    if (ended(n) > ended(last)) last = n;
  }
  std::string out = "\nwhy\n";
  const double gap = submitted(late) - first_submitted;
  if (gap > notable_seconds) {
    absl::StrAppend(&out, "  ", jobs[late].node(), "'s ranks had submitted last, ", FormatSeconds(gap),
                    " after those of the first node.\n");
  } else {
    absl::StrAppend(&out, "  All nodes' ranks had submitted within ", FormatSeconds(gap), ".\n");
  }
  const std::vector<std::string> silent = Silent(jobs);
  if (!silent.empty()) {
    absl::StrAppend(&out, "  Not asked, and part of it: ", absl::StrJoin(silent, ", "), ".\n");
  }
  absl::StrAppend(&out, "  ", jobs[last].node(), Runs(jobs[last]) ? " has not ended." : " ended last.", " It says:\n");
  for (const std::string& cause : Causes(jobs[last])) absl::StrAppend(&out, "    ", cause, "\n");
  return out;
}

}  // namespace

absl::Status CheckOneJob(JobParts jobs) {
  const auto name = [](const v1::ExplainJobResponse& job) {
    const v1::Epoch& epoch = job.report().job().epoch();
    return absl::StrCat("job ", job.report().job().seq(), " of ", job.report().group(), " in epoch ",
                        FormatId(epoch.boot_id()), ".", epoch.counter());
  };
  std::set<std::string> nodes;
  for (const auto& job : jobs) {
    if (name(job) != name(jobs[0])) {
      return absl::InvalidArgumentError(absl::StrCat(job.node(), " is about ", name(job), ", ", jobs[0].node(),
                                                     " about ", name(jobs[0]), "; name the job and --group"));
    }
    if (!nodes.insert(job.node()).second) {
      return absl::InvalidArgumentError(absl::StrCat("node ", job.node(), " is there twice"));
    }
  }
  return absl::OkStatus();
}

std::vector<NodeClock> AlignClocks(JobParts jobs) {
  std::vector<NodeClock> clocks(jobs.size());
  for (NodeClock& clock : clocks) clock.within_seconds = kEndless;
  std::vector<bool> settled(jobs.size(), false);
  if (!clocks.empty()) clocks[0] = {0, 0, true};
  // Dijkstra's algorithm. The length of an edge between two nodes is the error of comparing their clocks.
  for (size_t round = 0; round < jobs.size(); ++round) {
    size_t from = jobs.size();
    for (size_t n = 0; n < jobs.size(); ++n) {
      const bool nearer = from == jobs.size() || clocks[n].within_seconds < clocks[from].within_seconds;
      if (!settled[n] && clocks[n].known && nearer) from = n;
    }
    if (from == jobs.size()) break;
    settled[from] = true;
    for (size_t to = 0; to < jobs.size(); ++to) {
      if (settled[to]) continue;
      const double most = MostAhead(jobs[from], jobs[to]), least = -MostAhead(jobs[to], jobs[from]);
      if (most == kEndless || least == -kEndless) continue;
      if (most + kClockSteps < least) continue;  // a clock was set during the job
      const double within = clocks[from].within_seconds + std::max(0.0, (most - least) / 2);
      if (within >= clocks[to].within_seconds) continue;
      clocks[to] = {clocks[from].ahead_seconds + (most + least) / 2, within, true};
    }
  }
  for (NodeClock& clock : clocks) {
    if (!clock.known) clock.within_seconds = 0;
  }
  return clocks;
}

std::vector<double> Beginnings(JobParts jobs, absl::Span<const NodeClock> clocks) {
  std::vector<double> begin;
  for (size_t n = 0; n < jobs.size(); ++n) {
    begin.push_back(jobs[n].begun_seconds() - jobs[0].begun_seconds() - clocks[n].ahead_seconds);
  }
  const double first = begin.empty() ? 0 : *std::min_element(begin.begin(), begin.end());
  for (double& seconds : begin) seconds -= first;
  return begin;
}

std::string RenderNodes(JobParts jobs, absl::Span<const NodeClock> clocks, bool color) {
  const std::vector<double> begin = Beginnings(jobs, clocks);
  double end = 1e-9, within = 0;
  for (size_t n = 0; n < jobs.size(); ++n) {
    end = std::max(end, begin[n] + PhasesOf(jobs[n]).ended);
    within = std::max(within, clocks[n].within_seconds);
  }
  const v1::JobReport& report = jobs[0].report();
  std::string out = absl::StrCat("job ", report.job().seq(), " of ", report.group(), " (tenant ", report.tenant(),
                                 ", tag ", report.tag(), ") on ", FormatCount(jobs.size(), "node"), ": ",
                                 FormatSeconds(end), "; clocks are aligned within ", FormatSeconds(within), "\n\n");
  Table table({{"NODE"},
               {"STATE"},
               {"CLOCK", Align::kRight},
               {"BEGUN", Align::kRight},
               {"SUBMITTED", Align::kRight},
               {"RUNNING", Align::kRight},
               {"ENDED", Align::kRight},
               {"OF BOUND", Align::kRight}});
  for (size_t n = 0; n < jobs.size(); ++n) {
    const Phases phases = PhasesOf(jobs[n]);
    table.AddRow({jobs[n].node(), JobStateCell(jobs[n].report()), ClockText(clocks[n]), FormatSeconds(begin[n]),
                  FormatSeconds(begin[n] + phases.submitted), FormatSeconds(begin[n] + phases.running),
                  Runs(jobs[n]) ? "-" : FormatSeconds(begin[n] + phases.ended),
                  FormatRatio(jobs[n].report().ratio_to_bound())});
  }
  return absl::StrCat(out, table.Render(color), Timeline(jobs, begin, end),
                      WhoWasLast(jobs, begin, std::max(kNotableGap * end, within)));
}

}  // namespace rails::ctl
