// Keys of numbered entries, with fast access to the largest key.
#ifndef RAILSD_AGENT_RAILS_TOURNAMENT_H_
#define RAILSD_AGENT_RAILS_TOURNAMENT_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace railsd {

// A binary tree in which each node has the larger key of its two children. A change costs O(log entries). Entries that
// were never set have Key{}; no key may be smaller.
template <typename Key>
class Tournament {
 public:
  const Key& largest() const { return nodes_[1]; }

  void Set(size_t entry, const Key& key) {
    if (entry >= leaves_) Grow(entry);
    size_t at = leaves_ + entry;
    nodes_[at] = key;
    while ((at /= 2) > 0) {
      const Key& larger = std::max(nodes_[2 * at], nodes_[2 * at + 1]);
      if (nodes_[at] == larger) return;
      nodes_[at] = larger;
    }
  }

  // The first entry with the largest key, from `start` on and then from the beginning.
  size_t Find(size_t start) const {
    size_t at = start < leaves_ ? leaves_ + start : 1;
    while (nodes_[at] < largest()) {
      while (at % 2 == 1) at /= 2;  // to the next subtree on the right; 0: there is none
      at += 1;
    }
    while (at < leaves_) at = 2 * at + (nodes_[2 * at] < largest());
    return at - leaves_;
  }

 private:
  void Grow(size_t entry) {
    const std::vector<Key> before(nodes_.begin() + static_cast<ptrdiff_t>(leaves_), nodes_.end());
    while (entry >= leaves_) leaves_ *= 2;
    nodes_.assign(2 * leaves_, Key{});
    for (size_t i = 0; i < before.size(); ++i) Set(i, before[i]);
  }

  size_t leaves_ = 1;
  std::vector<Key> nodes_ = std::vector<Key>(2);  // the root is 1, children of i are 2i and 2i + 1; leaves come last
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_TOURNAMENT_H_
