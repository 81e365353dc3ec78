#include "client/railsctl/top/render.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/format.h"
#include "client/railsctl/inspect/render.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/table.h"
#include "client/railsctl/top/line.h"
#include "client/railsctl/top/rates.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

constexpr size_t kRateWidth = 11, kStateWidth = 8;

struct Row {
  Line line;
  bool continues = false;  // belongs to the row above
};

struct Section {
  Line title;
  std::vector<Row> rows;
  std::string noun;  // name of a row's thing: "rail"
  size_t least = 1;  // fewest useful rows
  size_t shown = 0;  // rows that fit on the screen
};

size_t NameWidth(size_t longest, size_t most) { return std::clamp<size_t>(longest, 4, most); }

Section RailSection(const v1::GetOverviewResponse& overview, const NodeRates& rates, size_t columns) {
  size_t name = 0;
  for (const auto& rail : overview.rails()) name = std::max(name, DisplayWidth(Printable(rail.name())));
  name = NameWidth(name, 12);
  const size_t fixed = name + kStateWidth + 3 * kRateWidth + 10;
  const size_t bar = std::clamp<size_t>(columns > fixed ? (columns - fixed) / 2 : 0, 4, 40);
  Section section;
  section.noun = "rail";
  section.least = 2;
  section.title.Left("RAIL", name).Add("  ").Left("STATE", kStateWidth).Add("  ").Right("SENDING", kRateWidth);
  section.title.Left("", bar + 3).Right("RECEIVING", kRateWidth).Left("", bar + 3).Right("OF", kRateWidth);
  for (int i = 0; i < overview.rails_size(); ++i) {
    const v1::RailStatus& rail = overview.rails(i);
    const Rates& rate = rates.rails[static_cast<size_t>(i)];
    const auto speed = static_cast<double>(rail.speed_bytes_per_second());
    const Cell state = RailStateCell(rail);
    Line line;
    line.Left(rail.name(), name).Add("  ").Left(state.text, kStateWidth, state.mark).Add("  ");
    line.Right(FormatBitRate(rate.tx), kRateWidth).Add(" ").Left(Bar(rate.tx, speed, bar), bar).Add("  ");
    line.Right(FormatBitRate(rate.rx), kRateWidth).Add(" ").Left(Bar(rate.rx, speed, bar), bar).Add("  ");
    line.Right(FormatBitRate(speed), kRateWidth);
    section.rows.push_back({std::move(line)});
    if (!rail.health().why().empty()) {
      Line why;
      why.Left("", name + 2).Add(rail.health().why(), Mark::kWarn);
      section.rows.push_back({std::move(why), true});
    }
  }
  return section;
}

Section BalanceSection(const v1::GetOverviewResponse& overview) {
  Section section;
  section.noun = "measure";
  section.least = 3;
  if (overview.balance_size() == 0) return section;
  section.title.Left("BALANCE", 10);
  Line sent, received, planned;
  sent.Left("sent", 10);
  received.Left("received", 10);
  planned.Left("planned", 10);
  for (const v1::BalanceWindow& window : overview.balance()) {
    section.title.Right(absl::FormatDuration(absl::Seconds(window.length_seconds())), 8);
    const auto add = [](double value, Line* line) {
      line->Right(FormatRatio(value), 8, value >= 1.2 ? Mark::kWarn : Mark::kNone);
    };
    add(window.tx_max_over_mean(), &sent);
    add(window.rx_max_over_mean(), &received);
    add(window.planned_max_over_mean(), &planned);
  }
  section.title.Add("   busiest rail over the mean; 1 is even");
  section.rows = {{sent}, {received}, {planned}};
  return section;
}

