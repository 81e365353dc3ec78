// Finds the smallest explanation for the pairs of nodes that do not reach each other.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_GRAPH_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace rails::ctl::doctor {

enum class Edge : uint8_t { kUnknown, kGood, kBad };

// Each bad edge belongs to one member.
struct Separation {
  bool everywhere = false;                 // no good edge among three nodes or more
  std::vector<size_t> alone;               // nodes with two bad edges or more, and no good one
  std::vector<std::vector<size_t>> parts;  // sets of two nodes or more without a good edge between the sets; or none
  std::vector<std::pair<size_t, size_t>> pairs;  // all other bad edges, the lower number first
};

// `edge(a, b)` is called for a < b.
Separation Separate(size_t nodes, absl::FunctionRef<Edge(size_t a, size_t b)> edge);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_GRAPH_H_
