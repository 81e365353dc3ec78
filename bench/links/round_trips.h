// Measures one message at a time between the engines of two nodes, and between two threads over bare sockets.
#ifndef RAILSD_BENCH_LINKS_ROUND_TRIPS_H_
#define RAILSD_BENCH_LINKS_ROUND_TRIPS_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace railsd::bench {

// `ways`: from "bare", "plain" and "tls"; they take turns. Returns for each way the microseconds of half a round trip,
// and its ratio to the first way (the median over turns of the ratio of medians).
nlohmann::json MeasureRoundTrips(int messages, const std::vector<std::string>& ways);

}  // namespace railsd::bench

#endif  // RAILSD_BENCH_LINKS_ROUND_TRIPS_H_
