// Counts the services' answers by method and status code.
#ifndef RAILSD_DAEMON_RPC_CALL_COUNTERS_H_
#define RAILSD_DAEMON_RPC_CALL_COUNTERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

// Any thread.
class CallCounters {
 public:
  // `method`: a literal, "JobService/WaitJob".
  void Count(absl::string_view method, absl::StatusCode code) {
    absl::MutexLock lock(&mutex_);
    ++counts_[{method, code}];
  }
  // Calls `each` with "JobService/WaitJob", a code ("ok", "deadline_exceeded") and the count.
  void ForEach(const std::function<void(const std::string&, const std::string&, uint64_t)>& each) const {
    absl::MutexLock lock(&mutex_);
    for (const auto& [call, count] : counts_) {
      each(std::string(call.first), absl::AsciiStrToLower(absl::StatusCodeToString(call.second)), count);
    }
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<std::pair<absl::string_view, absl::StatusCode>, uint64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_RPC_CALL_COUNTERS_H_
