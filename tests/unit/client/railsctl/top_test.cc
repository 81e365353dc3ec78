// The frames of `railsctl top`, letter by letter, whatever a daemon says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/top/line.h"
#include "client/railsctl/top/rates.h"
#include "client/railsctl/top/render.h"
#include "tests/unit/client/railsctl/set_counter.h"

namespace rails::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::JobReport Job(uint64_t seq, uint32_t rank, v1::JobState state, uint64_t done, uint64_t of) {
  v1::JobReport job;
  job.set_group("moe");
  job.mutable_job()->set_seq(seq);
  job.mutable_job()->set_rank(rank);
  job.set_state(state);
  job.set_bytes_to_send(of);
  job.set_bytes_sent(done);
  job.set_elapsed_seconds(0.25);
  return job;
}

// n0 with two rails and the peers n1 and n2, `seconds` after it began to send 25 MB/s over rail0 and half over rail1.
v1::GetOverviewResponse Overview(double seconds) {
  v1::GetOverviewResponse overview;
  overview.set_time_seconds(1'700'000'000 + seconds);
  overview.mutable_status()->set_node("n0");
  overview.mutable_status()->set_boot_id(7);
  overview.mutable_status()->set_uptime_seconds(120 + seconds);
  for (uint32_t i = 0; i < 2; ++i) {
    v1::RailStatus* rail = overview.add_rails();
    rail->set_index(i);
    rail->set_name(absl::StrCat("rail", i));
    rail->set_speed_bytes_per_second(25'000'000);
    rail->set_peers_up(2);
    rail->set_peers_known(2);
    rail->mutable_health()->set_state(v1::RAIL_STATE_UP);
    SetCounter(rail, "tx_payload_bytes", static_cast<uint64_t>(seconds * 25e6 / (i + 1)));
    SetCounter(rail, "rx_payload_bytes", static_cast<uint64_t>(seconds * 5e6));
  }
  for (const char* node : {"n1", "n2"}) {
    v1::PeerStatus* peer = overview.add_peers();
    peer->set_node(node);
    peer->set_up(true);
    for (uint32_t i = 0; i < 2; ++i) {
      peer->add_rails_up(true);
      peer->add_rail_states(v1::RAIL_STATE_UP);
      peer->add_rail_tx_bytes(static_cast<uint64_t>(seconds * 12.5e6 / (i + 1)));
      peer->add_rail_rx_bytes(static_cast<uint64_t>(seconds * 2.5e6));
    }
  }
  for (const double length : {10, 60, 300}) {
    v1::BalanceWindow* window = overview.add_balance();
    window->set_length_seconds(length);
    window->set_tx_max_over_mean(length == 60 ? 1.333 : 1.01);
    window->set_rx_max_over_mean(1);
    window->set_planned_max_over_mean(1);
  }
  *overview.add_active() = Job(3, 0, v1::JOB_STATE_RUNNING, 3 << 20, 8 << 20);
  *overview.add_active() = Job(3, 1, v1::JOB_STATE_QUEUED, 1 << 20, 8 << 20);
  v1::JobReport* done = overview.add_finished();
  *done = Job(2, 1, v1::JOB_STATE_DONE, 1 << 20, 1 << 20);
  done->set_ratio_to_bound(1.034);
  *overview.add_finished() = Job(2, 0, v1::JOB_STATE_DONE, 1 << 20, 1 << 20);
  v1::JobReport* failed = overview.add_finished();
  *failed = Job(1, 0, v1::JOB_STATE_FAILED, 0, 1 << 20);
  failed->set_code(14);
  failed->set_message("node n2 is lost");
  return overview;
}

NodeView TwoAnswers() { return {"/run/railsd", Overview(1), Overview(2), {}, {}}; }

std::vector<std::string> LinesOf(const std::string& text) {
  EXPECT_TRUE(absl::EndsWith(text, "\n"));
  return absl::StrSplit(text.substr(0, text.size() - 1), '\n');
}

TEST(LineTest, NothingReachesTheTerminalThatMovesTheCursorOrIsNotOneColumn) {
  EXPECT_EQ(Printable("plain größe Привет █▏…"), "plain größe Привет █▏…");
  EXPECT_EQ(Printable(absl::string_view("\x1b[2J\r\n\0\x7f", 8)), "?[2J????");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "?2J")
      << "the control sequence introducer of eight bits";
  EXPECT_EQ(Printable("\xff\xc0\xaf\xe2\x82"), "?????") << "no UTF-8, an overlong letter, one that ends early";
  EXPECT_EQ(Printable("\xed\xa0\x80|\xf4\x90\x80\x80"), "?|?") << "a surrogate, and past the last character";
  EXPECT_EQ(Printable("日本e\xcc\x81\xe2\x80\xae"), "??e??") << "wide, combining, and right to left";
}

