// Fetches one page from many HTTP servers at once. Answers are hostile: their size and their time are bounded.
#ifndef RAILS_RAILSCTL_HTTP_GET_H_
#define RAILS_RAILSCTL_HTTP_GET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rails::ctl {

struct HttpServer {
  std::string address;  // numeric
  uint16_t port = 0;
  std::string host;  // "HOST:PORT" of the request's Host header
};

struct HttpLimits {
  size_t at_once = 16;                     // connections
  absl::Duration each = absl::Seconds(5);  // time in `done` does not count, neither here nor in `all`
  absl::Duration all = absl::Seconds(60);
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 8 << 20;
};

struct HttpAnswer {
  int code = 0;  // "200 OK": 200
  std::string body;
};

// Called once for each server, in the order in which they answer. UNAVAILABLE: no connection, or no HTTP.
// DEADLINE_EXCEEDED: no whole answer in time. RESOURCE_EXHAUSTED: an answer that is larger than the limits.
using HttpDone = absl::FunctionRef<void(size_t server, absl::StatusOr<HttpAnswer> answer)>;

// Fetches `path` ("/a?b=c") from all servers. Returns after the last call of `done`.
void HttpGet(const std::vector<HttpServer>& servers, const std::string& path, const HttpLimits& limits, HttpDone done);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_HTTP_GET_H_
