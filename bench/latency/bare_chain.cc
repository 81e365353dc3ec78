// The baseline of `./dev bench latency`: a bare chain of the thread wakes and messages of a job, without planning,
// checks and safety. Each node is a process with the threads of a daemon and its trainers, which wake each other in the
// same order:
//
//   trainer -> session thread -> engine -> every peer's link thread -> its engine -> its trainer
//
// If the bytes ride in the message, the link thread acknowledges them, and the sender's engine waits for that.
// Otherwise the engine wakes its rail threads, which send the bytes to the rail threads of the peers. These wake their
// engines and acknowledge; the acknowledgements wake the sender's engine.
//
//   bench_chain --nodes 2 --ranks 1 --bytes-per-pair 4096 [--rails 0] --jobs 300 --warmup 50
//
// `--rails 0`: the bytes of a pair of nodes ride in the message. `--rails N`: they go over N rails, one connection
// each. Prints one JSON object.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMessageBytes = 200;  // a READY without payload
constexpr size_t kFrameBytes = 32;     // header of a piece on a rail, or an acknowledgement

struct Options {
  uint32_t nodes = 2, ranks = 1, rails = 0, jobs = 300, warmup = 50;
  uint64_t bytes_per_pair = 4096;
};

void Check(bool ok, const char* doing) {
  if (ok) return;
  std::perror(doing);
  std::exit(1);
}

// Sockets of every pair: [channel][node][peer]. Channel 0 is the link, the others are rails.
using Mesh = std::vector<std::vector<std::vector<int>>>;

Mesh Connect(uint32_t nodes, uint32_t channels) {
  Mesh mesh(channels, std::vector<std::vector<int>>(nodes, std::vector<int>(nodes, -1)));
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  sockaddr* const generic = reinterpret_cast<sockaddr*>(&address);
  Check(bind(listener, generic, size) == 0 && listen(listener, 16) == 0 && getsockname(listener, generic, &size) == 0,
        "listen");
  const int on = 1;
  for (auto& channel : mesh) {
    for (uint32_t a = 0; a < nodes; ++a) {
      for (uint32_t b = a + 1; b < nodes; ++b) {
        channel[a][b] = socket(AF_INET, SOCK_STREAM, 0);
        Check(connect(channel[a][b], generic, size) == 0, "connect");
        channel[b][a] = accept(listener, nullptr, nullptr);
        for (const int fd : {channel[a][b], channel[b][a]}) {
          setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        }
      }
    }
  }
  close(listener);
  return mesh;
}

// The inbox of a thread: the events that it counts, and an eventfd that wakes it.
class Inbox {
 public:
  Inbox() : event_(eventfd(0, EFD_NONBLOCK)) {}
  int fd() const { return event_; }
  void Push(int what) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(what);
    }
    if (sleeping_.exchange(false)) {
      const uint64_t one = 1;
      Check(write(event_, &one, sizeof(one)) == sizeof(one), "eventfd");
    }
  }
  std::deque<int> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }
  // Call it before the thread takes the items once more and sleeps.
  void BeginSleep() { sleeping_.exchange(true); }
  void EndSleep() {
    sleeping_ = false;
    uint64_t count = 0;
    (void)!read(event_, &count, sizeof(count));
  }

 private:
  const int event_;
  std::mutex mutex_;
  std::deque<int> items_;
  std::atomic<bool> sleeping_{false};
};

enum What { kSubmitted, kReady, kLanded, kAcknowledged, kGo };

