// A small read-only HTTP server for a fixed set of paths. Serves no files and keeps no state between requests.
#ifndef RAILSD_DAEMON_METRICS_HTTP_SERVER_H_
#define RAILSD_DAEMON_METRICS_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/limit.h"

namespace railsd {

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  // Content-Security-Policy of the body. By default a browser may load nothing.
  std::string policy = "default-src 'none'; frame-ancestors 'none'";
};

// Answers GET. `query` is the unchecked text after the '?': hostile. Several threads of the server call it at once.
using HttpHandler = std::function<HttpAnswer(const std::string& query)>;

struct HttpOptions {
  std::string listen;  // "host:port"; port 0: any free one
  std::map<std::string, HttpHandler> paths;
  int threads = 8;   // requests answered at once
  int waiting = 16;  // connections that wait for a thread; further ones wait in the kernel
  // Time limit for a client to send its request, and to take the answer.
  absl::Duration patience = absl::Seconds(5);
  uint64_t max_request_bytes = 16384;                                          // with the headers
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();  // counts both limits' refusals
};

// Answers GET and HEAD on exactly the given paths: 404 for other paths, 405 for other methods, 400 for a request that
// is not HTTP/1 or has a body. Each connection carries one request. Runs its own threads ("civetweb").
class HttpServer {
 public:
  // UNAVAILABLE: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  // Waits for requests under way.
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_HTTP_SERVER_H_
