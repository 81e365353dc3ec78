#include "sim/policies/birkhoff.h"

#include <algorithm>

namespace railsd::sim {
namespace {

constexpr uint32_t kFree = UINT32_MAX;

// Pads rows and columns, in order, up to the largest sum.
void Pad(std::vector<uint64_t>* cells, size_t size) {
  std::vector<uint64_t> rows(size, 0), columns(size, 0);
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) {
      rows[i] += (*cells)[i * size + j];
      columns[j] += (*cells)[i * size + j];
    }
  }
  const uint64_t most =
      std::max(*std::max_element(rows.begin(), rows.end()), *std::max_element(columns.begin(), columns.end()));
  size_t j = 0;
  for (size_t i = 0; i < size; ++i) {
    while (rows[i] < most) {
      while (columns[j] == most) ++j;
      const uint64_t more = std::min(most - rows[i], most - columns[j]);
      (*cells)[i * size + j] += more;
      rows[i] += more;
      columns[j] += more;
    }
  }
}

// A perfect matching of sources to destinations over the cells that are not zero, kept from stage to stage.
class Matching {
 public:
  Matching(const std::vector<uint64_t>& cells, size_t size)
      : cells_(cells), size_(size), destinations_(size, kFree), sources_(size, kFree) {}

  const std::vector<uint32_t>& destinations() const { return destinations_; }
  void Release(size_t source) {
    sources_[destinations_[source]] = kFree;
    destinations_[source] = kFree;
  }
  // Matches the sources that are free. A matrix of equal sums always has such a matching.
  void Complete() {
    for (uint32_t source = 0; source < size_; ++source) {
      if (destinations_[source] != kFree) continue;
      seen_.assign(size_, false);
      Augment(source);
    }
  }

 private:
  bool Augment(uint32_t source) {
    for (uint32_t j = 0; j < size_; ++j) {
      if (cells_[source * size_ + j] == 0 || seen_[j]) continue;
      seen_[j] = true;
      if (sources_[j] != kFree && !Augment(sources_[j])) continue;
      sources_[j] = source;
      destinations_[source] = j;
      return true;
    }
    return false;
  }

  const std::vector<uint64_t>& cells_;
  const size_t size_;
  std::vector<uint32_t> destinations_, sources_;
  std::vector<bool> seen_;
};

}  // namespace

std::vector<Stage> Decompose(std::vector<uint64_t> cells, size_t size) {
  std::vector<Stage> stages;
  if (size == 0) return stages;
  Pad(&cells, size);
  uint64_t left = 0;
  for (size_t j = 0; j < size; ++j) left += cells[j];
  Matching matching(cells, size);
  while (left > 0) {
    matching.Complete();
    const std::vector<uint32_t>& destinations = matching.destinations();
    uint64_t bytes = left;
    for (size_t i = 0; i < size; ++i) bytes = std::min(bytes, cells[i * size + destinations[i]]);
    stages.push_back({bytes, destinations});
    left -= bytes;
    for (size_t i = 0; i < size; ++i) {
      uint64_t& cell = cells[i * size + destinations[i]];
      cell -= bytes;
      if (cell == 0) matching.Release(i);
    }
  }
  return stages;
}

}  // namespace railsd::sim
