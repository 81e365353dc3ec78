// Reads from /proc what this process uses.
#ifndef RAILSD_DAEMON_METRICS_PROCESS_USAGE_H_
#define RAILSD_DAEMON_METRICS_PROCESS_USAGE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace railsd {

// Each is nullopt if the kernel does not tell.
struct ProcessUsage {
  std::optional<double> cpu_seconds;         // user and system
  std::optional<double> start_time_seconds;  // since 1970
  std::optional<uint64_t> resident_memory_bytes, virtual_memory_bytes;
  std::optional<uint64_t> open_fds;
  std::optional<uint64_t> max_fds;  // soft limit; nullopt also if there is no limit
};

// Tests replace `proc`.
ProcessUsage ReadProcessUsage(const std::string& proc = "/proc");

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_PROCESS_USAGE_H_
