// Reports: tables, JSON, CSV and the page, of results made up and of a small run.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/report/changes.h"
#include "sim/report/colors.h"
#include "sim/report/export.h"
#include "sim/report/page.h"
#include "sim/report/plots.h"
#include "sim/report/svg.h"
#include "sim/report/text.h"
#include "sim/run/progress.h"
#include "sim/run/run.h"

namespace railsd::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PolicyResult Made(const std::string& policy, double seconds) {
  PolicyResult result;
  result.policy = policy;
  result.exchanges = 1;
  result.network_seconds = seconds;
  result.bound_seconds = 1e-3;
  result.bus_bytes_per_second = 1e9;
  return result;
}

Report MadeReport() {
  PointResult point;
  point.workload = "zipf";
  point.nodes = 4;
  point.gpus = 8;
  point.rail_speeds = {50e9, 50e9};
  point.exchanges = 1;
  point.bytes_between_nodes = 1 << 20;
  point.policies = {Made("optimum", 1e-3), Made("planner", 1.01e-3), Made("ecmp", 2e-3),
                    Made("stuck", std::numeric_limits<double>::infinity()), Made("refused", 0)};
  point.policies[1].fixed = {.job = 1e-4, .peers = 2e-4, .flows = 0, .shares = 5e-5, .ready = 5e-5};
  point.policies[3].unfinished_bytes = 1024;
  point.policies[4].error = "needs <spines>";
  Report report;
  report.title = "made & up";
  report.points = {point};
  return report;
}

TEST(TextTest, TableLinesUpAndMarksTheBest) {
  EXPECT_EQ(RenderText(MadeReport(), false),
            "zipf: 4 nodes x 8 GPUs, 2 rails of 400 Gbit/s; 1 exchange, 1.00 MiB between nodes, bound 1.00 ms\n"
            "  POLICY   COMPLETION  / BOUND    BUS/GPU   SEND  RECEIVE   FIXED\n"
            "  optimum     1.00 ms    1.000  1.00 GB/s  1.000    1.000   0.0 %\n"
            "* planner     1.41 ms    1.410  1.00 GB/s  1.000    1.000  28.4 %\n"
            "  ecmp        2.00 ms    2.000  1.00 GB/s  1.000    1.000   0.0 %\n"
            "  stuck         never        -          -  1.000    1.000       -\n"
            "  refused  cannot run\n"
            "stuck: 1.00 KiB never arrive\n"
            "refused: needs <spines>\n"
            "\n* is the best besides optimum. SEND, RECEIVE: the busiest NIC over the mean of the busiest node; 1 is "
            "even.\n");
  const std::string explanation = RenderExplanation(MadeReport(), false);
  EXPECT_THAT(explanation, HasSubstr("under planner: 400 us of 1.41 ms"));
  EXPECT_THAT(explanation, HasSubstr("peers     200 us    50.0 %         14.2 %"));
  EXPECT_THAT(explanation, HasSubstr("shares   50.0 us    12.5 %          3.5 %"));
}

RailChange Changed(int microseconds, size_t rail, std::optional<size_t> node, double speed) {
  return {.at = absl::Microseconds(microseconds), .rail = rail, .node = node, .bytes_per_second = speed};
}

TEST(ChangesTest, AreInTextAndJsonAndOnThePage) {
  Report report = MadeReport();
  PointResult& point = report.points[0];
  point.changes = {Changed(0, 0, 1, 25e9), Changed(100, 1, std::nullopt, 0)};
  const std::string facts =
      "Changes: rail 0 of node 1 runs at 200 Gbit/s from the start; rail 1 is dead from 100 us on";
  EXPECT_THAT(RenderText(report, false), AllOf(HasSubstr("bound 1.00 ms\n" + facts + "\n"),
                                               HasSubstr("stuck: 1.00 KiB never arrive, because rail 1 dies\n")));
  EXPECT_THAT(RenderPage(report),
              AllOf(HasSubstr("<br>" + facts + "</p>"), HasSubstr("<span>never ends, because rail 1 dies</span>")));
  const auto changes = nlohmann::json::parse(RenderJson(report))["points"][0]["changes"];
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0],
            nlohmann::json::parse(R"({"at_seconds": 0.0, "rail": 0, "node": 1, "bytes_per_second": 25000000000.0})"));
  EXPECT_TRUE(changes[1]["node"].is_null());
  EXPECT_EQ(CommonChanges(report), facts);
  report.points.push_back(MadeReport().points[0]);
  EXPECT_EQ(CommonChanges(report), "");
}