Section PeerSection(const v1::GetOverviewResponse& overview, const NodeRates& rates, size_t columns) {
  size_t name = 0;
  for (const auto& peer : overview.peers()) name = std::max(name, DisplayWidth(Printable(peer.node())));
  name = NameWidth(name, 16);
  const int rails = overview.rails_size();
  const size_t room = columns > name ? columns - name : 0;
  const size_t each = rails > 0 ? room / static_cast<size_t>(rails) : room;
  const size_t gap = each < 9 ? 1 : 2;
  const size_t bar = std::clamp<size_t>(each > gap ? (each - gap - 1) / 2 : 0, 1, 8);
  const size_t cell = 2 * bar + 1;
  const int shown = static_cast<int>(std::min<size_t>(static_cast<size_t>(rails), room / (gap + cell)));
  Section section;
  section.noun = "peer";
  section.least = 2;  // one peer, and the number of hidden ones
  if (overview.peers_size() == 0) {
    section.title.Add("NO PEERS");
    return section;
  }
  section.title.Left("PEER", name);
  for (int rail = 0; rail < shown; ++rail) {
    const std::string& rail_name = overview.rails(rail).name();
    const bool hides = rail + 1 == shown && shown < rails;
    const bool explains = DisplayWidth(Printable(rail_name)) + 7 <= cell;
    section.title.Left("", gap).Left(hides ? "…" : absl::StrCat(rail_name, explains ? " out/in" : ""), cell);
  }
  for (int p = 0; p < overview.peers_size(); ++p) {
    const v1::PeerStatus& peer = overview.peers(p);
    Line line;
    line.Left(peer.node(), name);
    if (!peer.up()) {
      line.Left("", gap).Add("DOWN", Mark::kBad).Add(peer.why().empty() ? "" : absl::StrCat("  ", peer.why()));
      section.rows.push_back({std::move(line)});
      continue;
    }
    const std::vector<Rates>& path = rates.peers[static_cast<size_t>(p)];
    for (int rail = 0; rail < shown; ++rail) {
      const auto r = static_cast<size_t>(rail);
      const Rates rate = r < path.size() ? path[r] : Rates();
      const auto speed = static_cast<double>(overview.rails(rail).speed_bytes_per_second());
      const Cell state = PathStateCell(peer, rail);
      line.Left("", gap);
      if (state.mark == Mark::kGood) {
        line.Add(Bar(rate.tx, speed, bar)).Add(" ").Add(Bar(rate.rx, speed, bar));
      } else {
        const bool fits = state.text.size() <= cell;
        line.Left(fits ? state.text : state.text.substr(0, std::min<size_t>(cell, 4)), cell, state.mark);
      }
    }
    section.rows.push_back({std::move(line)});
  }
  return section;
}

Line JobLine(const NodeJob& job) {
  const bool failed = job.state == v1::JOB_STATE_FAILED, done = job.state == v1::JOB_STATE_DONE;
  Line line;
  const std::string number = absl::StrCat(" #", job.seq);
  const std::string group = Clip(Printable(job.group), number.size() < 15 ? 16 - number.size() : 1);
  line.Left(absl::StrCat(group, number), 16).Right(absl::StrCat(job.ranks), 6).Add("  ");
  if (job.replayable) return line.Left("replayable", 10).Add("  ").Add(job.why);
  if (failed) return line.Left("FAILED", 10, Mark::kBad).Add(job.why);
  line.Left(JobStateName(job.state), 10, done ? Mark::kGood : Mark::kNone);
  if (done) {
    line.Left("", 18);
  } else {
    const double part = job.bytes > 0 ? static_cast<double>(job.bytes_done) / static_cast<double>(job.bytes) : 0;
    line.Left(Bar(part, 1, 12), 12).Right(absl::StrFormat("%.0f%%", 100 * std::min(part, 1.0)), 6);
  }
  line.Right(FormatBytes(job.bytes), 10).Right(FormatSeconds(job.elapsed_seconds), 9);
  return line.Right(FormatRatio(job.ratio_to_bound), 8, job.ratio_to_bound >= 1.3 ? Mark::kWarn : Mark::kNone);
}

