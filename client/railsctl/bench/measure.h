// The measurements of `bench`. Timed parts neither fill nor check; a checked exchange runs before and after them.
#ifndef RAILS_RAILSCTL_BENCH_MEASURE_H_
#define RAILS_RAILSCTL_BENCH_MEASURE_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/railsctl/replay/coordinator.h"
#include "client/railsctl/replay/exchange.h"

namespace rails::ctl {

// Seconds, sorted.
class Samples {
 public:
  void Add(double seconds);
  size_t size() const { return sorted_.size(); }
  // The smallest sample that at least `part` of all samples do not exceed. 0 without samples.
  double Quantile(double part) const;
  double Median() const { return Quantile(0.5); }
  double Min() const { return Quantile(0); }
  double Max() const { return Quantile(1); }

 private:
  std::vector<double> sorted_;
};

// Where a job's time goes, for each job of each rank. The parts follow one another and add up to the whole.
struct Hops {
  Samples outside;  // in the client, and on the way into the daemon and out of it
  Samples ranks;    // until all ranks of the node had submitted
  Samples peers;    // until every other node was ready
  Samples bytes;    // until all bytes were there and acknowledged
};

struct Measurement {
  Samples phase;        // from the first rank's submission to the last rank's end
  Samples submit;       // one rank's call until the daemon has accepted
  Samples first_chunk;  // from rank 0's call until a rail had the first chunk, at most
  Samples rank_done;    // rank 0's call until its end
  Hops hops;
  ByteCounts bytes;     // of one exchange
  uint64_t ranges = 0;  // send ranges in rank 0's submission
  double bound_seconds = 0;
  uint64_t wrong_bytes = 0;  // of the checked exchanges
};

struct MeasureRequest {
  workload::TrafficMatrix ranks;
  uint32_t ranks_per_node = 1;
  uint32_t ranges_per_flow = 1;
  uint32_t iterations = 10;
  uint32_t warmup = 1;
  bool prepared = false;    // by Group::Prepare()
  bool rank0_last = false;  // rank 0 submits after the others have been accepted
  std::vector<double> node_speeds;
};

// `job`: number of the next payload; incremented for each. Errors as for Coordinator.
absl::StatusOr<Measurement> Measure(const MeasureRequest& request, Coordinator* coordinator, uint64_t* job);

// Every rank sends `bytes_per_rank`, in equal parts to all ranks, itself included.
workload::TrafficMatrix UniformMatrix(size_t ranks, uint64_t bytes_per_rank);
// Rank 0 sends `bytes` in equal parts to all ranks of other nodes. With a single node, to all other ranks.
workload::TrafficMatrix FromRankZero(size_t ranks, uint32_t ranks_per_node, uint64_t bytes);

struct BenchReport {
  uint32_t nodes = 0, ranks_per_node = 0;
  std::optional<Measurement> throughput, small_jobs, submit;

  uint64_t wrong_bytes() const;
};

nlohmann::ordered_json BenchJson(const BenchReport& report);
// `explain`: with the hops of small jobs.
std::string RenderBench(const BenchReport& report, bool explain, bool color);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_BENCH_MEASURE_H_
