#include "daemon/metrics/exporter.h"

#include <CivetServer.h>
#include <netdb.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/base/unique_fd.h"
#include "daemon/config/units.h"
#include "daemon/metrics/collect.h"
#include "daemon/metrics/gzip.h"

namespace railsd {
namespace {

bool Contains(const char* list, const char* word) { return list != nullptr && strstr(list, word) != nullptr; }

// Answers GET, and HEAD with what GET would have said of its answer; nothing else.
class Page final : public CivetHandler {
 public:
  explicit Page(MetricSources sources) : sources_(std::move(sources)) { sources_.high_water = &high_water_; }
  bool handleGet(CivetServer*, mg_connection* connection) override { return Answer(connection, true); }
  bool handleHead(CivetServer*, mg_connection* connection) override { return Answer(connection, false); }
  bool handlePost(CivetServer*, mg_connection* connection) override { return Refuse(connection); }
  bool handlePut(CivetServer*, mg_connection* connection) override { return Refuse(connection); }
  bool handleDelete(CivetServer*, mg_connection* connection) override { return Refuse(connection); }
  bool handleOptions(CivetServer*, mg_connection* connection) override { return Refuse(connection); }
  bool handlePatch(CivetServer*, mg_connection* connection) override { return Refuse(connection); }

 private:
  bool Answer(mg_connection* connection, bool with_body) const {
    std::string body = RenderMetrics(sources_);
    std::string encoding;
    if (Contains(mg_get_header(connection, "Accept-Encoding"), "gzip")) {
      if (absl::StatusOr<std::string> small = Gzip(body); small.ok()) {
        body = *std::move(small);
        encoding = "Content-Encoding: gzip\r\n";
      }
    }
    const std::string head =
        absl::StrCat("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n", encoding,
                     "Content-Length: ", body.size(), "\r\nConnection: close\r\n\r\n");
    mg_write(connection, head.data(), head.size());
    if (with_body) mg_write(connection, body.data(), body.size());
    return true;
  }
  static bool Refuse(mg_connection* connection) {
    mg_printf(connection,
              "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    return true;
  }

  HighWater high_water_;
  MetricSources sources_;  // not changed after construction
};

// Connects to a local listener and hangs up.
void TouchPort(const std::string& listen, int port) {
  const auto address = ParseHostPort(listen, false);
  if (!address.ok()) return;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(address->host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  const UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Whether it succeeds does not matter: the listener has woken up, or is gone.
  if (!socket.valid()) return;
  [[maybe_unused]] const int result = connect(socket.get(), found->ai_addr, found->ai_addrlen);
}

class Server final : public MetricsServer {
 public:
  Server(const std::string& listen, MetricSources sources)
      : listen_(listen),
        page_(std::move(sources)),
        // Two threads are enough for scrapers; civetweb otherwise starts fifty.
        server_(std::make_unique<CivetServer>(
            std::vector<std::string>{"listening_ports", listen, "num_threads", "2", "request_timeout_ms", "10000"})) {
    server_->addHandler("/metrics$", &page_);
  }

  // civetweb looks at its stop flag when somebody connects, or every two seconds: connect until it has stopped.
  ~Server() override {
    const int at = port();
    std::atomic<bool> ended{false};
    std::thread waker([this, at, &ended] {
      while (!ended) {
        TouchPort(listen_, at);
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
    server_.reset();
    ended = true;
    waker.join();
  }
  int port() const override {
    const std::vector<int> ports = server_->getListeningPorts();
    return ports.empty() ? 0 : ports[0];
  }

 private:
  const std::string listen_;
  Page page_;
  std::unique_ptr<CivetServer> server_;
};

}  // namespace

std::string RenderMetrics(const MetricSources& sources) {
  return prometheus::TextSerializer().Serialize(CollectMetrics(sources));
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen, MetricSources sources) {
  try {
    return std::make_unique<Server>(listen, std::move(sources));
  } catch (const std::exception& e) {
    // What civetweb says of a port that it cannot have names neither the port nor the cause.
    return absl::UnavailableError(absl::StrCat("metrics.listen: '", listen,
                                               "': cannot listen there: the address is not ",
                                               "this node's or is in use (", e.what(), ")"));
  }
}

}  // namespace railsd
