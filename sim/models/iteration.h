// The time of one iteration of training or inference, from the times of its exchanges.
#ifndef RAILSD_SIM_MODELS_ITERATION_H_
#define RAILSD_SIM_MODELS_ITERATION_H_

#include <cstdint>

#include "sim/models/model_shape.h"

namespace railsd::sim {

struct ComputeOptions {
  double device_flops = 989e12;  // of one GPU in a second; an H100 in bf16 without sparsity
  double efficiency = 0.4;       // part of it that a layer reaches
  double sequence = 4096;        // tokens that attention looks back on
  double overlap = 0;            // part of the shorter of compute and exchanges that the longer one hides, 0 to 1
  bool backward = true;          // training: twice the compute of the forward pass and both exchanges again
};

struct IterationTime {
  double seconds = 0;
  double compute_seconds = 0;
  double exchange_seconds = 0;  // dispatch and combine, hidden or not
  double hidden_seconds = 0;
};

// Time of one forward pass of a GPU's tokens through a layer. Does not model that GPUs with popular experts need
// longer.
double LayerComputeSeconds(const ModelShape& shape, uint64_t tokens_per_rank, const ComputeOptions& options);

// Layers x (compute + dispatch + combine - overlap).
IterationTime Iteration(const ModelShape& shape, uint64_t tokens_per_rank, double dispatch_seconds,
                        double combine_seconds, const ComputeOptions& options);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_MODELS_ITERATION_H_
