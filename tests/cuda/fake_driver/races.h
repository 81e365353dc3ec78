// Vector clocks, and the accesses to memory that they order.
#ifndef RAILS_TESTS_CUDA_FAKE_DRIVER_RACES_H_
#define RAILS_TESTS_CUDA_FAKE_DRIVER_RACES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fake_cuda {

// Components of a clock. All threads of the host are one component; each stream has its own, from kFirstStream on.
inline constexpr size_t kHostComponent = 0;
// Counts the moments at which a stream may learn that the host has written: every call that enqueues work, every end of
// a host function, every satisfied wait for a value. No access belongs to it.
inline constexpr size_t kReleaseComponent = 1;
inline constexpr size_t kFirstStream = 2;

// Counts, for each component, its steps that happen before the clock's owner.
class Clock {
 public:
  uint64_t operator[](size_t component) const { return component < steps_.size() ? steps_[component] : 0; }
  void Set(size_t component, uint64_t step);
  void Tick(size_t component) { Set(component, (*this)[component] + 1); }
  void Join(const Clock& other);

 private:
  std::vector<uint64_t> steps_;
};

// One access, named by a step of its component. Step 0 is no access.
struct Access {
  size_t component = 0;
  uint64_t step = 0;
  std::shared_ptr<const std::string> text;
};

struct Conflict {
  uint64_t begin = 0, end = 0;
  bool earlier_writes = false;
  std::string earlier;
};

// The last write and the reads after it, for every byte of a range of memory.
class History {
 public:
  // Records the access. Returns the first earlier access that conflicts with it and that `clock` does not include.
  std::optional<Conflict> Add(uint64_t begin, uint64_t end, bool write, const Access& access, const Clock& clock);
  // As Add, without recording the access.
  std::optional<Conflict> Find(uint64_t begin, uint64_t end, bool write, const Clock& clock) const;
  void Erase(uint64_t begin, uint64_t end);

 private:
  struct Segment {
    uint64_t end = 0;
    Access write;
    std::vector<Access> reads;  // at most one a component
  };
  using Segments = std::map<uint64_t, Segment>;  // by their first byte

  static std::optional<Conflict> Compare(Segments::const_iterator segment, bool write, const Clock& clock);
  // Makes `at` a boundary of segments, if it lies within one.
  void Split(uint64_t at);

  Segments segments_;
};

}  // namespace fake_cuda

#endif  // RAILS_TESTS_CUDA_FAKE_DRIVER_RACES_H_
