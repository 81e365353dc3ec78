// Counts the services' answers by method and status code.
#ifndef RAILSD_DAEMON_SERVICE_CALL_COUNTERS_H_
#define RAILSD_DAEMON_SERVICE_CALL_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace railsd {

// The methods are fixed at construction. Any thread then counts and reads, without locks.
class CallCounters {
 public:
  // `services`: full names. Services that are not linked into the program are left out.
  explicit CallCounters(const std::vector<std::string>& services);

  // `method` is "JobService/WaitJob". Unknown methods are not counted.
  void Count(absl::string_view method, absl::StatusCode code);
  // Calls `each` with "JobService/WaitJob", a code ("ok", "deadline_exceeded") and the count, for counts above 0.
  void ForEach(const std::function<void(const std::string&, const std::string&, uint64_t)>& each) const;

 private:
  static constexpr int kCodes = 17;  // gRPC's codes from OK to UNAUTHENTICATED
  struct Method {
    std::string name;
    std::array<std::atomic<uint64_t>, kCodes> by_code{};
  };
  std::vector<Method> methods_;
  absl::flat_hash_map<std::string, size_t> by_name_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_CALL_COUNTERS_H_
