#include "daemon/metrics/http_server.h"

#include <civetweb.h>
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd {
namespace {

// Shorter answers fit into one packet uncompressed.
constexpr size_t kWorthCompressing = 1000;

constexpr int kGzipFormat = 15 + 16;  // 15: the largest window; 16: gzip's header
constexpr int kMemory = 8;            // zlib's default

absl::StatusOr<std::string> Gzip(const std::string& text) {
  z_stream stream = {};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipFormat, kMemory, Z_DEFAULT_STRATEGY) != Z_OK) {
    return absl::ResourceExhaustedError("zlib has no memory to compress with");
  }
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) return absl::ResourceExhaustedError("zlib could not compress at once");
  return out;
}

bool Contains(const char* list, const char* word) { return list != nullptr && strstr(list, word) != nullptr; }

bool HasBody(mg_connection* connection) {
  const char* length = mg_get_header(connection, "Content-Length");
  return mg_get_header(connection, "Transfer-Encoding") != nullptr || (length != nullptr && strcmp(length, "0") != 0);
}

// `extra`: further header lines, each with its line end.
void Send(mg_connection* connection, HttpAnswer answer, bool with_body, std::string extra = "") {
  if (answer.body.size() > kWorthCompressing && Contains(mg_get_header(connection, "Accept-Encoding"), "gzip")) {
    if (absl::StatusOr<std::string> small = Gzip(answer.body); small.ok()) {
      answer.body = *std::move(small);
      extra += "Content-Encoding: gzip\r\n";
    }
  }
  const std::string head =
      absl::StrCat("HTTP/1.1 ", answer.status, " ", mg_get_response_code_text(connection, answer.status),
                   "\r\nContent-Type: ", answer.type, "\r\nContent-Length: ", answer.body.size(),
                   "\r\nCache-Control: no-store\r\nVary: Accept-Encoding\r\nX-Content-Type-Options: nosniff\r\n"
                   "Referrer-Policy: no-referrer\r\nContent-Security-Policy: ",
                   answer.policy, "\r\n", extra, "Connection: close\r\n\r\n");
  mg_write(connection, head.data(), head.size());
  if (with_body) mg_write(connection, answer.body.data(), answer.body.size());
}

HttpAnswer Text(int status, std::string text) { return {.status = status, .body = std::move(text) + "\n"}; }

// Connects to a local listener and closes the connection.
void TouchPort(const std::string& listen, int port) {
  absl::StatusOr<tcp::SocketAddress> address = tcp::ParseAddress(listen);
  if (!address.ok()) return;
  address->set_port(static_cast<uint16_t>(port));
  // The result does not matter: the listener has woken up, or is gone.
  int error = 0;
  tcp::StartConnect({}, *address, {}, &error);
}

class Server final : public HttpServer {
 public:
  explicit Server(HttpOptions options) : options_(std::move(options)) {}

  absl::Status Listen() {
    // Without a document root civetweb serves no file and runs no program.
    const std::pair<const char*, std::string> settings[] = {
        {"listening_ports", options_.listen},
        {"num_threads", absl::StrCat(options_.threads)},
        {"connection_queue", absl::StrCat(options_.waiting)},
        {"request_timeout_ms", absl::StrCat(absl::ToInt64Milliseconds(options_.patience))},
        {"max_request_size", absl::StrCat(options_.max_request_bytes)},
        {"enable_keep_alive", "no"},
        {"enable_directory_listing", "no"}};
    std::vector<const char*> texts;
    for (const auto& [key, value] : settings) texts.insert(texts.end(), {key, value.c_str()});
    texts.push_back(nullptr);
    mg_callbacks callbacks = {};
    callbacks.begin_request = &Server::Answer;
    callbacks.http_error = &Server::AnswerError;
    callbacks.init_connection = &Server::Remember;
    callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // drops lines about clients' errors
    mg_init_data start = {};
    start.callbacks = &callbacks;
    start.user_data = this;
    start.configuration_options = texts.data();
    char text[256] = {};
    mg_error_data error = {};
    error.text = text;
    error.text_buffer_size = sizeof(text);
    context_ = mg_start2(&start, &error);
    if (context_ != nullptr) return absl::OkStatus();
    return absl::UnavailableError(text);
  }

