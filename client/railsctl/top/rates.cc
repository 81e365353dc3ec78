#include "client/railsctl/top/rates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/format.h"
#include "client/railsctl/inspect/render.h"
#include "client/railsctl/rail_counter.h"
#include "common/json/json.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

// Busiest rail over the mean: below kEven the use is even, above kUneven the alert in dashboards/ fires.
constexpr double kEven = 1.05, kUneven = 1.2;

double Rate(uint64_t before, uint64_t after, double seconds) {
  return after >= before ? static_cast<double>(after - before) / seconds : 0;
}

template <typename Repeated, typename Same>
auto Find(const Repeated& values, Same same) -> decltype(&*values.begin()) {
  const auto it = std::find_if(values.begin(), values.end(), same);
  return it == values.end() ? nullptr : &*it;
}

std::vector<Rates> PeerRates(const v1::PeerStatus& before, const v1::PeerStatus& after, double seconds) {
  std::vector<Rates> rates(static_cast<size_t>(std::max(after.rail_tx_bytes_size(), after.rail_rx_bytes_size())));
  const auto rate = [seconds](const auto& old, const auto& now, int rail) {
    return rail < old.size() && rail < now.size() ? Rate(old.Get(rail), now.Get(rail), seconds) : 0;
  };
  for (int rail = 0; rail < static_cast<int>(rates.size()); ++rail) {
    rates[static_cast<size_t>(rail)] = {rate(before.rail_tx_bytes(), after.rail_tx_bytes(), rail),
                                        rate(before.rail_rx_bytes(), after.rail_rx_bytes(), rail)};
  }
  return rates;
}

// Describes the balance in words.
Verdict Evenness(const v1::GetOverviewResponse& overview) {
  if (overview.balance_size() == 0) return {"not measured yet", Mark::kNone};
  const v1::BalanceWindow& window = overview.balance(std::min(1, overview.balance_size() - 1));  // as the page does
  const double worst = std::max(window.tx_max_over_mean(), window.rx_max_over_mean());
  // A daemon younger than the window has measured since its start.
  const double seconds = std::min(window.length_seconds(), std::floor(overview.status().uptime_seconds()));
  const std::string length = absl::FormatDuration(absl::Seconds(seconds));
  if (!(worst > 0)) return {absl::StrCat("idle for ", length), Mark::kNone};
  const bool uneven = worst >= kUneven;
  // Short enough for 80 columns even if a rail is drained. A second line would take one from the list of rails.
  return {absl::StrFormat("%s: busiest %.2f x mean (%s)",
                          uneven          ? "UNEVENLY used"
                          : worst < kEven ? "evenly used"
                                          : "nearly even",
                          worst, length),
          uneven ? Mark::kWarn : Mark::kGood};
}

void Add(const v1::JobReport& report, NodeJob* job) {
  job->ranks += 1;
  job->group = report.group();
  job->seq = report.job().seq();
  // Takes the most advanced state of the ranks. A failure of one rank counts for the job.
  job->state = std::max(job->state, report.state());
  if (report.state() == v1::JOB_STATE_FAILED && job->why.empty()) {
    job->why = absl::StrCat(CodeName(report.code()), ": ", report.message());
  }
  job->replayable = job->replayable || report.replayable();
  job->bytes += report.bytes_to_send() + report.bytes_to_receive();
  job->bytes_done += report.bytes_sent() + report.bytes_received();
  job->elapsed_seconds = std::max(job->elapsed_seconds, report.elapsed_seconds());
  job->ratio_to_bound = std::max(job->ratio_to_bound, report.ratio_to_bound());
}

}  // namespace

Rates NodeRates::Sum() const {
  Rates sum;
  for (const Rates& rail : rails) sum = {sum.tx + rail.tx, sum.rx + rail.rx};
  return sum;
}

NodeRates RatesBetween(const v1::GetOverviewResponse& before, const v1::GetOverviewResponse& after) {
  NodeRates out;
  out.rails.resize(static_cast<size_t>(after.rails_size()));
  out.peers.resize(static_cast<size_t>(after.peers_size()));
  const double seconds = after.time_seconds() - before.time_seconds();
  if (!(seconds > 0) || before.status().boot_id() != after.status().boot_id()) return out;
  out.seconds = seconds;
  for (size_t i = 0; i < out.rails.size(); ++i) {
    const v1::RailStatus& rail = after.rails(static_cast<int>(i));
    const v1::RailStatus* old =
        Find(before.rails(), [&rail](const v1::RailStatus& other) { return other.index() == rail.index(); });
    if (old == nullptr) continue;
    out.rails[i] = {Rate(Counter(*old, "tx_payload_bytes"), Counter(rail, "tx_payload_bytes"), seconds),
                    Rate(Counter(*old, "rx_payload_bytes"), Counter(rail, "rx_payload_bytes"), seconds)};
  }
  for (size_t i = 0; i < out.peers.size(); ++i) {
    const v1::PeerStatus& peer = after.peers(static_cast<int>(i));
    const v1::PeerStatus* old =
        Find(before.peers(), [&peer](const v1::PeerStatus& other) { return other.node() == peer.node(); });
    if (old != nullptr) out.peers[i] = PeerRates(*old, peer, seconds);
  }
  return out;
}

