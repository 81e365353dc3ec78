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

void Readiness::Tell(const Listener& listener) const {
  std::string why;
  if (!stuck_.empty()) {
    why = absl::StrCat("these threads hang: ", stuck_);
  } else if (stopping_) {
    why = "stopping: running jobs end, nothing new is taken";
  } else if (!started_) {
    why = "starting";
  } else if (drained_) {
    why = "drained by an operator: running jobs end, nothing new is taken";
  }
  listener(why.empty(), stuck_.empty(), why);
}

void Readiness::TellAll() const {
  for (const Listener& listener : listeners_) Tell(listener);
}

}  // namespace railsd