TEST(ChangesTest, ChangesAfterTheEndAreTold) {
  PointResult point;
  point.policies.resize(2);
  point.policies[0].network_seconds = 1e-3;
  point.policies[1].network_seconds = 2e-3;
  point.changes = {{.at = absl::Milliseconds(1), .rail = 3}};
  EXPECT_EQ(LateChange(point), "");
  point.changes.push_back({.at = absl::Milliseconds(3), .rail = 2});
  EXPECT_EQ(LateChange(point), "Rail 2 changes after every exchange has ended.");
}

TEST(ChangesTest, OnlyRailsThatStayDeadAreTheReason) {
  PointResult point;
  point.changes = {
      Changed(0, 0, std::nullopt, 0), Changed(1, 1, std::nullopt, 0),  Changed(1, 2, 4, 0), Changed(2, 3, 4, 0),
      Changed(3, 1, 0, 1e9),          Changed(3, 2, std::nullopt, 1e9)};
  EXPECT_EQ(BecauseRailsDie(point), ", because rail 1 and rail 3 of node 4 die");
  EXPECT_THAT(ChangeFacts(point), HasSubstr("; rail 3 of node 4 is dead from 2.00 us on; 2 more"));
  const std::vector<ChangeMark> marks = ChangeMarks(point);
  ASSERT_EQ(marks.size(), 3u) << "none at the start";
  EXPECT_EQ(marks[0].label, "2 changes");
  EXPECT_EQ(marks[1].label, "rail 3 of node 4 is dead");
}

TEST(TextTest, TiesAreMarkedTogether) {
  Report report = MadeReport();
  report.points[0].policies[2].network_seconds = 1.4101e-3;
  EXPECT_THAT(RenderText(report, false), HasSubstr("* ecmp"));
  EXPECT_EQ(report.points[0].Best(), 1u);
}

TEST(TextTest, ThereIsNoRatioWithoutABound) {
  Report report = MadeReport();
  for (PolicyResult& policy : report.points[0].policies) policy.bound_seconds = 0;
  EXPECT_THAT(RenderText(report, false), AllOf(HasSubstr("* planner     1.41 ms        -"), Not(HasSubstr("bound"))));
  report.points[0].policies[1].bound_seconds = 1e-9;
  EXPECT_THAT(RenderText(report, false), HasSubstr("* planner     1.41 ms   > 1000"));
}

TEST(RunTest, ARailThatIsDeadAtTheStartDoesNotCountAsUneven) {
  const Points points = *MakePoints(*ParseDocument(
      "fabric: {nodes: 4, gpus: 4, rails: 4, changes: '3:0s:0,2@1:0s:0'}\nworkload: uniform\npolicy: [optimum]\n",
      "a.yaml"));
  const RunOutcome outcome = RunPoints(points, {.title = "t"});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_NEAR(outcome.report.points[0].policies[0].send_imbalance, 1, 0.01);
}

TEST(ExportTest, JsonAndCsv) {
  const auto json = nlohmann::json::parse(RenderJson(MadeReport()));
  const auto& policies = json["points"][0]["policies"];
  EXPECT_EQ(policies[1]["best"], true);
  EXPECT_DOUBLE_EQ(policies[1]["fixed"]["peers"], 2e-4);
  EXPECT_DOUBLE_EQ(policies[1]["fixed"]["shares"], 5e-5);
  EXPECT_TRUE(policies[3]["seconds"].is_null());
  EXPECT_EQ(policies[4]["error"], "needs <spines>");
  const std::string csv = RenderCsv(MadeReport());
  EXPECT_THAT(csv, HasSubstr("zipf,4,8,2,fluid,1,1048576,0.001,ecmp,0,0.002,0.002,2,"));
  std::set<size_t> commas;
  size_t begin = 0;
  for (size_t end = csv.find('\n'); end != std::string::npos; end = csv.find('\n', begin)) {
    commas.insert(std::count(csv.begin() + begin, csv.begin() + end, ','));
    begin = end + 1;
  }
  EXPECT_EQ(commas.size(), 1u) << csv;
}