Verdict Judge(const v1::GetOverviewResponse& overview) {
  const int count = overview.rails_size();
  if (count == 0) return {"no rails", Mark::kBad};
  const auto peers_up = static_cast<uint32_t>(std::count_if(overview.peers().begin(), overview.peers().end(),
                                                            [](const v1::PeerStatus& peer) { return peer.up(); }));
  int up = 0, alone = 0;
  std::vector<std::string> others;
  for (const v1::RailStatus& rail : overview.rails()) {
    const Cell state = RailStateCell(rail);
    // A rail works if it misses only peers that are down.
    const bool works =
        state.mark == Mark::kGood || (state.text == "DEGRADED" && rail.peers_up() + rail.peers_drained() >= peers_up);
    up += works ? 1 : 0;
    alone += state.mark == Mark::kNone ? 1 : 0;
    if (!works && state.mark != Mark::kNone) others.push_back(absl::StrCat(rail.name(), " ", state.text));
  }
  if (alone == count) return {absl::StrCat(FormatCount(static_cast<uint64_t>(count), "rail"), ", no peers yet"), {}};
  const Verdict evenness = Evenness(overview);
  const std::string what = others.empty() ? "" : absl::StrCat(" (", absl::StrJoin(others, ", "), ")");
  return {absl::StrCat(up, " of ", FormatCount(static_cast<uint64_t>(count), "rail"), " up", what, ", ", evenness.text),
          up == 0                                      ? Mark::kBad
          : up < count || evenness.mark == Mark::kWarn ? Mark::kWarn
                                                       : Mark::kGood};
}

NodeJobs JobsOf(const v1::GetOverviewResponse& overview) {
  using Key = std::tuple<uint64_t, uint64_t, uint64_t>;
  const auto key = [](const v1::JobReport& report) {
    return Key(report.job().epoch().boot_id(), report.job().epoch().counter(), report.job().seq());
  };
  NodeJobs jobs;
  std::map<Key, size_t> running, finished;  // job to its index in `jobs`
  for (const v1::JobReport& report : overview.active()) {
    const auto [it, first] = running.try_emplace(key(report), jobs.running.size());
    if (first) jobs.running.emplace_back();
    Add(report, &jobs.running[it->second]);
  }
  for (const v1::JobReport& report : overview.finished()) {
    if (const auto it = running.find(key(report)); it != running.end()) {
      v1::JobReport part = report;  // other ranks of the job still run
      if (part.state() == v1::JOB_STATE_DONE) part.set_state(v1::JOB_STATE_RUNNING);
      Add(part, &jobs.running[it->second]);
      continue;
    }
    const auto [it, first] = finished.try_emplace(key(report), jobs.finished.size());
    if (first) jobs.finished.emplace_back();
    Add(report, &jobs.finished[it->second]);
  }
  return jobs;
}

nlohmann::ordered_json TopJson(const v1::GetOverviewResponse& before, const v1::GetOverviewResponse& after) {
  using Json = nlohmann::ordered_json;
  const NodeRates rates = RatesBetween(before, after);
  Json rails = Json::array(), peers = Json::array();
  for (size_t i = 0; i < rates.rails.size(); ++i) {
    rails.push_back({{"name", after.rails(static_cast<int>(i)).name()},
                     {"tx_bytes_per_second", rates.rails[i].tx},
                     {"rx_bytes_per_second", rates.rails[i].rx}});
  }
  for (size_t i = 0; i < rates.peers.size(); ++i) {
    Json tx = Json::array(), rx = Json::array();
    for (const Rates& rail : rates.peers[i]) {
      tx.push_back(rail.tx);
      rx.push_back(rail.rx);
    }
    peers.push_back({{"node", after.peers(static_cast<int>(i)).node()},
                     {"rail_tx_bytes_per_second", std::move(tx)},
                     {"rail_rx_bytes_per_second", std::move(rx)}});
  }
  Json out = MessageJson(after);
  out["verdict"] = Judge(after).text;
  out["rates"] = {{"seconds", rates.seconds}, {"rails", std::move(rails)}, {"peers", std::move(peers)}};
  return out;
}

}  // namespace rails::ctl