Section JobSection(const v1::GetOverviewResponse& overview) {
  const NodeJobs jobs = JobsOf(overview);
  Section section;
  section.noun = "job";
  section.least = 2;
  if (jobs.running.empty() && jobs.finished.empty()) {
    section.title.Add("NO JOBS");
    return section;
  }
  section.title.Left("JOB", 16).Right("RANKS", 6).Add("  ").Left("STATE", 10).Left("DONE", 18);
  section.title.Right("BYTES", 10).Right("TIME", 9).Right("/BOUND", 8);
  for (const NodeJob& job : jobs.running) section.rows.push_back({JobLine(job)});
  for (const NodeJob& job : jobs.finished) section.rows.push_back({JobLine(job)});
  return section;
}

// Wraps long text into lines, cut between words.
std::vector<Line> Wrapped(const std::string& text, size_t columns, size_t most, Mark mark = Mark::kNone) {
  std::vector<Line> lines;
  std::string rest = Printable(text);
  while (!rest.empty() && lines.size() < most) {
    size_t end = rest.size();
    if (DisplayWidth(rest) > columns && lines.size() + 1 < most) {
      end = rest.rfind(' ', columns);
      if (end == std::string::npos || end == 0) end = rest.size();
    }
    lines.emplace_back(rest.substr(0, end), mark);
    rest.erase(0, end == rest.size() ? end : end + 1);
  }
  return lines;
}

std::string RateOf(double rate) { return rate > 0 ? FormatBitRate(rate) : "nothing"; }

std::vector<Line> Head(const NodeView& node, const NodeRates& rates, const TopOptions& options) {
  const auto headline = [&](Mark mark) { return Wrapped(Headline(node), options.columns, 3, mark); };
  if (!node.status.ok()) {
    std::vector<Line> lines = headline(Mark::kBad);
    for (Line& line : Wrapped(std::string(node.status.message()), options.columns, 3)) {
      lines.push_back(std::move(line));
    }
    return lines;
  }
  if (!node.after) return headline(Mark::kNone);
  const v1::GetOverviewResponse& overview = *node.after;
  std::vector<Line> lines = headline(overview.status().draining() ? Mark::kBad : Judge(overview).mark);
  double speed = 0;
  int up = 0;
  for (const auto& rail : overview.rails()) speed += static_cast<double>(rail.speed_bytes_per_second());
  for (const auto& peer : overview.peers()) up += peer.up() ? 1 : 0;
  const Rates sum = rates.Sum();
  Line traffic;
  if (rates.seconds > 0) {
    traffic.Add(absl::StrCat("sending ", RateOf(sum.tx), ", receiving ", RateOf(sum.rx), " of ", FormatBitRate(speed)));
  } else {
    traffic.Add("rates come with the next answer");
  }
  traffic.Add("; ");
  traffic.Add(absl::StrCat(up, " of ", FormatCount(static_cast<uint64_t>(overview.peers_size()), "peer"), " up"),
              up < overview.peers_size() ? Mark::kWarn : Mark::kNone);
  lines.push_back(std::move(traffic));
  return lines;
}

Line Foot(const NodeView& node, bool several, const TopOptions& options) {
  Line line;
  if (node.after) {
    const absl::Time at = absl::UnixEpoch() + absl::Seconds(node.after->time_seconds());
    line.Add(absl::FormatTime("%H:%M:%S", at, options.zone)).Add("  up ");
    line.Add(FormatSeconds(node.after->status().uptime_seconds())).Add("  ");
  }
  line.Add(absl::StrCat("every ", absl::FormatDuration(options.interval)));
  if (options.paused) line.Add("  ").Add("PAUSED", Mark::kWarn);
  if (options.keys) line.Add("  q quits, p pauses, 1-9 seconds").Add(several ? ", n next node" : "");
  return line;
}

