// A small HTTP server for a fixed set of paths that are only read. No files, no state between requests.
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
  // Content-Security-Policy: what a browser may do with the body. Nothing, unless said.
  std::string policy = "default-src 'none'; frame-ancestors 'none'";
};

// Answers GET. `query` is what follows the '?', as it was sent: hostile. Called on any thread of the server, on several
// at once.
using HttpHandler = std::function<HttpAnswer(const std::string& query)>;

struct HttpOptions {
  std::string listen;  // "host:port"; port 0: any free one
  std::map<std::string, HttpHandler> paths;
  int threads = 8;   // as many requests are answered at once
  int waiting = 16;  // as many more connections wait for a thread; further ones wait in the kernel
  // For a client to send its request, and to take the answer.
  absl::Duration patience = absl::Seconds(5);
  uint64_t max_request_bytes = 16384;                                          // with its headers
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();  // by those two
};

// Answers GET and HEAD on exactly the given paths: 404 for others, 405 for other methods, 400 for a request that is not
// HTTP/1 or brings a body. Each connection carries one request. Threads of its own ("civetweb").
class HttpServer {
 public:
  // Error: UNAVAILABLE, the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  // Waits for the requests that are being answered.
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_HTTP_SERVER_H_
