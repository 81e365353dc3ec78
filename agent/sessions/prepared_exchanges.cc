#include "agent/sessions/prepared_exchanges.h"

#include <utility>

namespace railsd {

void PreparedExchanges::Add(PreparedId id, std::shared_ptr<const PreparedExchange> exchange) {
  std::lock_guard lock(mutex_);
  exchanges_.emplace(id, std::move(exchange));
}

std::shared_ptr<const PreparedExchange> PreparedExchanges::Find(PreparedId id) const {
  std::lock_guard lock(mutex_);
  const auto it = exchanges_.find(id);
  return it == exchanges_.end() ? nullptr : it->second;
}

bool PreparedExchanges::Remove(PreparedId id) {
  std::shared_ptr<const PreparedExchange> removed;  // freed without the lock
  std::lock_guard lock(mutex_);
  const auto it = exchanges_.find(id);
  if (it == exchanges_.end()) return false;
  removed = std::move(it->second);
  exchanges_.erase(it);
  return true;
}

void PreparedExchanges::Remove(Epoch epoch, Rank rank) {
  std::vector<std::shared_ptr<const PreparedExchange>> removed;  // freed without the lock
  std::lock_guard lock(mutex_);
  absl::erase_if(exchanges_, [&](auto& entry) {
    if (entry.second->epoch != epoch || entry.second->rank != rank) return false;
    removed.push_back(std::move(entry.second));
    return true;
  });
}

void PreparedExchanges::Clear() {
  decltype(exchanges_) removed;  // freed without the lock
  std::lock_guard lock(mutex_);
  removed.swap(exchanges_);
}

size_t PreparedExchanges::count() const {
  std::lock_guard lock(mutex_);
  return exchanges_.size();
}

uint64_t PreparedExchanges::ranges() const {
  std::lock_guard lock(mutex_);
  uint64_t ranges = 0;
  for (const auto& [id, exchange] : exchanges_) ranges += exchange->flows->ranges;
  return ranges;
}

std::vector<std::shared_ptr<const UsedMemory>> PreparedExchanges::Uses() const {
  std::vector<std::shared_ptr<const UsedMemory>> uses;
  std::lock_guard lock(mutex_);
  uses.reserve(exchanges_.size());
  for (const auto& [id, exchange] : exchanges_) uses.push_back(exchange->uses);
  return uses;
}

}  // namespace railsd
