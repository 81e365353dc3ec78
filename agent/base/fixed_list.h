// A list whose elements never move.
#ifndef RAILSD_AGENT_BASE_FIXED_LIST_H_
#define RAILSD_AGENT_BASE_FIXED_LIST_H_

#include <cstddef>
#include <memory>
#include <utility>

namespace railsd {

// One allocation for elements that can neither be copied nor moved. The capacity is given once.
template <typename T>
class FixedList {
 public:
  FixedList() = default;
  explicit FixedList(size_t capacity) : memory_(std::allocator<T>().allocate(capacity)), capacity_(capacity) {}
  FixedList(FixedList&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)),
        size_(std::exchange(other.size_, 0)) {}
  FixedList& operator=(FixedList&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(capacity_, other.capacity_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~FixedList() {
    std::destroy(begin(), end());
    if (memory_ != nullptr) std::allocator<T>().deallocate(memory_, capacity_);
  }

  // The list must have room.
  template <typename... Args>
  T& Add(Args&&... args) {
    return *std::construct_at(memory_ + size_++, std::forward<Args>(args)...);
  }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return memory_[i]; }
  const T& operator[](size_t i) const { return memory_[i]; }
  T* begin() { return memory_; }
  T* end() { return memory_ + size_; }
  const T* begin() const { return memory_; }
  const T* end() const { return memory_ + size_; }

 private:
  T* memory_ = nullptr;
  size_t capacity_ = 0, size_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_FIXED_LIST_H_
