// Compression of HTTP answers.
#ifndef RAILSD_DAEMON_METRICS_GZIP_H_
#define RAILSD_DAEMON_METRICS_GZIP_H_

#include <string>

#include "absl/status/statusor.h"

namespace railsd {

// Returns `text` in gzip's format. RESOURCE_EXHAUSTED: out of memory.
absl::StatusOr<std::string> Gzip(const std::string& text);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_GZIP_H_
