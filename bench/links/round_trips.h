// One message at a time between the engines of two nodes, and the same between two threads of two bare sockets.
#ifndef RAILSD_BENCH_LINKS_ROUND_TRIPS_H_
#define RAILSD_BENCH_LINKS_ROUND_TRIPS_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace railsd::bench {

// `ways`: of "bare", "plain" and "tls", which take turns. For each: microseconds of half a round trip, and the median
// over the turns of its median over that of the first way.
nlohmann::json MeasureRoundTrips(int messages, const std::vector<std::string>& ways);

}  // namespace railsd::bench

#endif  // RAILSD_BENCH_LINKS_ROUND_TRIPS_H_
