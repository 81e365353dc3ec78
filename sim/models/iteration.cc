#include "sim/models/iteration.h"

#include <algorithm>

namespace railsd::sim {

double LayerComputeSeconds(const ModelShape& shape, uint64_t tokens_per_rank, const ComputeOptions& options) {
  return static_cast<double>(tokens_per_rank) * LayerFlopsPerToken(shape, options.sequence) /
         (options.device_flops * options.efficiency);
}

IterationTime Iteration(const ModelShape& shape, uint64_t tokens_per_rank, double dispatch_seconds,
                        double combine_seconds, const ComputeOptions& options) {
  const double compute = LayerComputeSeconds(shape, tokens_per_rank, options);
  const double exchange = dispatch_seconds + combine_seconds;
  IterationTime time;
  // A backward pass computes gradients of inputs and of weights, so twice as much. The gradients of tokens need the
  // same two exchanges.
  for (const double times : {1.0, 2.0}) {
    if (times > 1 && !options.backward) break;
    time.compute_seconds += shape.layers * compute * times;
    time.exchange_seconds += shape.layers * exchange;
    time.hidden_seconds += shape.layers * options.overlap * std::min(compute * times, exchange);
  }
  time.seconds = time.compute_seconds + time.exchange_seconds - time.hidden_seconds;
  return time;
}

}  // namespace railsd::sim
