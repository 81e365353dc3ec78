#include "client/railsctl/http_get.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace rails::ctl {
namespace {

// libevent does not keep the error of connect().
constexpr const char* kNoConnection = "no process listens there, or there is no route to it";

template <class T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* object) const { Free(object); }
};
using EventBase = std::unique_ptr<event_base, Deleter<event_base, event_base_free>>;
using Event = std::unique_ptr<event, Deleter<event, event_free>>;
using Connection = std::unique_ptr<evhttp_connection, Deleter<evhttp_connection, evhttp_connection_free>>;

// One request under way. Callbacks only set `answer`; the loop frees the connection afterwards, because libevent still
// uses it when a callback returns.
struct Transfer {
  size_t server = 0;
  absl::Time deadline;
  Connection connection;
  absl::Status failure;
  std::optional<absl::StatusOr<HttpAnswer>> answer;
};

void OnError(evhttp_request_error error, void* argument) {
  auto* transfer = static_cast<Transfer*>(argument);
  switch (error) {
    case EVREQ_HTTP_DATA_TOO_LONG:
      transfer->failure = absl::ResourceExhaustedError("its answer is too long");
      break;
    case EVREQ_HTTP_TIMEOUT:
      transfer->failure = absl::DeadlineExceededError("no answer in time");
      break;
    case EVREQ_HTTP_EOF:
      transfer->failure =
          absl::UnavailableError("it cannot be reached, or closes the connection without a whole answer");
      break;
    case EVREQ_HTTP_INVALID_HEADER:
    case EVREQ_HTTP_BUFFER_ERROR:
    case EVREQ_HTTP_REQUEST_CANCEL:
      transfer->failure = absl::UnavailableError("its answer is not HTTP");
      break;
  }
}

void OnAnswer(evhttp_request* request, void* argument) {
  auto* transfer = static_cast<Transfer*>(argument);
  const int code = request == nullptr ? 0 : evhttp_request_get_response_code(request);
  if (!transfer->failure.ok()) {
    transfer->answer = transfer->failure;
  } else if (code == 0) {
    transfer->answer = absl::UnavailableError(kNoConnection);
  } else {
    evbuffer* const body = evhttp_request_get_input_buffer(request);
    HttpAnswer answer{.code = code, .body = std::string(evbuffer_get_length(body), '\0')};
    evbuffer_copyout(body, answer.body.data(), answer.body.size());
    transfer->answer = std::move(answer);
  }
}

// Ends the present turn of the loop at the deadline, because a server that keeps sending would keep the turn going.
void OnWake(evutil_socket_t /*fd*/, short /*events*/, void* base) {  // NOLINT(google-runtime-int): libevent's
  event_base_loopbreak(static_cast<event_base*>(base));
}

class Fetcher {
 public:
  Fetcher(const std::vector<HttpServer>& servers, const std::string& path, const HttpLimits& limits, HttpDone done)
      : servers_(servers),
        path_(path),
        limits_(limits),
        done_(done),
        end_(absl::Now() + limits.all),
        base_(event_base_new()),
        wake_(base_ == nullptr ? nullptr : evtimer_new(base_.get(), &OnWake, base_.get())) {}

  void Run() {
    if (wake_ == nullptr) {
      for (; next_ < servers_.size(); ++next_)
        done_(next_, absl::UnavailableError("no descriptor or no memory is left"));
    }
    while (next_ < servers_.size() || !transfers_.empty()) {
      while (next_ < servers_.size() && transfers_.size() < std::max<size_t>(limits_.at_once, 1)) Start(next_++);
      Wait();
      Finish();
    }
    // Runs the deferred callbacks of libevent, because they hold memory until they have run.
    if (base_ != nullptr) event_base_loop(base_.get(), EVLOOP_NONBLOCK);
  }

