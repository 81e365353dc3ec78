// Visits every state of a model, breadth first, and prints the shortest trace to a violation.
//
// A model is a struct with
//
//   State                           plain bytes without padding
//   Roots(std::vector<State>*)      the states in which a run begins
//   AddMoves(state, Moves<State>*)  the moves that are possible in a state
//   Canonical(state)                one state for all that differ in names only
//   Violation(state)                the invariant that the state breaks, or nullptr
//   Stuck(state)                    the property that the state breaks if no move must follow, or nullptr
//   Describe(state)                 the state as text, for the beginning of a trace
//
// Visited states are kept as 64-bit hashes: with 4e7 states, the chance that one of them is missed is 1 in 20,000.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace model {

// A move that must happen sooner or later, or one that may never happen (a failure, an abort).
enum Certainty : unsigned char { kMust, kMay };

template <typename State>
struct Move {
  State next;
  Certainty certainty;
  const char* violation;  // a property that the move breaks, or nullptr
  std::string text;
};

// Collects the moves out of one state.
template <typename State>
class Moves {
 public:
  explicit Moves(bool with_text) : with_text_(with_text) {}

  // `text` is a function that returns a string; it is called only for traces.
  template <typename Text>
  void Add(const State& next, Certainty certainty, const char* violation, const Text& text) {
    list_.push_back(Move<State>{next, certainty, violation, with_text_ ? text() : std::string()});
  }
  void Clear() { list_.clear(); }
  const std::vector<Move<State>>& list() const { return list_; }

 private:
  const bool with_text_;
  std::vector<Move<State>> list_;
};

// Hashes plain bytes; never 0.
inline std::uint64_t HashBytes(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 0x243f6a8885a308d3u;
  std::size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + at, 8);
    hash = (hash ^ word) * 0x9fb21c651e98df25u;
    hash ^= hash >> 32;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, bytes + at, size - at);
  hash = (hash ^ word) * 0x9fb21c651e98df25u;
  hash ^= hash >> 29;
  hash *= 0xd6e8feb86659fd93u;
  hash ^= hash >> 32;
  return hash == 0 ? 1 : hash;
}

// A set of hashes that remembers in which order, and from which earlier member, each was found.
class Visited {
 public:
  Visited() : slots_(std::size_t{1} << 16, 0), hashes_(1, 0), parents_(1, 0) {}

  // Returns false if the hash is a member already.
  bool Insert(std::uint64_t hash, std::uint32_t parent) {
    if (hashes_.size() * 2 > slots_.size()) Grow();
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at] != 0) {
      if (hashes_[slots_[at]] == hash) return false;
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = static_cast<std::uint32_t>(hashes_.size());
    hashes_.push_back(hash);
    parents_.push_back(parent);
    return true;
  }

  std::size_t size() const { return hashes_.size() - 1; }

  // Hashes from a root to the member with this index, both included. Indexes count from 1, in the order of insertion.
  std::vector<std::uint64_t> PathTo(std::uint32_t index) const {
    std::vector<std::uint64_t> path;
    for (; index != 0; index = parents_[index]) path.push_back(hashes_[index]);
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  void Grow() {
    std::vector<std::uint32_t> larger(slots_.size() * 2, 0);
    for (std::uint32_t index = 1; index < hashes_.size(); ++index) {
      std::size_t at = hashes_[index] & (larger.size() - 1);
      while (larger[at] != 0) at = (at + 1) & (larger.size() - 1);
      larger[at] = index;
    }
    slots_.swap(larger);
  }

  std::vector<std::uint32_t> slots_;
  std::vector<std::uint64_t> hashes_;
  std::vector<std::uint32_t> parents_;
};

template <typename Model>
class Search {
 public:
  using State = typename Model::State;
  static_assert(std::has_unique_object_representations_v<State>);