TEST(LineTest, ColumnsKeepTheirWidths) {
  EXPECT_EQ(Line().Left("abc", 5).Right("1", 3).Add("!").Render(80, false), "abc    1!");
  EXPECT_EQ(Line().Left("abcdef", 4).Right("äöüß", 3).Render(80, false), "abc…äö…");
  EXPECT_EQ(Line().Left("abc", 5).Left("", 9).Render(4, false), "abc");
  EXPECT_EQ(Line("abcdef", Mark::kBad).Add("ghi").Render(8, true), "\033[1;31mabcdef\033[0mg…");
  EXPECT_EQ(Line("abcdef").Render(6, false), "abcdef");
  EXPECT_EQ(Line("abcdef").Render(1, false), "…");
  EXPECT_EQ(Line("abcdef").Render(0, false), "");
  EXPECT_EQ(Clip("abc", 0), "");
}

TEST(RatesTest, ComeFromTwoAnswersOfOneDaemon) {
  const NodeRates rates = RatesBetween(Overview(1), Overview(3));
  EXPECT_DOUBLE_EQ(rates.seconds, 2);
  EXPECT_DOUBLE_EQ(rates.rails[0].tx, 25e6);
  EXPECT_DOUBLE_EQ(rates.rails[1].tx, 12.5e6);
  EXPECT_DOUBLE_EQ(rates.Sum().rx, 10e6);
  EXPECT_DOUBLE_EQ(rates.peers[1][0].tx, 12.5e6);
  EXPECT_DOUBLE_EQ(rates.peers[1][1].rx, 2.5e6);
  for (const auto& none : {RatesBetween({}, Overview(3)), RatesBetween(Overview(3), Overview(3)),
                           RatesBetween(Overview(4), Overview(3))}) {
    EXPECT_EQ(none.seconds, 0);
    EXPECT_EQ(none.rails.size(), 2u);
    EXPECT_EQ(none.Sum().tx, 0);
  }
}

TEST(RatesTest, AnswersThatDoNotFitGiveNoRates) {
  v1::GetOverviewResponse before = Overview(1), after = Overview(2);
  before.mutable_status()->set_boot_id(6);
  EXPECT_EQ(RatesBetween(before, after).Sum().tx, 0) << "another daemon";
  before = Overview(1);
  before.mutable_rails(0)->set_index(5);
  SetCounter(before.mutable_rails(1), "tx_payload_bytes", uint64_t{1} << 60);
  before.mutable_peers(0)->clear_rail_rx_bytes();
  after.mutable_peers(1)->clear_rail_tx_bytes();
  after.mutable_peers(1)->clear_rail_rx_bytes();
  const NodeRates rates = RatesBetween(before, after);
  EXPECT_EQ(rates.Sum().tx, 0);
  EXPECT_EQ(rates.peers[0][0].rx, 0);
  EXPECT_TRUE(rates.peers[1].empty());
}