 private:
  void Start(size_t index) {
    const HttpServer& server = servers_[index];
    Transfer& transfer = transfers_.emplace_back();
    transfer.server = index;
    const absl::Time now = absl::Now();
    transfer.deadline = std::min(now + limits_.each, end_);
    if (now >= end_) {
      transfer.answer = absl::DeadlineExceededError("the time limit for all nodes passed before this one was asked");
      return;
    }
    transfer.connection.reset(evhttp_connection_base_new(base_.get(), nullptr, server.address.c_str(), server.port));
    evhttp_request* const request = evhttp_request_new(&OnAnswer, &transfer);
    if (transfer.connection == nullptr || request == nullptr) {
      if (request != nullptr) evhttp_request_free(request);
      transfer.answer = absl::UnavailableError("no descriptor or no memory is left");
      return;
    }
    evhttp_connection_set_max_headers_size(transfer.connection.get(), static_cast<ev_ssize_t>(limits_.header_bytes));
    evhttp_connection_set_max_body_size(transfer.connection.get(), static_cast<ev_ssize_t>(limits_.body_bytes));
    // No limit of libevent counts interim answers and unfinished lines. This watermark stops reading them, and the
    // deadline then ends the transfer.
    bufferevent_setwatermark(evhttp_connection_get_bufferevent(transfer.connection.get()), EV_READ, 0,
                             limits_.header_bytes + limits_.body_bytes);
    evhttp_request_set_error_cb(request, &OnError);
    evkeyvalq* const headers = evhttp_request_get_output_headers(request);
    evhttp_add_header(headers, "Host", server.host.c_str());
    evhttp_add_header(headers, "Connection", "close");
    // libevent owns the request from here on, even if the call fails.
    if (evhttp_make_request(transfer.connection.get(), request, EVHTTP_REQ_GET, path_.c_str()) != 0 &&
        !transfer.answer) {
      transfer.answer = absl::UnavailableError(kNoConnection);
    }
  }

  // Waits until something happens, or the earliest deadline.
  void Wait() {
    absl::Time earliest = end_;
    for (const Transfer& transfer : transfers_) {
      if (transfer.answer) return;
      earliest = std::min(earliest, transfer.deadline);
    }
    const absl::Duration left = std::max(earliest - absl::Now(), absl::ZeroDuration());
    const timeval delay = absl::ToTimeval(left + absl::Milliseconds(1));
    evtimer_add(wake_.get(), &delay);
    event_base_loop(base_.get(), EVLOOP_ONCE);
  }

  // Reports and removes the transfers that have an answer or whose time is over.
  void Finish() {
    const absl::Time now = absl::Now();
    for (auto it = transfers_.begin(); it != transfers_.end();) {
      if (!it->answer && it->deadline <= now) {
        it->answer =
            absl::DeadlineExceededError(absl::StrCat("no whole answer within ", absl::FormatDuration(limits_.each)));
      }
      if (!it->answer) {
        ++it;
        continue;
      }
      it->connection.reset();
      const absl::Time begun = absl::Now();
      done_(it->server, *std::move(it->answer));
      it = transfers_.erase(it);
      Extend(absl::Now() - begun);
    }
  }

  // Adds the time that `done` took to all deadlines, so that answers that arrived during it are not late.
  void Extend(absl::Duration spent) {
    end_ += spent;
    for (Transfer& transfer : transfers_) transfer.deadline += spent;
  }

  const std::vector<HttpServer>& servers_;
  const std::string& path_;
  const HttpLimits& limits_;
  const HttpDone done_;
  absl::Time end_;
  const EventBase base_;
  const Event wake_;
  std::list<Transfer> transfers_;  // a list, because callbacks hold the addresses of its elements
  size_t next_ = 0;
};

}  // namespace

void HttpGet(const std::vector<HttpServer>& servers, const std::string& path, const HttpLimits& limits, HttpDone done) {
  Fetcher(servers, path, limits, done).Run();
}

}  // namespace rails::ctl
