// Compression of what is served over HTTP.
#ifndef RAILSD_DAEMON_METRICS_GZIP_H_
#define RAILSD_DAEMON_METRICS_GZIP_H_

#include <string>

#include "absl/status/statusor.h"

namespace railsd {

// `text` in the format of gzip. Error: RESOURCE_EXHAUSTED, no memory for it.
absl::StatusOr<std::string> Gzip(const std::string& text);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_GZIP_H_
