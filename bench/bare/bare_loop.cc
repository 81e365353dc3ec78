// The baseline of `./dev bench cpu`: bare sockets. N processes with one thread each send each other as many bytes as
// the daemons do, over as many TCP sockets on loopback addresses, from and into memory, in writes of at most 1 MiB.
// They use epoll, or io_uring to compare the two. The loop has no planning, control or safety: it measures the cost of
// the kernel.
//
//   bench_bare --network 127.77 --nodes 4 --rails 4 --bytes-per-pair 16777216 --rounds 8
//
// Prints one JSON object. Node n listens on NETWORK.(rail + 1).(n + 1).
#include <arpa/inet.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t kWriteBytes = 1 << 20;
constexpr uint16_t kPort = 7479;
constexpr unsigned kRingEntries = 4096;

struct Options {
  std::string network = "127.77";
  uint32_t nodes = 4, rails = 4, rounds = 8;
  uint64_t bytes_per_pair = 16 << 20;
  int send_buffer_bytes = 0;
  bool io_uring = false;
};

// Memory that the processes share: barriers, and the usage of each.
struct Shared {
  static constexpr uint32_t kMaxNodes = 64;
  struct PerNode {
    double user_seconds, system_seconds;
    uint64_t system_calls;
  };
  std::atomic<uint32_t> arrived{0};
  std::atomic<double> seconds{0};
  PerNode node[kMaxNodes]{};
};

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "bench_bare: %s: %s\n", what, std::strerror(errno));
  std::_Exit(1);
}

void Check(bool ok, const char* what) {
  if (!ok) Die(what);
}

// Waits until all processes have called it for the `count`-th time.
void Barrier(Shared* shared, uint32_t nodes, uint32_t count) {
  shared->arrived.fetch_add(1);
  while (shared->arrived.load() < nodes * count) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

sockaddr_in Address(const Options& options, uint32_t node, uint32_t rail) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  const std::string text = options.network + "." + std::to_string(rail + 1) + "." + std::to_string(node + 1);
  Check(inet_pton(AF_INET, text.c_str(), &address.sin_addr) == 1, text.c_str());
  return address;
}

// One direction of one pair on one rail: this node's stripe of the pair's bytes.
struct Stripe {
  int fd = -1;
  bool sends = false;
  std::byte* memory = nullptr;
  uint64_t length = 0, done = 0;
};

class Worker {
 public:
  Worker(const Options& options, uint32_t node, Shared* shared) : options_(options), node_(node), shared_(shared) {
    const uint64_t bytes = options.bytes_per_pair * options.nodes;
    send_memory_ = Memory(bytes);
    receive_memory_ = Memory(bytes);
    epoll_ = epoll_create1(0);
    Check(epoll_ >= 0, "epoll_create1");
    if (!options.io_uring) return;
    const int error =
        io_uring_queue_init(kRingEntries, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    errno = -error;
    Check(error == 0, "io_uring_queue_init");
  }

  void Run() {
    Connect();
    Barrier(shared_, options_.nodes, 2);
    const auto start = std::chrono::steady_clock::now();
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    uint32_t barriers = 2;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      if (options_.io_uring) {
        ExchangeByRing();
      } else {
        Exchange();
      }
      Barrier(shared_, options_.nodes, ++barriers);
    }
    getrusage(RUSAGE_SELF, &after);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (node_ == 0) shared_->seconds = elapsed.count();
    const auto seconds = [](const timeval& a, const timeval& b) {
      return static_cast<double>(b.tv_sec - a.tv_sec) + static_cast<double>(b.tv_usec - a.tv_usec) * 1e-6;
    };
    shared_->node[node_] = {seconds(before.ru_utime, after.ru_utime), seconds(before.ru_stime, after.ru_stime),
                            system_calls_};
  }

 private:
  static std::byte* Memory(uint64_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    Check(memory != MAP_FAILED, "mmap");
    return static_cast<std::byte*>(memory);
  }