TEST(RatesTest, Json) {
  const nlohmann::ordered_json json = TopJson(Overview(1), Overview(2));
  EXPECT_EQ(json["rates"].dump(),
            R"({"seconds":1.0,"rails":[{"name":"rail0","tx_bytes_per_second":25000000.0,)"
            R"("rx_bytes_per_second":5000000.0},{"name":"rail1","tx_bytes_per_second":12500000.0,)"
            R"("rx_bytes_per_second":5000000.0}],"peers":[{"node":"n1","rail_tx_bytes_per_second":)"
            R"([12500000.0,6250000.0],"rail_rx_bytes_per_second":[2500000.0,2500000.0]},{"node":"n2",)"
            R"("rail_tx_bytes_per_second":[12500000.0,6250000.0],"rail_rx_bytes_per_second":[2500000.0,2500000.0]}]})");
  EXPECT_EQ(json["verdict"], "2 of 2 rails up, UNEVENLY used: busiest 1.33 x mean (1m)");
  EXPECT_EQ(json["rails"][1]["name"], "rail1");
}

TEST(JudgeTest, SaysWhetherAllWorkAndEvenly) {
  v1::GetOverviewResponse overview = Overview(1);
  EXPECT_EQ(Judge(overview).mark, Mark::kWarn);
  overview.mutable_balance(1)->set_tx_max_over_mean(1.04);
  EXPECT_EQ(Judge(overview).text, "2 of 2 rails up, evenly used: busiest 1.04 x mean (1m)");
  EXPECT_EQ(Judge(overview).mark, Mark::kGood);
  v1::GetOverviewResponse young = overview;
  young.mutable_status()->set_uptime_seconds(6.75);
  EXPECT_THAT(Judge(young).text, HasSubstr("x mean (6s)"));
  overview.mutable_balance(1)->set_rx_max_over_mean(1.1);
  EXPECT_THAT(Judge(overview).text, HasSubstr("up, nearly even: busiest 1.10"));
  overview.mutable_balance(1)->clear_tx_max_over_mean();
  overview.mutable_balance(1)->clear_rx_max_over_mean();
  EXPECT_EQ(Judge(overview).text, "2 of 2 rails up, idle for 1m");
  overview.clear_balance();
  overview.mutable_rails(1)->mutable_health()->set_drained(true);
  EXPECT_EQ(Judge(overview).text, "1 of 2 rails up (rail1 DRAINED), not measured yet");
  EXPECT_EQ(Judge(overview).mark, Mark::kWarn);
  overview.mutable_rails(0)->mutable_health()->set_state(v1::RAIL_STATE_DOWN);
  EXPECT_EQ(Judge(overview).mark, Mark::kBad);
  overview = Overview(1);
  overview.clear_balance();
  overview.mutable_peers(1)->set_up(false);
  for (auto& rail : *overview.mutable_rails()) rail.set_peers_up(1);
  EXPECT_EQ(Judge(overview).text, "2 of 2 rails up, not measured yet") << "the rails are not to blame";
  overview.mutable_rails(1)->set_peers_up(0);
  EXPECT_EQ(Judge(overview).text, "1 of 2 rails up (rail1 DOWN), not measured yet");
  for (auto& rail : *overview.mutable_rails()) rail.set_peers_known(0);
  EXPECT_EQ(Judge(overview).text, "2 rails, no peers yet");
  EXPECT_EQ(Judge({}).text, "no rails");
}

TEST(RenderTop, Golden) {
  EXPECT_EQ(RenderTop(TwoAnswers(), {}, {}),
            "n0: 2 of 2 rails up, UNEVENLY used: busiest 1.33 x mean (1m)\n"
            "sending 300 Mbit/s, receiving 80.0 Mbit/s of 400 Mbit/s; 2 of 2 peers up\n"
            "\n"
            "RAIL   STATE         SENDING                 RECEIVING                        OF\n"
            "rail0  up         200 Mbit/s ████████████  40.0 Mbit/s ██▍            200 Mbit/s\n"
            "rail1  up         100 Mbit/s ██████        40.0 Mbit/s ██▍            200 Mbit/s\n"
            "\n"
            "BALANCE        10s      1m      5m   busiest rail over the mean; 1 is even\n"
            "sent         1.010   1.333   1.010\n"
            "received     1.000   1.000   1.000\n"
            "planned      1.000   1.000   1.000\n"
            "\n"
            "PEER  rail0 out/in       rail1 out/in\n"
            "n1    ████     ▊         ██       ▊\n"
            "n2    ████     ▊         ██       ▊\n"
            "\n"
            "JOB              RANKS  STATE     DONE                   BYTES     TIME  /BOUND\n"
            "moe #3               2  running   ███            25%  16.0 MiB   250 ms       -\n"
            "moe #2               2  done                          2.00 MiB   250 ms   1.034\n"
            "moe #1               1  FAILED    UNAVAILABLE: node n2 is lost\n"
            "\n"
            "22:13:22  up 2m 02s  every 1s\n");
}