// Distributes the rows over the sections: up to a third to the first, then one to each in turn. If there are too few
// rows, drops the last sections.
void Share(size_t rows, std::vector<Section>* sections) {
  const auto least = [](const Section& s) { return 2 + std::min(s.least, s.rows.size()); };
  size_t needed = 0;
  for (const Section& section : *sections) needed += least(section);
  while (!sections->empty() && needed > rows) {
    needed -= least(sections->back());
    sections->pop_back();
  }
  if (sections->empty()) return;
  for (Section& section : *sections) section.shown = std::min(section.least, section.rows.size());
  size_t left = rows - needed;
  Section& first = sections->front();
  const size_t more = std::min({left, rows / 3, first.rows.size() - first.shown});
  first.shown += more;
  left -= more;
  while (left > 0) {
    const size_t before = left;
    for (Section& section : *sections) {
      if (left == 0 || section.shown == section.rows.size()) continue;
      ++section.shown;
      --left;
    }
    if (left == before) break;
  }
}

void AppendSection(const Section& section, std::vector<Line>* lines) {
  lines->emplace_back();
  lines->push_back(section.title);
  const bool cut = section.shown < section.rows.size();
  const size_t whole = cut ? section.shown - 1 : section.shown;
  for (size_t i = 0; i < whole; ++i) lines->push_back(section.rows[i].line);
  if (!cut) return;
  const auto hidden = std::count_if(section.rows.begin() + static_cast<std::ptrdiff_t>(whole), section.rows.end(),
                                    [](const Row& row) { return !row.continues; });
  lines->emplace_back(
      absl::StrCat("… and ", FormatCount(static_cast<uint64_t>(hidden), absl::StrCat("more ", section.noun))));
}

}  // namespace

std::string Headline(const NodeView& node) {
  const std::string name = node.after ? node.after->status().node() : node.socket_dir;
  if (!node.status.ok()) {
    const std::string silent = absl::FormatDuration(absl::Floor(node.silent, absl::Seconds(1)));
    return absl::StrCat(name, ": NO ANSWER for ", silent, ", trying again",
                        node.after ? "; below is its last answer" : "");
  }
  if (!node.after) return absl::StrCat(name, ": waiting for its first answer");
  const char* draining = node.after->status().draining() ? "DRAINING, new jobs are refused; " : "";
  return absl::StrCat(name, ": ", draining, Judge(*node.after).text);
}

std::string RenderTop(const NodeView& node, const std::vector<std::string>& others, const TopOptions& options) {
  NodeRates rates;
  if (node.after) rates = RatesBetween(node.before ? *node.before : v1::GetOverviewResponse(), *node.after);
  std::vector<Line> lines;
  for (const std::string& other : others) lines.emplace_back(other);
  if (!others.empty()) lines.emplace_back();
  for (Line& line : Head(node, rates, options)) lines.push_back(std::move(line));
  std::vector<Section> sections;
  if (node.after) {
    sections.push_back(RailSection(*node.after, rates, options.columns));
    sections.push_back(BalanceSection(*node.after));
    sections.push_back(PeerSection(*node.after, rates, options.columns));
    sections.push_back(JobSection(*node.after));
    sections.erase(std::remove_if(sections.begin(), sections.end(),
                                  [](const Section& s) { return s.noun == "measure" && s.rows.empty(); }),
                   sections.end());
  }
  const size_t rest = lines.size() + 2;  // plus the foot and a blank line above it
  Share(options.rows == 0 ? SIZE_MAX / 2 : options.rows - std::min(options.rows, rest), &sections);
  for (const Section& section : sections) AppendSection(section, &lines);
  lines.emplace_back();
  lines.push_back(Foot(node, !others.empty(), options));
  if (options.rows > 0 && lines.size() > options.rows)
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(options.rows), lines.end());
  std::string out;
  for (const Line& line : lines) absl::StrAppend(&out, line.Render(options.columns, options.color), "\n");
  return out;
}

}  // namespace rails::ctl