  void Tune(int fd) const {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (options_.send_buffer_bytes > 0) {
      setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options_.send_buffer_bytes, sizeof options_.send_buffer_bytes);
    }
  }

  void Add(int fd, bool sends, uint32_t peer, uint32_t rail) {
    const uint64_t base = peer * options_.bytes_per_pair;
    const uint64_t from = options_.bytes_per_pair * rail / options_.rails;
    const uint64_t to = options_.bytes_per_pair * (rail + 1) / options_.rails;
    stripes_.push_back({fd, sends, (sends ? send_memory_ : receive_memory_) + base + from, to - from, 0});
  }

  // Dials every other node on every rail for the bytes that this node sends, and sends this node's number.
  void Connect() {
    std::vector<int> listeners;
    for (uint32_t rail = 0; rail < options_.rails; ++rail) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
      const sockaddr_in address = Address(options_, node_, rail);
      Check(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "bind");
      Check(listen(fd, 64) == 0, "listen");
      listeners.push_back(fd);
    }
    Barrier(shared_, options_.nodes, 1);
    for (uint32_t rail = 0; rail < options_.rails; ++rail) {
      for (uint32_t peer = 0; peer < options_.nodes; ++peer) {
        if (peer == node_) continue;
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        Tune(fd);
        const sockaddr_in address = Address(options_, peer, rail);
        Check(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
        Check(send(fd, &node_, sizeof node_, 0) == sizeof node_, "send");
        Add(fd, true, peer, rail);
      }
    }
    for (uint32_t rail = 0; rail < options_.rails; ++rail) {
      for (uint32_t i = 0; i + 1 < options_.nodes; ++i) {
        const int fd = accept(listeners[rail], nullptr, nullptr);
        uint32_t peer = 0;
        Check(fd >= 0 && recv(fd, &peer, sizeof peer, MSG_WAITALL) == sizeof peer, "accept");
        Add(fd, false, peer, rail);
      }
      close(listeners[rail]);
    }
  }

  void Exchange() {
    size_t open = stripes_.size();
    for (size_t i = 0; i < stripes_.size(); ++i) {
      stripes_[i].done = 0;
      epoll_event event{.events = stripes_[i].sends ? EPOLLOUT : EPOLLIN, .data = {.u64 = i}};
      Check(epoll_ctl(epoll_, EPOLL_CTL_ADD, stripes_[i].fd, &event) == 0, "epoll_ctl");
      ++system_calls_;
    }
    epoll_event events[64];
    while (open > 0) {
      const int count = epoll_wait(epoll_, events, 64, -1);
      ++system_calls_;
      for (int i = 0; i < count; ++i) {
        Stripe& stripe = stripes_[events[i].data.u64];
        Step(&stripe);
        if (stripe.done == stripe.length) {
          epoll_ctl(epoll_, EPOLL_CTL_DEL, stripe.fd, nullptr);
          ++system_calls_;
          --open;
        }
      }
    }
  }

  void Enqueue(uint64_t index) {
    Stripe& stripe = stripes_[index];
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    Check(entry != nullptr, "the ring is full");
    const uint64_t bytes = std::min(kWriteBytes, stripe.length - stripe.done);
    if (stripe.sends) {
      io_uring_prep_send(entry, stripe.fd, stripe.memory + stripe.done, bytes, MSG_NOSIGNAL);
    } else {
      io_uring_prep_recv(entry, stripe.fd, stripe.memory + stripe.done, bytes, 0);
    }
    io_uring_sqe_set_data64(entry, index);
  }

  // Like Exchange(), with one operation of each stripe under way at any time.
  void ExchangeByRing() {
    size_t open = stripes_.size();
    for (size_t i = 0; i < stripes_.size(); ++i) {
      stripes_[i].done = 0;
      Enqueue(i);
    }
    while (open > 0) {
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      ++system_calls_;
      errno = -submitted;
      Check(submitted >= 0 || submitted == -EINTR, "io_uring_submit_and_wait");
      io_uring_cqe* done = nullptr;
      while (io_uring_peek_cqe(&ring_, &done) == 0) {
        const uint64_t index = io_uring_cqe_get_data64(done);
        const int moved = done->res;
        io_uring_cqe_seen(&ring_, done);
        errno = -moved;
        Check(moved > 0 || moved == -EINTR || moved == -EAGAIN, "connection");
        if (moved > 0) stripes_[index].done += static_cast<uint64_t>(moved);
        if (stripes_[index].done == stripes_[index].length) {
          --open;
        } else {
          Enqueue(index);
        }
      }
    }
  }

  void Step(Stripe* stripe) {
    const uint64_t bytes = std::min(kWriteBytes, stripe->length - stripe->done);
    std::byte* at = stripe->memory + stripe->done;
    const ssize_t moved = stripe->sends ? send(stripe->fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                                        : recv(stripe->fd, at, bytes, MSG_DONTWAIT);
    ++system_calls_;
    if (moved > 0) {
      stripe->done += static_cast<uint64_t>(moved);
    } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
      Die("connection");
    }
  }

  const Options& options_;
  const uint32_t node_;
  Shared* const shared_;
  std::byte* send_memory_ = nullptr;
  std::byte* receive_memory_ = nullptr;
  int epoll_ = -1;
  io_uring ring_{};
  std::vector<Stripe> stripes_;
  uint64_t system_calls_ = 0;
};

void Report(const Options& options, const Shared& shared) {
  double user = 0, system = 0;
  uint64_t calls = 0;
  for (uint32_t node = 0; node < options.nodes; ++node) {
    user += shared.node[node].user_seconds;
    system += shared.node[node].system_seconds;
    calls += shared.node[node].system_calls;
  }
  const uint64_t bytes = options.bytes_per_pair * options.nodes * (options.nodes - 1) * options.rounds;
  std::printf(R"({"bytes": %llu, "seconds": %.6f, "user_seconds": %.6f, "system_seconds": %.6f, "system_calls": %llu})"
              "\n",
              static_cast<unsigned long long>(bytes), shared.seconds.load(), user, system,
              static_cast<unsigned long long>(calls));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Stripes bytes over TCP sockets and does nothing else");
  app.add_option("--network", options.network, "First two numbers of the loopback network");
  app.add_option("--nodes", options.nodes)->check(CLI::Range(2u, Shared::kMaxNodes));
  app.add_option("--rails", options.rails)->check(CLI::Range(1u, 64u));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1u, 1000000u));
  app.add_option("--bytes-per-pair", options.bytes_per_pair)->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 33));
  app.add_option("--send-buffer", options.send_buffer_bytes, "SO_SNDBUF; 0: the kernel's choice");
  app.add_flag("--io-uring", options.io_uring, "io_uring instead of epoll");
  CLI11_PARSE(app, argc, argv);

  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Check(memory != MAP_FAILED, "mmap");
  auto* shared = new (memory) Shared;
  std::vector<pid_t> children;
  for (uint32_t node = 0; node < options.nodes; ++node) {
    const pid_t child = fork();
    Check(child >= 0, "fork");
    if (child == 0) {
      Worker(options, node, shared).Run();
      std::_Exit(0);
    }
    children.push_back(child);
  }
  bool all_well = true;
  for (uint32_t node = 0; node < options.nodes; ++node) {
    int status = 0;
    wait(&status);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      all_well = false;
      break;  // the other processes would wait for it in a barrier forever
    }
  }
  if (!all_well) {
    for (const pid_t child : children) kill(child, SIGKILL);
    return 1;
  }
  Report(options, *shared);
  return 0;
}
