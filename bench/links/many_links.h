// Measures a daemon's hub with links to many nodes.
#ifndef RAILSD_BENCH_LINKS_MANY_LINKS_H_
#define RAILSD_BENCH_LINKS_MANY_LINKS_H_

#include <nlohmann/json_fwd.hpp>

namespace railsd::bench {

// Runs one hub in this process and its peers' hubs in another. First all are idle for `seconds`. Then each peer sends
// `rate` messages a second for `seconds`, and the hub's engine answers each. Call it before the process has threads.
nlohmann::json MeasureManyLinks(int links, int rate, double seconds, bool tls);

}  // namespace railsd::bench

#endif  // RAILSD_BENCH_LINKS_MANY_LINKS_H_