TEST(SvgTest, AxesHaveRoundTicks) {
  const Axis time = TimeAxis(2.13e-3);
  EXPECT_EQ(time.unit, "ms");
  EXPECT_EQ(time.Label(time.Ticks().back()), "2");
  EXPECT_EQ(time.Ticks().size(), 5u);
  EXPECT_EQ(PlainAxis(2.13, "").Ticks().back(), 2.5);
  EXPECT_EQ(TimeAxis(3e-7).unit, "ns");
  EXPECT_EQ(TimeAxis(0).unit, "s");
  EXPECT_EQ(TimeAxis(std::numeric_limits<double>::infinity()).unit, "s");
  EXPECT_EQ(Coordinate(1.5), "1.5");
  EXPECT_EQ(Coordinate(-0.001), "0");
  EXPECT_EQ(Coordinate(100), "100");
}

TEST(PageTest, IsSelfContainedAndEscapes) {
  const std::string page = RenderPage(MadeReport());
  EXPECT_THAT(page, HasSubstr("<title>made &amp; up</title>"));
  EXPECT_THAT(page, HasSubstr("needs &lt;spines&gt;"));
  for (const char* foreign : {"http:", "https:", "<script", "url(", "@import", "nan", ">inf<"}) {
    EXPECT_THAT(page, Not(HasSubstr(foreign))) << foreign;
  }
}

constexpr double kNever = std::numeric_limits<double>::infinity();

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Points that differ in one key; `policies` of each.
Report MadeSweep(const std::string& key, const std::vector<std::string>& values,
                 const std::vector<std::vector<PolicyResult>>& policies) {
  Report report;
  report.title = "sweep";
  report.swept = {key};
  for (size_t i = 0; i < values.size(); ++i) {
    PointResult point = MadeReport().points[0];
    point.values = {values[i]};
    point.policies = policies[i % policies.size()];
    report.points.push_back(point);
  }
  return report;
}

TEST(TextTest, ATableOfManyPointsTellsWhatTheyHaveInCommon) {
  const std::vector<std::string> values = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13"};
  Report report = MadeSweep("workload.zipf_exponent", values, {{Made("planner", 1e-3), Made("ecmp", kNever)}});
  EXPECT_THAT(RenderText(report, false),
              AllOf(HasSubstr("All points: zipf, 4 nodes x 8 GPUs, 2 rails of 400 Gbit/s, 1 exchange, 1.00 MiB between "
                              "nodes\nCompletion time over the bound\n"),
                    HasSubstr("* 1.000  never\n")));
  report.points[3].nodes = 8;
  report.points[3].bytes_between_nodes = 1;
  EXPECT_EQ(CommonFacts(report), "zipf, 8 GPUs a node, 2 rails of 400 Gbit/s, 1 exchange");
  report.points[4].rail_speeds = {50e9};
  EXPECT_THAT(CommonFacts(report), HasSubstr(", rails of 400 Gbit/s,"));
  report.points[4].rail_speeds = {50e9, 25e9};
  EXPECT_THAT(CommonFacts(report), HasSubstr(", 2 rails,"));
  EXPECT_THAT(RenderPage(report), HasSubstr("All points: zipf, 8 GPUs a node, 2 rails, 1 exchange"));
}

TEST(TextTest, NothingIsTheBestWhenNothingEnds) {
  Report report = MadeReport();
  report.points[0].policies = {Made("ecmp", kNever)};
  EXPECT_THAT(RenderText(report, false), Not(HasSubstr("the best")));
}