void SendAll(int fd, const char* bytes, size_t length) {
  while (length > 0) {
    const ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      pollfd entry = {fd, POLLOUT, 0};
      Check(errno == EAGAIN && poll(&entry, 1, 10'000) == 1, "send");
      continue;
    }
    bytes += sent;
    length -= static_cast<size_t>(sent);
  }
}

class Node {
 public:
  Node(const Options& options, const Mesh& mesh, uint32_t self)
      : options_(options), mesh_(mesh), self_(self), rails_(options.rails) {
    const uint64_t exchange = options.bytes_per_pair * options.ranks * options.ranks;
    rides_ = options.rails == 0 && exchange > 0;
    message_.resize(kMessageBytes + (rides_ ? exchange : 0), 'm');
    piece_.resize(options.rails == 0 ? 0 : exchange / options.rails);
  }

  // Runs all jobs. Returns the microseconds of each at the first rank.
  std::vector<double> Run() {
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      int pair[2];
      Check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
      trainer_end_.push_back(pair[0]);
      daemon_end_.push_back(pair[1]);
    }
    std::vector<std::thread> daemon;
    daemon.emplace_back([this] { SessionThread(); });
    daemon.emplace_back([this] { EngineThread(); });
    daemon.emplace_back([this] { LinkThread(); });
    for (uint32_t rail = 0; rail < options_.rails; ++rail) {
      daemon.emplace_back([this, rail] { RailThread(rail); });
    }
    std::vector<double> microseconds;
    std::vector<std::thread> trainers;
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      trainers.emplace_back([&, rank] { Trainer(rank, rank == 0 ? &microseconds : nullptr); });
    }
    for (std::thread& thread : trainers) thread.join();
    for (std::thread& thread : daemon) thread.detach();  // the process ends
    return microseconds;
  }

 private:
  void Trainer(uint32_t rank, std::vector<double>* microseconds) {
    char byte = 'x';
    for (uint32_t job = 0; job < options_.warmup + options_.jobs; ++job) {
      const Clock::time_point begin = Clock::now();
      SendAll(trainer_end_[rank], &byte, 1);
      Check(recv(trainer_end_[rank], &byte, 1, 0) == 1, "doorbell");
      if (microseconds == nullptr || job < options_.warmup) continue;
      microseconds->push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
  }

  void SessionThread() {
    const int epoll = epoll_create1(0);
    Watch(epoll, daemon_end_);
    for (epoll_event event = {};;) {
      if (epoll_wait(epoll, &event, 1, -1) < 1) continue;
      char bytes[16];
      const ssize_t got = recv(daemon_end_[event.data.u32], bytes, sizeof(bytes), MSG_DONTWAIT);
      for (ssize_t i = 0; i < got; ++i) engine_.Push(kSubmitted);
    }
  }

  void EngineThread() {
    const uint32_t peers = options_.nodes - 1, pieces = peers * options_.rails;
    const uint32_t acknowledgements = rides_ ? peers : pieces;
    uint32_t submitted = 0, ready = 0, landed = 0, acknowledged = 0;
    bool sent = false, given = false;
    for (;;) {
      for (const int what : AwaitItems()) {
        submitted += what == kSubmitted ? 1 : 0;
        ready += what == kReady ? 1 : 0;
        landed += what == kLanded ? 1 : 0;
        acknowledged += what == kAcknowledged ? 1 : 0;
      }
      if (!sent && submitted >= options_.ranks) {
        for (uint32_t peer = 0; peer < options_.nodes; ++peer) {
          if (peer != self_) SendAll(mesh_[0][self_][peer], message_.data(), message_.size());
        }
        sent = true;
      }
      if (sent && !given && ready >= peers) {
        for (Inbox& rail : rails_) rail.Push(kGo);
        given = true;
      }
      if (!given || landed < pieces || acknowledged < acknowledgements) continue;
      submitted -= options_.ranks;
      ready -= peers;
      landed -= pieces;
      acknowledged -= acknowledgements;
      sent = given = false;
      for (const int fd : daemon_end_) SendAll(fd, "x", 1);
    }
  }

  std::deque<int> AwaitItems() {
    for (;;) {
      engine_.BeginSleep();
      std::deque<int> items = engine_.Take();
      if (items.empty()) {
        pollfd entry = {engine_.fd(), POLLIN, 0};
        poll(&entry, 1, 1000);
      }
      engine_.EndSleep();
      if (!items.empty()) return items;
    }
  }

  static void Watch(int epoll, const std::vector<int>& fds) {
    for (uint32_t i = 0; i < fds.size(); ++i) {
      if (fds[i] < 0) continue;
      epoll_event event = {};
      event.events = EPOLLIN;
      event.data.u32 = i;
      Check(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) == 0, "epoll");
    }
  }

  // The part of a record that has arrived on one connection.
  struct Arrived {
    char header[kFrameBytes] = {};
    size_t bytes = 0;  // of the present record
  };

  // Messages begin with 'm'; an acknowledgement is a frame that begins with 'a'. Acknowledges a message with payload at
  // once.
  void LinkThread() {
    const std::vector<int>& fds = mesh_[0][self_];
    const int epoll = epoll_create1(0);
    Watch(epoll, fds);
    std::vector<Arrived> arrived(fds.size());
    std::string buffer(message_.size(), 'x');
    for (epoll_event event = {};;) {
      if (epoll_wait(epoll, &event, 1, -1) < 1) continue;
      const int fd = fds[event.data.u32];
      Arrived& record = arrived[event.data.u32];
      const bool in_header = record.bytes < kFrameBytes;
      const size_t left = (in_header ? kFrameBytes : message_.size()) - record.bytes;
      const ssize_t got = recv(fd, in_header ? record.header + record.bytes : buffer.data(), left, MSG_DONTWAIT);
      if (got <= 0) continue;
      record.bytes += static_cast<size_t>(got);
      if (record.bytes < kFrameBytes) continue;
      const bool message = record.header[0] == 'm';
      if (message && record.bytes < message_.size()) continue;
      record.bytes = 0;
      if (message && rides_) {
        const std::string acknowledgement(kFrameBytes, 'a');
        SendAll(fd, acknowledgement.data(), acknowledgement.size());
      }
      engine_.Push(message ? kReady : kAcknowledged);
    }
  }

  void RailThread(uint32_t rail) {
    const std::vector<int>& fds = mesh_[rail + 1][self_];
    const int epoll = epoll_create1(0);
    Watch(epoll, fds);
    epoll_event wake = {};
    wake.events = EPOLLIN;
    wake.data.u32 = options_.nodes;
    Check(epoll_ctl(epoll, EPOLL_CTL_ADD, rails_[rail].fd(), &wake) == 0, "epoll");
    std::vector<Arrived> arrived(fds.size());
    for (epoll_event event = {};;) {
      rails_[rail].BeginSleep();
      const size_t orders = rails_[rail].Take().size();
      const int count = epoll_wait(epoll, &event, 1, orders > 0 ? 0 : -1);
      rails_[rail].EndSleep();
      for (size_t order = 0; order < orders; ++order) SendPieces(fds);
      if (count == 1 && event.data.u32 < options_.nodes) Read(fds[event.data.u32], &arrived[event.data.u32]);
    }
  }

  void SendPieces(const std::vector<int>& fds) {
    const std::string header(kFrameBytes, 'd');
    for (const int fd : fds) {
      if (fd < 0) continue;
      SendAll(fd, header.data(), header.size());
      SendAll(fd, piece_.data(), piece_.size());
    }
  }

  // Reads until the socket is empty; acknowledges pieces at once.
  void Read(int fd, Arrived* arrived) {
    thread_local std::string buffer(1 << 20, 'x');
    for (;;) {
      const bool in_header = arrived->bytes < kFrameBytes;
      const size_t left = in_header ? kFrameBytes - arrived->bytes : kFrameBytes + piece_.size() - arrived->bytes;
      char* const into = in_header ? arrived->header + arrived->bytes : buffer.data();
      const ssize_t got = recv(fd, into, std::min(left, buffer.size()), MSG_DONTWAIT);
      if (got <= 0) return;
      arrived->bytes += static_cast<size_t>(got);
      if (arrived->bytes < kFrameBytes) continue;
      const bool data = arrived->header[0] == 'd';
      if (data && arrived->bytes < kFrameBytes + piece_.size()) continue;
      arrived->bytes = 0;
      if (data) {
        const std::string acknowledgement(kFrameBytes, 'a');
        SendAll(fd, acknowledgement.data(), acknowledgement.size());
      }
      engine_.Push(data ? kLanded : kAcknowledged);
    }
  }

  const Options& options_;
  const Mesh& mesh_;
  const uint32_t self_;
  bool rides_ = false;  // the bytes ride in the message
  std::string message_, piece_;
  Inbox engine_;
  std::vector<Inbox> rails_;
  std::vector<int> trainer_end_, daemon_end_;
};

