// Sizes of mixture-of-experts models: what decides how many bytes an exchange has and how long a layer computes.
#ifndef RAILSD_SIM_MODELS_MODEL_SHAPE_H_
#define RAILSD_SIM_MODELS_MODEL_SHAPE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace railsd::sim {

struct ModelShape {
  std::string name;
  uint32_t hidden = 0;         // elements of a token
  uint32_t layers = 0;         // with experts
  uint32_t experts = 0;        // routed, in a layer
  uint32_t top_k = 0;          // experts of a token
  uint32_t expert_hidden = 0;  // elements between an expert's two projections
  uint32_t shared_experts = 0;
  uint32_t node_limit = 0;             // most nodes that a token is sent to; 0: no limit
  double attention_parameters = 0;     // of a layer
  double attention_head_elements = 0;  // heads x (elements of a key + elements of a value)
  double dispatch_bytes = 2;           // of an element
  double combine_bytes = 2;            // of an element
};

// Published models, from their configuration files:
//   mixtral-8x7b      arXiv 2401.04088 and mistralai/Mixtral-8x7B-v0.1
//   mixtral-8x22b     mistralai/Mixtral-8x22B-v0.1
//   deepseek-v3       arXiv 2412.19437: 58 of 61 layers have experts; a token is sent to 4 nodes at most, as FP8 with a
//                     scale of 4 bytes for 128 elements, and combined in bf16
//   qwen3-235b-a22b   arXiv 2505.09388 and Qwen/Qwen3-235B-A22B
std::vector<std::string_view> ModelNames();
// NOT_FOUND lists the names.
absl::StatusOr<ModelShape> FindModel(std::string_view name);

// Floating-point operations of a token in one forward pass through a layer; two for each multiply and add. `sequence`:
// tokens that attention looks back on, half of them on average.
double LayerFlopsPerToken(const ModelShape& shape, double sequence);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_MODELS_MODEL_SHAPE_H_