TEST(PageTest, TiesAreToldAsTies) {
  Report report = MadeReport();
  report.points[0].policies[2].network_seconds = 1.4101e-3;
  const std::string page = RenderPage(report);
  EXPECT_THAT(page, HasSubstr("<b>planner and ecmp</b><span>are the best</span>"));
  EXPECT_THAT(page, Not(HasSubstr("faster than"))) << "all others never end or cannot run";
  EXPECT_THAT(page, HasSubstr("<b>stuck</b><span>never ends</span>"));
  EXPECT_EQ(JoinNames({"a", "b", "c", "d"}), "a, b, c and d");
  EXPECT_EQ(JoinNames({"a", "b", "c", "d", "e"}), "a, b, c and 2 more");
}

TEST(PageTest, TheBestIsComparedWithPoliciesThatEnd) {
  Report report = MadeReport();
  EXPECT_THAT(RenderPage(report), HasSubstr("<b>planner</b><span>is the best</span>"));
  EXPECT_THAT(RenderPage(report), HasSubstr("<b>1.42 x</b><span>faster than ecmp, the next</span>"));
  report.points[0].policies[4] = Made("pinned", 2.82e-3);
  EXPECT_THAT(RenderPage(report),
              HasSubstr("<b>1.42 x</b><span>faster than ecmp, the next; 2.00 x than pinned, the slowest that ends<"));
}

TEST(PageTest, ACurveHasAGapWhereThePolicyNeverEnds) {
  const std::vector<std::vector<PolicyResult>> policies = {
      {Made("planner", 1e-3), Made("ecmp", 2e-3)},   {Made("planner", 1e-3), Made("ecmp", 2e-3)},
      {Made("planner", 1e-3), Made("ecmp", kNever)}, {Made("planner", 1e-3), Made("ecmp", 2e-3)},
      {Made("planner", 1e-3), Made("ecmp", 2e-3)},
  };
  Report report = MadeSweep("fabric.nodes", {"2", "4", "6", "8", "10"}, policies);
  const std::string plot = SweepCurves(report, 0);
  EXPECT_EQ(Count(plot, "<title>planner</title>"), 1u);
  EXPECT_EQ(Count(plot, "<title>ecmp</title>"), 2u) << "a line on both sides of the gap";
  EXPECT_EQ(Count(plot, "class=\"cross "), 1u);
  EXPECT_THAT(plot, AllOf(HasSubstr(">never</text>"), HasSubstr("ecmp, nodes 6: never ends")));
  EXPECT_THAT(SweepMap(report), HasSubstr("<td class=\"m16\">never</td>"));
  report.points[2].policies[1] = Made("ecmp", 2e-3);
  EXPECT_THAT(SweepCurves(report, 0), Not(HasSubstr("never")));
}

TEST(PageTest, LinesJoinNumbersOnly) {
  const std::vector<std::vector<PolicyResult>> policies = {{Made("planner", 1e-3)}};
  const std::string line = "class=\"curve";
  EXPECT_EQ(Count(SweepCurves(MadeSweep("fabric.changes", {"3:0s:200gbit", "3:1ms:0"}, policies), 0), line), 0u);
  EXPECT_EQ(Count(SweepCurves(MadeSweep("workload.kind", {"zipf", "uniform"}, policies), 0), line), 0u);
  EXPECT_EQ(Count(SweepCurves(MadeSweep("fabric.speed", {"200gbit", "400gbit"}, policies), 0), line), 1u);
  EXPECT_EQ(Count(SweepCurves(MadeSweep("fabric.nodes", {"2", "4"}, policies), 0), line), 1u);
}