  // civetweb checks its stop flag at a connection, or every two seconds. Connects until it has stopped.
  ~Server() override {
    if (context_ == nullptr) return;
    const int at = port();
    std::atomic<bool> ended{false};
    std::thread waker([this, at, &ended] {
      while (!ended) {
        TouchPort(options_.listen, at);
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
    mg_stop(context_);
    ended = true;
    waker.join();
  }
  int port() const override {
    mg_server_port ports[1] = {};
    return mg_get_server_ports(context_, 1, ports) < 1 ? 0 : ports[0].port;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Stores the time in the pointer itself: memory would leak, because civetweb does not report every connection's end.
  static int Remember(const mg_connection*, void** accepted) {
    const auto count = static_cast<uintptr_t>(Clock::now().time_since_epoch().count());
    *accepted = reinterpret_cast<void*>(count);  // NOLINT(performance-no-int-to-ptr): a number, never followed
    return 0;
  }
  static Clock::time_point AcceptedAt(const mg_connection* connection) {
    const auto count = reinterpret_cast<uintptr_t>(mg_get_user_connection_data(connection));
    return Clock::time_point(Clock::duration(static_cast<Clock::rep>(count)));
  }

  // civetweb's handler of a request. A result above 0 means that the request is answered.
  static int Answer(mg_connection* connection) {
    const mg_request_info* request = mg_get_request_info(connection);
    const Server* server = static_cast<const Server*>(request->user_data);
    const std::string method = request->request_method;
    if (method != "GET" && method != "HEAD") {
      Send(connection, Text(405, "only GET and HEAD are supported"), true, "Allow: GET, HEAD\r\n");
      return 405;
    }
    HttpAnswer answer;
    if (HasBody(connection)) {
      answer = Text(400, "requests with a body are refused");
    } else {
      // Compares the path as it was sent: no path of this server needs cleaning first.
      const auto found = server->options_.paths.find(request->local_uri_raw == nullptr ? "" : request->local_uri_raw);
      answer =
          found == server->options_.paths.end()
              ? Text(404, server->Known())
              : found->second(request->query_string == nullptr ? std::string() : std::string(request->query_string));
    }
    const int status = answer.status;
    Send(connection, std::move(answer), method == "GET");
    return status;
  }

  // civetweb's handler of requests that it does not understand. They have no method.
  static int AnswerError(mg_connection* connection, int status, const char*) {
    const Server& server = *static_cast<const Server*>(mg_get_request_info(connection)->user_data);
    // civetweb uses 400 for all malformed requests: late, too long or no HTTP.
    if (status == 400) {
      const bool late = absl::FromChrono(Clock::now() - AcceptedAt(connection)) >= server.options_.patience;
      server.options_.refused->Count(late ? Limit::kHttp : Limit::kHttpRequest);
      if (late) status = 408;
    }
    Send(connection, Text(status, mg_get_response_code_text(connection, status)), true);
    return 0;
  }

  std::string Known() const {
    std::string text = "unknown path; known paths:";
    for (const auto& [path, handler] : options_.paths) absl::StrAppend(&text, " ", path);
    return text;
  }

  const HttpOptions options_;
  mg_context* context_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  const std::string listen = options.listen;
  auto server = std::make_unique<Server>(std::move(options));
  if (absl::Status status = server->Listen(); !status.ok()) {
    // civetweb's own message names neither the port nor the cause.
    return absl::UnavailableError(absl::StrCat("metrics.listen: '", listen, "': cannot listen: the address is not ",
                                               "this node's, or is in use (", status.message(), ")"));
  }
  return server;
}

}  // namespace railsd
