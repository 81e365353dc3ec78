#include "daemon/peer/name_lookup.h"

#include <pthread.h>

#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

struct NameLookup::State {
  absl::Mutex mutex;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::deque<std::string> asked ABSL_GUARDED_BY(mutex);
  std::vector<Answer> answers ABSL_GUARDED_BY(mutex);
};

NameLookup::NameLookup(Resolver resolve) : state_(std::make_shared<State>()) {
  std::thread([state = state_, resolve = std::move(resolve)] {
    pthread_setname_np(pthread_self(), "dns");
    Loop(*state, resolve);
  }).detach();
}

NameLookup::~NameLookup() {
  absl::MutexLock lock(&state_->mutex);
  state_->stop = true;
}

void NameLookup::Ask(const std::string& address, bool first) {
  absl::MutexLock lock(&state_->mutex);
  state_->asked.insert(first ? state_->asked.begin() : state_->asked.end(), address);
}

std::vector<NameLookup::Answer> NameLookup::TakeAnswers() {
  absl::MutexLock lock(&state_->mutex);
  return std::exchange(state_->answers, {});
}

void NameLookup::Loop(State& state, const Resolver& resolve) {
  const auto due = [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) { return state.stop || !state.asked.empty(); };
  absl::MutexLock lock(&state.mutex);
  while (true) {
    state.mutex.Await(absl::Condition(&due));
    if (state.stop) return;
    const std::string address = std::move(state.asked.front());
    state.asked.pop_front();
    state.mutex.Unlock();
    Addresses found = resolve(address);
    state.mutex.Lock();
    state.answers.push_back({address, std::move(found)});
  }
}

}  // namespace railsd