// The first line is the answer, so it is never cut.
TEST(RenderTop, ALongVerdictGoesOn) {
  NodeView node = TwoAnswers();
  for (v1::RailStatus& rail : *node.after->mutable_rails()) rail.mutable_health()->set_drained(true);
  EXPECT_THAT(RenderTop(node, {}, {}),
              HasSubstr("n0: 0 of 2 rails up (rail0 DRAINED, rail1 DRAINED), UNEVENLY used: busiest 1.33\n"
                        "x mean (1m)\nsending "));
}

TEST(RenderTop, NothingIsWiderOrLongerThanTheTerminal) {
  NodeView node = TwoAnswers();
  for (auto* overview : {&*node.before, &*node.after}) {
    for (uint32_t i = 2; i < 24; ++i) {
      v1::RailStatus* rail = overview->add_rails();
      *rail = overview->rails(1);
      rail->set_index(i);
      rail->mutable_health()->set_why(std::string(300, 'w'));
    }
    for (int i = 0; i < 64; ++i) *overview->add_peers() = overview->peers(0);
    overview->mutable_peers(3)->set_up(false);
    overview->mutable_peers(3)->set_why("connection\nrefused");
    for (uint64_t i = 0; i < 60; ++i) *overview->add_finished() = Job(100 + i, 0, v1::JOB_STATE_DONE, 1, 1);
  }
  for (const size_t columns : {1, 2, 10, 40, 79, 80, 81, 132, 300}) {
    for (const size_t rows : {1, 2, 3, 5, 8, 12, 24, 50, 500}) {
      TopOptions options;
      options.columns = columns;
      options.rows = rows;
      const std::vector<std::string> lines = LinesOf(RenderTop(node, {"> n0: fine", "  n1: fine"}, options));
      EXPECT_LE(lines.size(), rows);
      for (const std::string& line : lines) EXPECT_LE(DisplayWidth(line), columns) << line;
    }
  }
  TopOptions options;
  options.rows = 24;
  const std::vector<std::string> lines = LinesOf(RenderTop(node, {}, options));
  EXPECT_EQ(lines.size(), 24u);
  EXPECT_THAT(lines, ::testing::Contains("… and 65 more peers"));
  EXPECT_THAT(lines, ::testing::Contains("… and 21 more rails"));
  EXPECT_THAT(lines, ::testing::Contains("… and 62 more jobs"));
  node.after->mutable_active(1)->set_group(std::string(40, 'g'));
  EXPECT_THAT(RenderTop(node, {}, {}), HasSubstr("\ngggggggggggg… #3     2  running"));
}

TEST(RenderTop, HostileNamesAreOnlyNames) {
  NodeView node = TwoAnswers();
  const std::string bad = "\x1b[2J\x1b]0;title\x07\r\n\xff" + std::string(5000, 'x');
  node.after->mutable_status()->set_node(bad);
  node.after->mutable_rails(0)->set_name(bad);
  node.after->mutable_rails(0)->mutable_health()->set_why(bad);
  node.after->mutable_peers(0)->set_node(bad);
  node.after->mutable_peers(1)->set_up(false);
  node.after->mutable_peers(1)->set_why(bad);
  node.after->mutable_active(0)->set_group(bad);
  node.after->mutable_finished(2)->set_message(bad);
  const std::string text = RenderTop(node, {}, {});
  for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  for (const std::string& line : LinesOf(text)) EXPECT_LE(DisplayWidth(line), 80u) << line;
  EXPECT_EQ(LinesOf(text).size(), LinesOf(RenderTop(TwoAnswers(), {}, {})).size() + 1) << "why rail0 is as it is";
}

