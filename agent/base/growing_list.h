// A list that grows and whose elements never move.
#ifndef RAILSD_AGENT_BASE_GROWING_LIST_H_
#define RAILSD_AGENT_BASE_GROWING_LIST_H_

#include <bit>
#include <cstddef>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "agent/base/fixed_list.h"

namespace railsd {

// Elements are in blocks, each twice as large as the one before: n elements take log2(n / kFirst) allocations.
template <typename T, size_t kFirst>
class GrowingList {
 public:
  size_t size() const { return size_; }
  T& Add(T value) {
    const size_t block = BlockOf(size_);
    if (block == blocks_.size()) blocks_.push_back(FixedList<T>(kFirst << block));
    ++size_;
    return blocks_[block].Add(std::move(value));
  }
  const T& operator[](size_t i) const {
    const size_t block = BlockOf(i);
    return blocks_[block][i - Begin(block)];
  }

 private:
  static constexpr size_t BlockOf(size_t i) { return static_cast<size_t>(std::bit_width(i / kFirst + 1)) - 1; }
  static constexpr size_t Begin(size_t block) { return kFirst * ((size_t{1} << block) - 1); }

  absl::InlinedVector<FixedList<T>, 1> blocks_;
  size_t size_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_GROWING_LIST_H_
