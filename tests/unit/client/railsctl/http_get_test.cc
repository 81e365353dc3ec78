// Fetching over HTTP from servers that answer well, badly and never.
#include "client/railsctl/http_get.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace rails::ctl {
namespace {

// Accepts connections on 127.0.0.1 one after the other, reads a request and calls `answer` with the descriptor.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd)> answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeServer() {
    ended_ = true;
    thread_.join();
    close(listener_);
  }

  HttpServer address() const { return {"127.0.0.1", port_, absl::StrCat("127.0.0.1:", port_)}; }
  const std::string& request() const { return request_; }

 private:
  void Serve() {
    while (!ended_) {
      pollfd entry = {listener_, POLLIN, 0};
      if (poll(&entry, 1, 10) != 1) continue;
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      char text[4096];
      const ssize_t got = recv(fd, text, sizeof(text), 0);
      if (got > 0) request_.assign(text, static_cast<size_t>(got));
      answer_(fd);
      close(fd);
    }
  }

  const std::function<void(int fd)> answer_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> ended_ = false;
  std::string request_;
  std::thread thread_;
};

bool SendText(int fd, const std::string& text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

absl::StatusOr<HttpAnswer> Fetch(const HttpServer& server, const HttpLimits& limits) {
  absl::StatusOr<HttpAnswer> out;
  HttpGet({server}, "/page?a=1", limits, [&](size_t, absl::StatusOr<HttpAnswer> answer) { out = std::move(answer); });
  return out;
}

const HttpLimits kSmall = {.each = absl::Milliseconds(300), .body_bytes = 10'000};
const HttpLimits kPatient = {.each = absl::Seconds(30), .body_bytes = 10'000};

TEST(HttpGetTest, ReturnsTheAnswer) {
  FakeServer server([](int fd) { SendText(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"); });
  const absl::StatusOr<HttpAnswer> answer = Fetch(server.address(), kPatient);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->code, 200);
  EXPECT_EQ(answer->body, "hello");
  EXPECT_THAT(server.request(), testing::StartsWith("GET /page?a=1 HTTP/1.1\r\n"));
  EXPECT_THAT(server.request(), testing::HasSubstr(absl::StrCat("Host: ", server.address().host, "\r\n")));
}

TEST(HttpGetTest, ReturnsOtherCodesAndBodiesWithoutALength) {
  FakeServer server([](int fd) { SendText(fd, "HTTP/1.1 503 No\r\nConnection: close\r\n\r\nbecause"); });
  const absl::StatusOr<HttpAnswer> answer = Fetch(server.address(), kPatient);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->code, 503);
  EXPECT_EQ(answer->body, "because");
}

TEST(HttpGetTest, NobodyListens) {
  HttpServer nobody;
  {
    FakeServer server([](int) {});
    nobody = server.address();
  }
  EXPECT_EQ(Fetch(nobody, kPatient).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpGetTest, AnswersThatAreTooLong) {
  const std::map<std::string, std::string> answers = {
      {"its length says so", "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"},
      {"no length", absl::StrCat("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", std::string(100'000, 'x'))},
      {"a chunk",
       absl::StrCat("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n", std::string(100'000, 'x'))}};
  for (const auto& [name, text] : answers) {
    FakeServer server([&t = text](int fd) { SendText(fd, t); });
    EXPECT_EQ(Fetch(server.address(), kPatient).status().code(), absl::StatusCode::kResourceExhausted) << name;
  }
}

TEST(HttpGetTest, HeadersThatNeverEnd) {
  FakeServer server([](int fd) {
    SendText(fd, "HTTP/1.1 200 OK\r\n");
    while (SendText(fd, "X-Header: again and again\r\n")) continue;
  });
  EXPECT_FALSE(Fetch(server.address(), kPatient).ok());
}

// libevent counts neither in its limits. The server can send no more than waits to be read.
TEST(HttpGetTest, InterimAnswersAndLinesWithoutAnEndAreNotKept) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "HTTP/1.1 100 Continue\r\n\r\n"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", std::string(1000, '0')}};
  for (const auto& [begin, again] : cases) {
    uint64_t sent = 0;
    {
      FakeServer server([&, &begin = begin, &again = again](int fd) {
        const timeval patience = {.tv_sec = 0, .tv_usec = 200'000};
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
        for (bool taken = SendText(fd, begin); taken && sent < (uint64_t{256} << 20); sent += again.size()) {
          taken = SendText(fd, again);
        }
      });
      EXPECT_FALSE(Fetch(server.address(), {.each = absl::Seconds(1), .body_bytes = 10'000}).ok());
    }
    EXPECT_LT(sent, uint64_t{32} << 20);
  }
}

TEST(HttpGetTest, AnswersThatAreNoHttp) {
  for (const std::string text : {"", "SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"}) {
    FakeServer server([&text](int fd) { SendText(fd, text); });
    EXPECT_EQ(Fetch(server.address(), kPatient).status().code(), absl::StatusCode::kUnavailable) << text;
  }
}

TEST(HttpGetTest, AnAnswerThatDripsEndsAtTheDeadline) {
  std::atomic<bool> ended = false;
  FakeServer server([&ended](int fd) {
    SendText(fd, "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n");
    while (!ended && SendText(fd, "x")) absl::SleepFor(absl::Milliseconds(10));
  });
  EXPECT_EQ(Fetch(server.address(), kSmall).status().code(), absl::StatusCode::kDeadlineExceeded);
  ended = true;
}

TEST(HttpGetTest, ManyServersAFewAtOnce) {
  FakeServer good([](int fd) { SendText(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"); });
  std::vector<HttpServer> servers(40, good.address());
  for (size_t s = 0; s < servers.size(); s += 4) servers[s].port = 1;  // nobody
  std::map<size_t, bool> answered;
  HttpGet(servers, "/", {.at_once = 3, .each = absl::Seconds(30)},
          [&](size_t server, const absl::StatusOr<HttpAnswer>& answer) { answered[server] = answer.ok(); });
  ASSERT_EQ(answered.size(), 40u);
  for (const auto& [server, ok] : answered) EXPECT_EQ(ok, server % 4 != 0) << server;
}

TEST(HttpGetTest, AllHaveOneDeadline) {
  std::atomic<bool> ended = false;
  FakeServer silent([&ended](int) {
    while (!ended) absl::SleepFor(absl::Milliseconds(10));
  });
  size_t late = 0;
  HttpGet(std::vector<HttpServer>(50, silent.address()), "/",
          {.at_once = 1, .each = absl::Seconds(30), .all = absl::Milliseconds(200)},
          [&](size_t, const absl::StatusOr<HttpAnswer>& answer) { late += absl::IsDeadlineExceeded(answer.status()); });
  EXPECT_EQ(late, 50u);
  ended = true;
}

TEST(HttpGetTest, WhatDoneTakesMakesNoOtherAnswerLate) {
  std::atomic<bool> taken = false;
  FakeServer quick([](int fd) { SendText(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); });
  FakeServer slow([&taken](int fd) {
    SendText(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
    while (!taken) absl::SleepFor(absl::Milliseconds(1));
    SendText(fd, "k");
  });
  size_t good = 0;
  HttpGet({quick.address(), slow.address()}, "/", {.at_once = 2, .each = absl::Seconds(1), .all = absl::Seconds(1)},
          [&](size_t, const absl::StatusOr<HttpAnswer>& got) {
            good += got.ok() ? 1 : 0;
            if (!taken) absl::SleepFor(absl::Milliseconds(1200));  // longer than each answer may take
            taken = true;
          });
  EXPECT_EQ(good, 2u);
}

}  // namespace
}  // namespace rails::ctl