TEST(RenderTop, StatesStandOut) {
  NodeView node = TwoAnswers();
  node.after->mutable_rails(1)->mutable_health()->set_drained(true);
  node.after->mutable_rails(1)->mutable_health()->set_why("drained by an operator");
  node.after->mutable_peers(0)->set_rail_states(1, v1::RAIL_STATE_PROBING);
  node.after->mutable_peers(1)->set_up(false);
  node.after->mutable_peers(1)->set_why("connection refused");
  node.after->mutable_status()->set_draining(true);
  TopOptions options;
  options.color = true;
  options.paused = true;
  const std::string text = RenderTop(node, {}, options);
  EXPECT_THAT(text, StartsWith("\033[1;31mn0: DRAINING, new jobs are refused; 1 of 2 rails up (rail1 DRAINED), "));
  EXPECT_THAT(text, HasSubstr("rail1  \033[33mDRAINED\033[0m "));
  EXPECT_THAT(text, HasSubstr("\n       \033[33mdrained by an operator\033[0m\n"));
  EXPECT_THAT(text, HasSubstr("\033[33mPROBING\033[0m\n"));
  EXPECT_THAT(text, HasSubstr("n2    \033[1;31mDOWN\033[0m  connection refused\n"));
  EXPECT_THAT(text, HasSubstr("\033[33m1 of 2 peers up\033[0m"));
  EXPECT_THAT(text, HasSubstr("\033[33mPAUSED\033[0m"));
}

TEST(RenderTop, ManyRailsKeepShortStates) {
  NodeView node = TwoAnswers();
  for (auto* overview : {&*node.before, &*node.after}) {
    for (uint32_t i = 2; i < 16; ++i) {
      *overview->add_rails() = overview->rails(1);
      overview->mutable_peers(0)->add_rails_up(i != 3);
    }
  }
  EXPECT_THAT(RenderTop(node, {}, {}), HasSubstr(" DOW "));
}

TEST(RenderTop, SaysThatNobodyAnswersAndKeepsWhatWasKnown) {
  NodeView node = {"/run/railsd", {}, {}, {}, {}};
  EXPECT_THAT(RenderTop(node, {}, {}), StartsWith("/run/railsd: waiting for its first answer\n"));
  node.status = absl::UnavailableError(
      "/run/railsd/operator.sock: No such file or directory; is railsd running, and is "
      "--socket-dir its socket directory?");
  EXPECT_EQ(RenderTop(node, {}, {}),
            "/run/railsd: NO ANSWER for 0, trying again\n"
            "/run/railsd/operator.sock: No such file or directory; is railsd running, and is\n"
            "--socket-dir its socket directory?\n"
            "\n"
            "every 1s\n");
  node = TwoAnswers();
  node.status = absl::UnavailableError("gone");
  node.silent = absl::Milliseconds(12'345);
  const std::string text = RenderTop(node, {}, {});
  EXPECT_THAT(text, StartsWith("n0: NO ANSWER for 12s, trying again; below is its last answer\ngone\n\nRAIL"));
  EXPECT_THAT(text, HasSubstr("moe #3"));
}

TEST(RenderTop, JobsOfRanksThatEndedGoOnWithTheOthers) {
  NodeView node = TwoAnswers();
  *node.after->add_finished() = Job(3, 2, v1::JOB_STATE_DONE, 8 << 20, 8 << 20);
  const NodeJobs jobs = JobsOf(*node.after);
  ASSERT_EQ(jobs.running.size(), 1u);
  EXPECT_EQ(jobs.running[0].ranks, 3u);
  EXPECT_EQ(jobs.running[0].state, v1::JOB_STATE_RUNNING);
  EXPECT_EQ(jobs.running[0].bytes_done, 12u << 20);
  EXPECT_EQ(jobs.finished.size(), 2u);
  node.after->clear_active();
  node.after->clear_finished();
  node.after->clear_peers();
  EXPECT_THAT(RenderTop(node, {}, {}), HasSubstr("\nNO PEERS\n\nNO JOBS\n"));
}

}  // namespace
}  // namespace rails::ctl
