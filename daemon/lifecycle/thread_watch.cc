#include "daemon/lifecycle/thread_watch.h"

namespace railsd {

std::vector<std::string> ThreadWatch::Look(const std::vector<ThreadProgress>& threads) {
  seen_.resize(threads.size());
  std::vector<std::string> stuck;
  for (size_t i = 0; i < threads.size(); ++i) {
    Seen& seen = seen_[i];
    if (threads[i].turns != seen.turns) seen = {threads[i].turns, 0};
    if (seen.looks++ >= patience_) stuck.push_back(threads[i].name);
  }
  return stuck;
}

}  // namespace railsd