  // Returns 0 if every property holds, 1 if one is broken, 2 if there are more than `limit` states.
  int Run(std::uint64_t limit, bool with_trace) {
    const auto begin = std::chrono::steady_clock::now();
    const bool finished = Explore(limit);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const char* result = violation_ != nullptr ? violation_ : finished ? "holds" : "not finished";
    std::printf("%s: %zu states, %llu moves, %llu ends, depth %d, %.1f s\n", result, visited_.size(),
                static_cast<unsigned long long>(moves_), static_cast<unsigned long long>(ends_), depth_, seconds);
    if (violation_ != nullptr && with_trace) PrintTrace();
    return violation_ != nullptr ? 1 : finished ? 0 : 2;
  }

 private:
  static std::uint64_t HashOf(const State& canonical) { return HashBytes(&canonical, sizeof canonical); }

  bool Explore(std::uint64_t limit) {
    std::vector<State> layer;
    std::vector<State> following;
    Model::Roots(&following);
    for (const State& root : following) {
      const State canonical = Model::Canonical(root);
      if (visited_.Insert(HashOf(canonical), 0)) layer.push_back(canonical);
    }
    std::uint32_t first = 1;
    while (!layer.empty() && violation_ == nullptr) {
      if (visited_.size() > limit) return false;
      following.clear();
      for (std::size_t at = 0; at < layer.size() && violation_ == nullptr; ++at) {
        Expand(layer[at], static_cast<std::uint32_t>(first + at), &following);
      }
      first += static_cast<std::uint32_t>(layer.size());
      std::swap(layer, following);
      ++depth_;
    }
    return true;
  }

  void Expand(const State& state, std::uint32_t index, std::vector<State>* following) {
    buffer_.Clear();
    Model::AddMoves(state, &buffer_);
    bool must = false;
    for (const Move<State>& move : buffer_.list()) {
      ++moves_;
      must |= move.certainty == kMust;
      const State next = Model::Canonical(move.next);
      const bool fresh = move.violation == nullptr && visited_.Insert(HashOf(next), index);
      const char* violation = fresh ? Model::Violation(next) : move.violation;
      if (violation != nullptr) return Report(violation, index, fresh, HashOf(next));
      if (fresh) following->push_back(next);
    }
    if (must) return;
    ++ends_;
    if (const char* violation = Model::Stuck(state)) Report(violation, index, false, 0);
  }

  void Report(const char* violation, std::uint32_t index, bool in_state, std::uint64_t hash) {
    violation_ = violation;
    path_ = visited_.PathTo(index);
    if (in_state) path_.push_back(hash);
  }

  // Walks the path again without renaming anything, so that names stay the same from the first line to the last.
  void PrintTrace() const {
    std::vector<State> roots;
    Model::Roots(&roots);
    const auto root = std::find_if(roots.begin(), roots.end(),
                                   [&](const State& state) { return HashOf(Model::Canonical(state)) == path_[0]; });
    State state = *root;
    std::printf("     %s\n", Model::Describe(state).c_str());
    for (std::size_t at = 1; at <= path_.size(); ++at) {
      Moves<State> moves(true);
      Model::AddMoves(state, &moves);
      const auto found = std::find_if(moves.list().begin(), moves.list().end(), [&](const Move<State>& move) {
        if (at == path_.size()) return move.violation == violation_;
        return move.violation == nullptr && HashOf(Model::Canonical(move.next)) == path_[at];
      });
      if (found == moves.list().end()) break;
      std::printf("%3zu  %s\n", at, found->text.c_str());
      state = found->next;
    }
    std::printf("     %s\n", violation_);
  }

  Visited visited_;
  Moves<State> buffer_{false};
  const char* violation_ = nullptr;
  std::vector<std::uint64_t> path_;
  std::uint64_t moves_ = 0;
  std::uint64_t ends_ = 0;
  int depth_ = 0;
};

// Reads `name=number` into a number. Returns false if the argument has another name or the number is out of range.
inline bool ReadNumber(std::string_view argument, std::string_view name, int least, int most, int* number) {
  if (argument.size() <= name.size() || argument.substr(0, name.size()) != name || argument[name.size()] != '=') {
    return false;
  }
  int value = 0;
  for (const char digit : argument.substr(name.size() + 1)) {
    if (digit < '0' || digit > '9' || value > 100'000'000) return false;
    value = value * 10 + (digit - '0');
  }
  *number = value;
  return value >= least && value <= most;
}

}  // namespace model
