#include "bench/links/round_trips.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/base/unique_fd.h"
#include "bench/links/echo_node.h"
#include "bench/links/engine_thread.h"
#include "daemon/link/frame.h"

namespace railsd::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Round trips of one way before the next way's turn, about 10 ms.
constexpr int kBlock = 200;

double Quantile(std::vector<double> values, double part) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// Two ends. The engine of the first end repeatedly sends a message and waits for the answer.
class Way {
 public:
  virtual ~Way() = default;

  // Blocks until `round_trips` round trips are done.
  void Run(int round_trips) {
    std::promise<void> done;
    first_.Push([&] {
      left_ = round_trips;
      done_ = &done;
      Ping();
    });
    done.get_future().wait();
  }
  const std::vector<double>& microseconds() const { return microseconds_; }
  void Forget() { microseconds_.clear(); }

 protected:
  virtual void SendFromFirst() = 0;
  // Called on the first engine's thread.
  void OnAnswer() {
    microseconds_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - sent_).count() / 2);
    if (--left_ == 0) return done_->set_value();
    Ping();
  }
  EngineThread first_, second_;

 private:
  void Ping() {
    sent_ = Clock::now();
    SendFromFirst();
  }
  Clock::time_point sent_;
  int left_ = 0;
  std::promise<void>* done_ = nullptr;
  std::vector<double> microseconds_;
};

class OverHubs final : public Way {
 public:
  explicit OverHubs(bool tls) : authority_(tls ? std::make_unique<Authority>() : nullptr) {
    a_ = std::make_unique<EchoNode>("a", 1, authority_.get(), &first_, [this](const std::string&) { OnAnswer(); });
    b_ = std::make_unique<EchoNode>("b", 2, authority_.get(), &second_,
                                    [this](const std::string& node) { b_->Send(node); });
    a_->Connect({{"b", b_->address(), {}}});
    b_->Connect({{"a", a_->address(), {}}});
    a_->AwaitLinks(1);
    b_->AwaitLinks(1);
  }
  ~OverHubs() override {
    first_.Stop();
    second_.Stop();
  }

 private:
  void SendFromFirst() override { a_->Send("b"); }
  const std::unique_ptr<Authority> authority_;
  std::unique_ptr<EchoNode> a_, b_;
};

// One end of a bare connection. Its thread reads and passes each message to an engine.
class BareEnd {
 public:
  BareEnd(UniqueFd fd, EngineThread* engine, std::function<void()> on_message)
      : fd_(std::move(fd)), bytes_(kBytes, 'x'), engine_(*engine), on_message_(std::move(on_message)) {
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    reader_ = std::thread([this] { Read(); });
  }
  ~BareEnd() {
    ::shutdown(fd_.get(), SHUT_RDWR);
    reader_.join();
  }
  void Send() {
    if (::send(fd_.get(), bytes_.data(), bytes_.size(), MSG_DONTWAIT | MSG_NOSIGNAL) != ssize_t{kBytes}) {
      Must(absl::InternalError("send"));
    }
  }

 private:
  static constexpr size_t kBytes = kFrameHeaderBytes + kMessageBytes;  // the same as over a link

  void Read() {
    const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event = {};
    event.events = EPOLLIN;
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd_.get(), &event);
    char buffer[8192];
    for (size_t have = 0;;) {
      if (::epoll_wait(epoll.get(), &event, 1, -1) < 0) continue;
      const ssize_t got = ::recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got == 0) return;
      if (got < 0) continue;
      for (have += static_cast<size_t>(got); have >= kBytes; have -= kBytes) {
        engine_.Push([this] { on_message_(); });
      }
    }
  }

  const UniqueFd fd_;
  const std::string bytes_;
  EngineThread& engine_;
  const std::function<void()> on_message_;
  std::thread reader_;
};

class OverSockets final : public Way {
 public:
  OverSockets() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    sockaddr* const generic = reinterpret_cast<sockaddr*>(&address);
    UniqueFd a(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), generic, &size) != 0 || ::connect(a.get(), generic, size) != 0) {
      Must(absl::ErrnoToStatus(errno, "bare sockets"));
    }
    UniqueFd b(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    a_ = std::make_unique<BareEnd>(std::move(a), &first_, [this] { OnAnswer(); });
    b_ = std::make_unique<BareEnd>(std::move(b), &second_, [this] { b_->Send(); });
  }
  ~OverSockets() override {
    first_.Stop();
    second_.Stop();
  }

 private:
  void SendFromFirst() override { a_->Send(); }
  std::unique_ptr<BareEnd> a_, b_;
};

std::unique_ptr<Way> MakeWay(const std::string& name) {
  if (name == "bare") return std::make_unique<OverSockets>();
  if (name != "plain" && name != "tls") Must(absl::InvalidArgumentError("no way '" + name + "': bare, plain or tls"));
  return std::make_unique<OverHubs>(name == "tls");
}

}  // namespace

nlohmann::json MeasureRoundTrips(int messages, const std::vector<std::string>& names) {
  std::vector<std::unique_ptr<Way>> ways;
  for (const std::string& name : names) ways.push_back(MakeWay(name));
  for (const auto& way : ways) way->Run(kBlock);  // warm-up
  for (const auto& way : ways) way->Forget();
  std::vector<std::vector<double>> over_first(ways.size());
  for (int done = 0; done < messages; done += 2 * kBlock) {
    double first = 0;
    for (size_t i = 0; i < ways.size(); ++i) {
      ways[i]->Run(kBlock);
      const double median = Quantile({ways[i]->microseconds().end() - kBlock, ways[i]->microseconds().end()}, 0.5);
      if (i == 0) first = median;
      over_first[i].push_back(median / first);
    }
  }
  nlohmann::json out;
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::vector<double>& values = ways[i]->microseconds();
    out[names[i]] = {{"messages", 2 * values.size()},
                     {"p50_us", Quantile(values, 0.5)},
                     {"p99_us", Quantile(values, 0.99)},
                     {"ratio", Quantile(over_first[i], 0.5)}};
  }
  return out;
}

}  // namespace railsd::bench