TEST(ColorTest, WorseIsDarkerInLightAndBrighterInDark) {
  for (const Theme theme : {Theme::kLight, Theme::kDark}) {
    const double direction = theme == Theme::kLight ? -1 : 1;
    for (int shade = 1; shade <= 2 * kShades; ++shade) {
      EXPECT_GT(direction * (Luminance(HeatColor(shade, theme)) - Luminance(HeatColor(shade - 1, theme))), 0) << shade;
    }
    for (int shade = 2; shade <= kShades; ++shade) {
      EXPECT_GT(direction * (Luminance(RatioColor(shade, theme)) - Luminance(RatioColor(shade - 1, theme))), 0)
          << shade;
    }
    for (int shade = 1; shade <= kShades; ++shade) {
      const double color = Luminance(RatioColor(shade, theme)) + 0.05;
      const double text = Luminance(RatioTextColor(shade, theme)) + 0.05;
      EXPECT_GT(std::max(color, text) / std::min(color, text), 4.5) << "text on shade " << shade;
    }
  }
}

TEST(ColorTest, RatiosHaveShades) {
  EXPECT_EQ(RatioClass(1), "m0");
  EXPECT_EQ(RatioClass(1.0005), "m0");
  const std::vector<double> ratios = {1.027, 1.057, 1.2, 1.646, 2.058, 3.831, 6};
  for (size_t i = 0; i + 1 < ratios.size(); ++i) {
    EXPECT_LT(std::stoi(RatioClass(ratios[i]).substr(1)), std::stoi(RatioClass(ratios[i + 1]).substr(1))) << ratios[i];
  }
  EXPECT_EQ(RatioClass(6), "m16");
  EXPECT_EQ(RatioClass(kNever), "m16");
  EXPECT_EQ(HeatClass(0), "n0");
  EXPECT_EQ(HeatClass(1), "n16");
  EXPECT_EQ(HeatClass(1.5), "x6");
  EXPECT_EQ(HeatClass(100), "x16");
}

TEST(ColorTest, PoliciesDiffer) {
  const auto channel = [](const std::string& color, size_t i) {
    return std::stoi(color.substr(1 + 2 * i, 2), nullptr, 16);
  };
  for (const Theme theme : {Theme::kLight, Theme::kDark}) {
    for (size_t a = 0; a < kSeries; ++a) {
      for (size_t b = 0; b < a; ++b) {
        int difference = 0;
        for (size_t i = 0; i < 3; ++i) {
          difference += std::abs(channel(SeriesColor(a, theme), i) - channel(SeriesColor(b, theme), i));
        }
        EXPECT_GT(difference, 100) << SeriesColor(a, theme) << " and " << SeriesColor(b, theme);
      }
    }
  }
}

// A rail that dies half-way: policies that react carry all, the others never end.
TEST(RunTest, PairsOfWhichBytesNeverArriveAreNotDone) {
  for (const char* mode : {"fluid", "packet"}) {
    const Points points = *MakePoints(*ParseDocument(
        absl::StrCat("fabric: {nodes: 2, gpus: 2, rails: 2, changes: '1@0:20us:0'}\nnetwork: {mode: ", mode,
                     "}\nworkload: {kind: uniform, bytes_per_rank: 4MiB}\nfixed_cost: {count: false}\n"
                     "policy: [planner, planner_static]\n"),
        "a.yaml"));
    const RunOutcome outcome = RunPoints(points, {.title = "t", .detailed_points = 1});
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    const PolicyResult& planner = outcome.report.points[0].policies[0];
    const PolicyResult& fixed = outcome.report.points[0].policies[1];
    ASSERT_TRUE(planner.Ends()) << mode;
    ASSERT_FALSE(fixed.Ends()) << mode;
    EXPECT_GT(fixed.unfinished_bytes, 0u);
    ASSERT_EQ(planner.details->pair_ends.size(), 2u);
    ASSERT_EQ(fixed.details->pair_ends.size(), 2u);
    EXPECT_TRUE(std::isfinite(planner.details->pair_ends.back()));
    EXPECT_TRUE(std::isinf(fixed.details->pair_ends.back())) << mode;
    const std::string page = RenderPage(outcome.report);
    EXPECT_THAT(page, HasSubstr(">planner_static, never ends</text>"));
    EXPECT_THAT(page, Not(HasSubstr(">planner, never ends</text>")));
    EXPECT_THAT(EndCurves(outcome.report.points[0]), HasSubstr("planner_static never ends"));
    EXPECT_THAT(page, HasSubstr("Changes: rail 1 of node 0 is dead from 20.0 us on"));
    EXPECT_EQ(Count(RailStrips(outcome.report.points[0]), "class=\"change\""), 1u);
    // The top of the plot is y = 10: 100 % of the pairs.
    const std::string curves = EndCurves(outcome.report.points[0]);
    const size_t end = curves.find("<title>planner_static</title>");
    const std::string path = curves.substr(curves.rfind(" d=\"M", end), end - curves.rfind(" d=\"M", end));
    EXPECT_THAT(path, Not(HasSubstr(" 10 "))) << path;
    EXPECT_THAT(path, Not(HasSubstr(" 10\""))) << path;
  }
}

