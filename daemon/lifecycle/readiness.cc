#include "daemon/lifecycle/readiness.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace railsd {

void Readiness::AddListener(Listener listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.push_back(std::move(listener));
  Tell(listeners_.back());
}

void Readiness::SetStarted() {
  absl::MutexLock lock(&mutex_);
  started_ = true;
  TellAll();
}

void Readiness::SetDrained(bool drained) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  drained_ = drained;
  TellAll();
}

void Readiness::SetStuck(const std::vector<std::string>& threads) {
  absl::MutexLock lock(&mutex_);
  std::string names = absl::StrJoin(threads, ", ");
  if (stopping_ || names == stuck_) return;
  stuck_ = std::move(names);
  TellAll();
}

void Readiness::SetStopping() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  TellAll();
}

std::string Readiness::Why() const {
  if (!stuck_.empty()) return absl::StrCat("these threads hang: ", stuck_);
  if (stopping_) return "stopping: running jobs end, nothing new is taken";
  if (!started_) return "starting";
  return drained_ ? "drained by an operator: running jobs end, nothing new is taken" : "";
}

void Readiness::Tell(const Listener& listener) const { listener(Why().empty(), stuck_.empty()); }

void Readiness::TellAll() const {
  for (const Listener& listener : listeners_) Tell(listener);
}

}  // namespace railsd