// The body of a node's process. The first node writes its times to `result`.
void RunNode(const Options& options, const Mesh& mesh, uint32_t self, int result) {
  std::vector<double> times = Node(options, mesh, self).Run();
  if (self == 0) {
    std::sort(times.begin(), times.end());
    dprintf(result, "{\"p50_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f}\n", times[times.size() / 2],
            times[times.size() * 99 / 100], times.front());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("A bare chain of the thread wakes and flights of a job.");
  app.add_option("--nodes", options.nodes)->check(CLI::Range(2, 64));
  app.add_option("--ranks", options.ranks, "On each node.")->check(CLI::Range(1, 64));
  app.add_option("--rails", options.rails)->check(CLI::Range(0, 64));
  app.add_option("--bytes-per-pair", options.bytes_per_pair, "Bytes that each rank sends to each other one.");
  app.add_option("--jobs", options.jobs)->check(CLI::Range(1, 1'000'000));
  app.add_option("--warmup", options.warmup);
  CLI11_PARSE(app, argc, argv);
  signal(SIGPIPE, SIG_IGN);
  const Mesh mesh = Connect(options.nodes, 1 + options.rails);
  int done[2];
  Check(pipe(done) == 0, "pipe");
  std::vector<pid_t> children;
  for (uint32_t node = 0; node < options.nodes; ++node) {
    const pid_t child = fork();
    Check(child >= 0, "fork");
    if (child == 0) {
      RunNode(options, mesh, node, STDOUT_FILENO);
      // Waits to be killed, because peers may still wait for bytes of this node's last job.
      Check(write(done[1], "x", 1) == 1, "pipe");
      pause();
    }
    children.push_back(child);
  }
  char byte = 0;
  for (uint32_t node = 0; node < options.nodes; ++node) Check(read(done[0], &byte, 1) == 1, "pipe");
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  return 0;
}
