// Measures links between daemons: hubs over loopback, with a stand-in for the agent.
//
//   bench_links round_trips [MESSAGES] [bare|plain|tls]...
//   bench_links many [LINKS] [RATE] [SECONDS] [plain|tls]
//
// Prints one JSON object.
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "bench/links/echo_node.h"
#include "bench/links/many_links.h"
#include "bench/links/round_trips.h"

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as in the daemon
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto word = [&](size_t i, const char* otherwise) { return i < words.size() ? words[i] : otherwise; };
  nlohmann::json report;
  if (word(0, "") == "round_trips") {
    std::vector<std::string> ways(words.begin() + static_cast<ptrdiff_t>(std::min<size_t>(2, words.size())),
                                  words.end());
    if (ways.empty()) ways = {"bare", "plain", "tls"};
    report = railsd::bench::MeasureRoundTrips(std::atoi(word(1, "20000").c_str()), ways);
  } else if (word(0, "") == "many") {
    report = railsd::bench::MeasureManyLinks(std::atoi(word(1, "127").c_str()), std::atoi(word(2, "100").c_str()),
                                             std::atof(word(3, "5").c_str()), word(4, "plain") == "tls");
  } else {
    railsd::bench::Must(absl::InvalidArgumentError("round_trips or many"));
  }
  std::cout << report.dump(2) << "\n";
  return 0;
}
