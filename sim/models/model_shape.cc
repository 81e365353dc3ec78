#include "sim/models/model_shape.h"

#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace railsd::sim {
namespace {

// Parameters of attention with grouped keys and values: projections of queries, keys, values and the output.
constexpr double GroupedAttention(double hidden, double heads, double groups, double head) {
  return hidden * head * (2 * heads + 2 * groups);
}

// DeepSeek-V3's latent attention: queries through 1,536 elements, keys and values through 512, 64 rotary elements.
constexpr double kLatentAttention =
    7168.0 * 1536 + 1536.0 * 128 * (128 + 64) + 7168.0 * (512 + 64) + 512.0 * 128 * (128 + 128) + 128.0 * 128 * 7168;

const ModelShape kModels[] = {
    {.name = "mixtral-8x7b",
     .hidden = 4096,
     .layers = 32,
     .experts = 8,
     .top_k = 2,
     .expert_hidden = 14336,
     .attention_parameters = GroupedAttention(4096, 32, 8, 128),
     .attention_head_elements = 32 * 256},
    {.name = "mixtral-8x22b",
     .hidden = 6144,
     .layers = 56,
     .experts = 8,
     .top_k = 2,
     .expert_hidden = 16384,
     .attention_parameters = GroupedAttention(6144, 48, 8, 128),
     .attention_head_elements = 48 * 256},
    {.name = "deepseek-v3",
     .hidden = 7168,
     .layers = 58,
     .experts = 256,
     .top_k = 8,
     .expert_hidden = 2048,
     .shared_experts = 1,
     .node_limit = 4,
     .attention_parameters = kLatentAttention,
     .attention_head_elements = 128 * (192 + 128),
     .dispatch_bytes = 1 + 4.0 / 128},
    {.name = "qwen3-235b-a22b",
     .hidden = 4096,
     .layers = 94,
     .experts = 128,
     .top_k = 8,
     .expert_hidden = 1536,
     .attention_parameters = GroupedAttention(4096, 64, 4, 128),
     .attention_head_elements = 64 * 256},
};

}  // namespace

std::vector<std::string_view> ModelNames() {
  std::vector<std::string_view> names;
  for (const ModelShape& model : kModels) names.push_back(model.name);
  return names;
}

absl::StatusOr<ModelShape> FindModel(std::string_view name) {
  for (const ModelShape& model : kModels) {
    if (model.name == name) return model;
  }
  return absl::NotFoundError(
      absl::StrCat("\"", std::string(name), "\" is none of ",
                   absl::StrJoin(std::begin(kModels), std::end(kModels), ", ",
                                 [](std::string* out, const ModelShape& model) { absl::StrAppend(out, model.name); })));
}

double LayerFlopsPerToken(const ModelShape& shape, double sequence) {
  // An expert has three projections: gate, up and down.
  const double expert = 3.0 * shape.hidden * shape.expert_hidden;
  const double router = static_cast<double>(shape.hidden) * shape.experts;
  const double parameters = shape.attention_parameters + router + expert * (shape.top_k + shape.shared_experts);
  return 2 * parameters + 2 * shape.attention_head_elements * sequence / 2;
}

}  // namespace railsd::sim