TEST(ProgressTest, TellsTheTimeLeft) {
  EXPECT_EQ(ProgressLine(0, 0), "[------------------------------] 0 %");
  EXPECT_EQ(ProgressLine(0.5, 3), "[###############---------------] 50 %, 3.00 s left");
  EXPECT_EQ(ProgressLine(2, 3), "[##############################] 100 %, 0 s left");
}

Points SmallSweep() {
  const absl::StatusOr<Document> document = ParseDocument(
      "fabric: {nodes: [2, 4], gpus: 4, rails: 4}\nworkload: {kind: [zipf, mixtral-8x7b]}\n"
      "model: {tokens: 256}\npolicy: [optimum, planner, pinned, fast]\n",
      "a.yaml");
  absl::StatusOr<Points> points = MakePoints(*document);
  EXPECT_TRUE(points.ok()) << points.status();
  return *std::move(points);
}

TEST(RunTest, ResultsDoNotDependOnTheThreads) {
  const Points points = SmallSweep();
  double last = 0;
  RunOptions options = {.title = "sweep", .threads = 1, .detailed_points = 2};
  options.progress = [&last](double share) { last = share; };
  const RunOutcome one = RunPoints(points, options);
  ASSERT_TRUE(one.status.ok()) << one.status;
  EXPECT_NEAR(last, 1, 1e-9);
  options.threads = 3;
  options.progress = nullptr;
  const RunOutcome several = RunPoints(points, options);
  EXPECT_EQ(RenderPage(one.report), RenderPage(several.report));
  EXPECT_EQ(RenderJson(one.report), RenderJson(several.report));
  EXPECT_EQ(RenderCsv(one.report), RenderCsv(several.report));
  EXPECT_TRUE(one.report.points[1].policies[0].iteration.has_value());
  EXPECT_FALSE(one.report.points[0].policies[0].iteration.has_value());
  EXPECT_TRUE(one.report.points[1].policies[0].details.has_value());
  EXPECT_FALSE(one.report.points[2].policies[0].details.has_value());
  for (const PointResult& point : one.report.points) {
    for (const PolicyResult& policy : point.policies) {
      EXPECT_GE(policy.network_seconds, 0.998 * policy.bound_seconds) << policy.policy;
    }
  }
  EXPECT_THAT(RenderPage(one.report), HasSubstr("nodes 4, mixtral-8x7b"));
}

TEST(RunTest, APolicyThatNeedsSpinesIsRefusedAlone) {
  const Points points = *MakePoints(
      *ParseDocument("fabric: {nodes: 2, spines: 0}\nworkload: uniform\npolicy: [planner, pinned]\n", "a.yaml"));
  const RunOutcome outcome = RunPoints(points, {.title = "t"});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.report.points[0].policies[0].error, "");
  EXPECT_THAT(outcome.report.points[0].policies[1].error, HasSubstr("spine"));
}

TEST(RunTest, TheFirstFailureIsReported) {
  const Points points =
      *MakePoints(*ParseDocument("workload: {file: /no/such/file}\nfabric: {nodes: [2, 3]}\n", "a.yaml"));
  const RunOutcome outcome = RunPoints(points, {.title = "t", .threads = 4});
  EXPECT_TRUE(absl::IsNotFound(outcome.status));
  EXPECT_EQ(outcome.failed_point, 0u);
}

}  // namespace
}  // namespace railsd::sim
