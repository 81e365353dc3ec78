#include "bench/links/many_links.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/links/echo_node.h"

namespace railsd::bench {
namespace {

constexpr char kHub[] = "hub";
constexpr absl::Duration kSettle = absl::Seconds(2);

std::string PeerName(size_t i) { return absl::StrCat("peer", i); }

// One end of a socket pair that carries lines between the two processes.
class Pipe {
 public:
  explicit Pipe(int fd) : fd_(fd) {}
  ~Pipe() { ::close(fd_); }
  void Tell(const std::string& text) const {
    if (::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) < 0) Must(absl::ErrnoToStatus(errno, "send"));
  }
  // Empty if the other process has ended.
  std::string Hear() const {
    std::string text(512, '\0');
    const ssize_t got = ::recv(fd_, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

 private:
  const int fd_;
};

// Sends `rate` messages a second over each link for `time`, evenly spread.
void Load(const std::vector<std::unique_ptr<EchoNode>>& peers, int rate, absl::Duration time) {
  const absl::Duration gap = absl::Seconds(1) / (rate * static_cast<int64_t>(peers.size()));
  const absl::Time begin = absl::Now();
  for (int64_t sent = 0;;) {
    const absl::Duration passed = absl::Now() - begin;
    if (passed >= time) return;
    for (const int64_t due = passed / gap; sent < due; ++sent) {
      peers[static_cast<size_t>(sent) % peers.size()]->Send(kHub);
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// Runs the peers, in the other process.
void Peers(const Pipe& pipe, int links, int rate, double seconds, const Authority* authority) {
  EngineThread engine;
  std::vector<std::unique_ptr<EchoNode>> peers;
  for (size_t i = 0; i < static_cast<size_t>(links); ++i) {
    peers.push_back(std::make_unique<EchoNode>(PeerName(i), 100 + i, authority, &engine, [](const std::string&) {}));
    pipe.Tell(peers.back()->address());
  }
  const std::string hub = pipe.Hear();
  for (const auto& peer : peers) peer->Connect({{kHub, hub, {}}});
  for (const auto& peer : peers) peer->AwaitLinks(1);
  pipe.Tell("up");
  if (pipe.Hear().empty()) return;
  Load(peers, rate, absl::Seconds(seconds));
  pipe.Tell("done");
  pipe.Hear();
}

struct Usage {
  double user = 0, system = 0;
  int64_t switches = 0;
};

Usage UsageNow() {
  rusage now = {};
  ::getrusage(RUSAGE_SELF, &now);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {seconds(now.ru_utime), seconds(now.ru_stime), now.ru_nvcsw};
}

double ResidentMegabytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

// Measures this process's processor time from construction to Json().
class Phase {
 public:
  explicit Phase(EchoNode* hub) : hub_(*hub), messages_(hub->hub().counters().messages_in) {}
  nlohmann::json Json() const {
    const Usage now = UsageNow();
    const double wall = absl::ToDoubleSeconds(absl::Now() - begin_);
    const auto messages = static_cast<double>(hub_.hub().counters().messages_in - messages_);
    return {{"user_percent", 100 * (now.user - used_.user) / wall},
            {"system_percent", 100 * (now.system - used_.system) / wall},
            {"sleeps_per_second", static_cast<double>(now.switches - used_.switches) / wall},
            {"messages_in_per_second", messages / wall},
            {"resident_mb", ResidentMegabytes()}};
  }

 private:
  EchoNode& hub_;
  const uint64_t messages_;
  const absl::Time begin_ = absl::Now();
  const Usage used_ = UsageNow();
};

}  // namespace

nlohmann::json MeasureManyLinks(int links, int rate, double seconds, bool tls) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    Must(absl::ErrnoToStatus(errno, "socketpair"));
  // Each process writes certificates with other names into its folder.
  const std::unique_ptr<Authority> authority = tls ? std::make_unique<Authority>() : nullptr;
  const pid_t child = ::fork();
  if (child < 0) Must(absl::ErrnoToStatus(errno, "fork"));
  if (child == 0) {
    ::close(ends[0]);
    {
      const Pipe pipe(ends[1]);
      Peers(pipe, links, rate, seconds, authority.get());
    }
    std::_Exit(0);
  }
  ::close(ends[1]);
  nlohmann::json out = {{"links", links}, {"rate", rate}};
  {
    const Pipe pipe(ends[0]);
    std::vector<StaticPeerConfig> peers;
    for (size_t i = 0; i < static_cast<size_t>(links); ++i) peers.push_back({PeerName(i), pipe.Hear(), {}});
    EngineThread engine;
    std::unique_ptr<EchoNode> hub;
    hub = std::make_unique<EchoNode>(kHub, 1, authority.get(), &engine,
                                     [&hub](const std::string& node) { hub->Send(node); });
    const Phase empty(hub.get());
    absl::SleepFor(absl::Seconds(seconds));
    out["empty"] = empty.Json();
    hub->Connect(peers);
    pipe.Tell(hub->address());
    hub->AwaitLinks(links);
    if (pipe.Hear() != "up") Must(absl::InternalError("the peers' process has ended"));
    absl::SleepFor(kSettle);
    const Phase idle(hub.get());
    absl::SleepFor(absl::Seconds(seconds));
    out["idle"] = idle.Json();
    pipe.Tell("load");
    const Phase loaded(hub.get());
    if (pipe.Hear() != "done") Must(absl::InternalError("the peers' process has ended"));
    out["loaded"] = loaded.Json();
    hub->AwaitLinks(links);  // no link was lost
    engine.Stop();
    pipe.Tell("end");
    ::waitpid(child, nullptr, 0);
  }
  return out;
}

}  // namespace railsd::bench
