// Measures the cost of the TCP transport alone: N processes with R rails each and a thread per rail. Every pair's bytes
// are striped over the rails in chunks under a window, through RailTransport from segment to segment, without planning
// and control. Shape, options and output are those of bench_bare, so the ratio of the two is the transport's cost:
//
//   bench_bare --nodes 4 --rails 4; bench_transport --nodes 4 --rails 4
//
// Prints one JSON object. Node n listens on NETWORK.(rail + 1).(n + 1).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "agent/memory/segment.h"
#include "agent/transport/tcp/tcp_transport.h"

namespace railsd {
namespace {

struct Options {
  std::string network = "127.78";
  uint32_t nodes = 4, rails = 4, rounds = 8;
  uint64_t bytes_per_pair = 16 << 20;
  uint64_t chunk_bytes = 1 << 20;
  uint32_t window = 4;  // chunks posted per destination and rail
  uint64_t frame_bytes = 0;
  int send_buffer_bytes = 0, receive_buffer_bytes = 0;
};
constexpr uint32_t kPort = 7480;

// Memory that the processes share: barriers, and the usage of each.
struct Shared {
  static constexpr uint32_t kMaxNodes = 64;
  struct PerNode {
    double user_seconds, system_seconds;
    uint64_t system_calls, polls, switches;
  };
  std::atomic<uint32_t> arrived{0};
  std::atomic<double> seconds{0};
  PerNode node[kMaxNodes]{};
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "bench_transport: %s\n", std::string(value.status().message()).c_str());
  std::_Exit(1);
}

// Waits until all threads of all processes have called it for the `count`-th time.
template <typename Meanwhile>
void Barrier(Shared* shared, const Options& options, uint32_t count, Meanwhile meanwhile) {
  shared->arrived.fetch_add(1);
  while (shared->arrived.load() < options.nodes * options.rails * count) meanwhile();
}
void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

std::shared_ptr<const Segment> MakeSegment(uint64_t bytes) {
  UniqueFd fd(::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Allocates the pages before the measurement, as trainers do.
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    std::perror("bench_transport: memfd");
    std::_Exit(1);
  }
  auto segment = Must(Segment::Map(SegmentId(1), std::move(fd), bytes));
  ::madvise(segment->base(), bytes, MADV_POPULATE_WRITE);
  return segment;
}

MemoryRanges RangesOf(const std::shared_ptr<const Segment>& segment, uint64_t offset_bytes, uint64_t length_bytes) {
  auto table = std::make_shared<MemoryTable>();
  table->Reserve(1);
  table->Hold(segment);
  MemoryTable::Writer writer(table.get());
  writer.Append(segment.get(), segment->base() + offset_bytes, length_bytes);
  return {table, writer.End()};
}

// One rail of one node, with its thread's loop.
class Worker {
 public:
  Worker(const Options& options, uint32_t node, uint32_t rail, ZoneTable* zones,
         const std::shared_ptr<const Segment>& send, const std::shared_ptr<const Segment>& receive)
      : options_(options), node_(node), rail_(rail) {
    TcpOptions tcp;
    tcp.rail = RailIndex(rail);
    tcp.node = Name(node);
    tcp.boot = BootId(node + 1);
    tcp.zones = zones;
    tcp.listen_address = Address(node);
    tcp.frame_bytes = options.frame_bytes;
    tcp.send_buffer_bytes = options.send_buffer_bytes;
    tcp.receive_buffer_bytes = options.receive_buffer_bytes;
    transport_ = Must(CreateTcpTransport(std::move(tcp)));
    const uint64_t from = options.bytes_per_pair * rail / options.rails;
    stripe_bytes_ = options.bytes_per_pair * (rail + 1) / options.rails - from;
    streams_ = std::vector<SendStream>(options.nodes);
    connections_.resize(options.nodes);
    for (uint32_t peer = 0; peer < options.nodes; ++peer) {
      const uint64_t base = peer * options.bytes_per_pair + from;
      streams_[peer].peer = PeerIndex(peer);
      streams_[peer].memory = RangesOf(send, base, stripe_bytes_);
      // Tables are filled in the same order everywhere: rail by rail, peer by peer.
      streams_[peer].zone = {static_cast<uint16_t>(1 + rail * options.nodes + node), 1};
      auto zone = std::make_shared<ReceiveZone>(options.rails, /*binds_zones=*/false);
      zone->peer = PeerIndex(peer);
      zone->memory = RangesOf(receive, base, stripe_bytes_);
      zones->Open(std::move(zone));
    }
  }

  void Connect() {
    for (uint32_t peer = 0; peer < options_.nodes; ++peer) {
      if (peer != node_) transport_->SetPeer({PeerIndex(peer), Name(peer), BootId(peer + 1), Address(peer)});
    }
    while (up_ + 1 < options_.nodes) PollOnce(absl::Seconds(1));
  }
  void Serve() { PollOnce(absl::Milliseconds(1)); }

  void Exchange() {
    posted_.assign(options_.nodes, 0);
    in_flight_.assign(options_.nodes, 0);
    posted_[node_] = stripe_bytes_;
    wanted_bytes_ += (options_.nodes - 1) * stripe_bytes_;
    wanted_fences_ += options_.nodes - 1;
    for (;;) {
      const bool all_posted = PostMore();
      if (all_posted && acknowledged_ == wanted_bytes_ && fences_ == wanted_fences_) return;
      PollOnce(absl::Seconds(1));
    }
  }
  const RailCounters& counters() const { return *transport_->Info().counters; }

 private:
  static std::string Name(uint32_t node) { return "node" + std::to_string(node); }
  std::string Address(uint32_t node) const {
    return options_.network + "." + std::to_string(rail_ + 1) + "." + std::to_string(node + 1) + ":" +
           std::to_string(kPort);
  }

  bool PostMore() {
    bool all = true;
    for (uint32_t peer = 0; peer < options_.nodes; ++peer) {
      while (posted_[peer] < stripe_bytes_ && in_flight_[peer] < options_.window) {
        const uint64_t length = std::min(options_.chunk_bytes, stripe_bytes_ - posted_[peer]);
        const bool last = posted_[peer] + length == stripe_bytes_;
        const SendOrder order{.stream = &streams_[peer],
                              .offset_bytes = posted_[peer],
                              .length_bytes = length,
                              .cookie = peer,
                              .connection = connections_[peer],
                              .weight = static_cast<uint8_t>(last ? kWholeWeight : 0)};
        if (transport_->Post({&order, 1}) == 0) break;
        posted_[peer] += length;
        ++in_flight_[peer];
      }
      all = all && posted_[peer] == stripe_bytes_;
    }
    return all;
  }

  void PollOnce(absl::Duration wait) {
    const size_t count = transport_->Poll(wait, absl::MakeSpan(events_));
    for (size_t i = 0; i < count; ++i) {
      const RailEvent& event = events_[i];
      if (event.kind == RailEvent::Kind::kPeerUp) {
        connections_[event.peer.value()] = event.connection;
        ++up_;
      }
      if (event.kind == RailEvent::Kind::kFence) ++fences_;
      if (event.kind != RailEvent::Kind::kSendDone) continue;
      if (event.result != SendResult::kAcknowledged) {
        std::fprintf(stderr, "bench_transport: an order failed (%d)\n", static_cast<int>(event.result));
        std::_Exit(1);
      }
      acknowledged_ += event.length_bytes;
      --in_flight_[event.cookie];
    }
  }

  const Options& options_;
  const uint32_t node_, rail_;
  std::unique_ptr<RailTransport> transport_;
  uint64_t stripe_bytes_ = 0;
  std::vector<SendStream> streams_;
  std::vector<uint64_t> posted_, connections_;
  std::vector<uint32_t> in_flight_;
  uint32_t up_ = 0;
  uint64_t wanted_bytes_ = 0, acknowledged_ = 0, wanted_fences_ = 0, fences_ = 0;
  std::array<RailEvent, 64> events_;
};

void RunNode(const Options& options, uint32_t node, Shared* shared) {
  const auto send = MakeSegment(options.bytes_per_pair * options.nodes);
  const auto receive = MakeSegment(options.bytes_per_pair * options.nodes);
  ZoneTable zones;
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t rail = 0; rail < options.rails; ++rail) {
    workers.push_back(std::make_unique<Worker>(options, node, rail, &zones, send, receive));
  }
  rusage before{}, after{};
  std::chrono::steady_clock::time_point start;
  uint64_t calls_before = 0;
  const auto calls = [&] {
    uint64_t sum = 0;
    for (const auto& worker : workers) {
      // Every Poll() makes at least one epoll_wait().
      sum += worker->counters().tx_system_calls + worker->counters().rx_system_calls + worker->counters().polls;
    }
    return sum;
  };
  std::vector<std::thread> threads;
  for (uint32_t rail = 0; rail < options.rails; ++rail) {
    threads.emplace_back([&, rail] {
      Worker& worker = *workers[rail];
      worker.Connect();
      Barrier(shared, options, 1, [&] { worker.Serve(); });  // other workers still connect
      if (rail == 0) {
        ::getrusage(RUSAGE_SELF, &before);
        start = std::chrono::steady_clock::now();
        calls_before = calls();
      }
      for (uint32_t round = 0; round < options.rounds; ++round) {
        worker.Exchange();
        Barrier(shared, options, 2 + round, Nap);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ::getrusage(RUSAGE_SELF, &after);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (node == 0) shared->seconds = elapsed.count();
  const auto seconds = [](const timeval& a, const timeval& b) {
    return static_cast<double>(b.tv_sec - a.tv_sec) + static_cast<double>(b.tv_usec - a.tv_usec) * 1e-6;
  };
  shared->node[node] = {seconds(before.ru_utime, after.ru_utime), seconds(before.ru_stime, after.ru_stime),
                        calls() - calls_before, 0,
                        static_cast<uint64_t>(after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw)};
}

void Report(const Options& options, const Shared& shared) {
  double user = 0, system = 0;
  uint64_t calls = 0, switches = 0;
  for (uint32_t node = 0; node < options.nodes; ++node) {
    user += shared.node[node].user_seconds;
    system += shared.node[node].system_seconds;
    calls += shared.node[node].system_calls;
    switches += shared.node[node].switches;
  }
  const uint64_t bytes = options.bytes_per_pair * options.nodes * (options.nodes - 1) * options.rounds;
  std::printf(R"({"bytes": %llu, "seconds": %.6f, "user_seconds": %.6f, "system_seconds": %.6f, "system_calls": %llu, )"
              R"("context_switches": %llu, "cpu_seconds_per_gb": %.4f})"
              "\n",
              static_cast<unsigned long long>(bytes), shared.seconds.load(), user, system,
              static_cast<unsigned long long>(calls), static_cast<unsigned long long>(switches),
              (user + system) * 1e9 / static_cast<double>(bytes));
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Stripes bytes over the rails of the TCP transport and does nothing else");
  app.add_option("--network", options.network, "First two numbers of the loopback network");
  app.add_option("--nodes", options.nodes)->check(CLI::Range(2u, Shared::kMaxNodes));
  app.add_option("--rails", options.rails)->check(CLI::Range(1u, 64u));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1u, 1000000u));
  app.add_option("--bytes-per-pair", options.bytes_per_pair)->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 33));
  app.add_option("--chunk", options.chunk_bytes, "Bytes per order")->check(CLI::Range(uint64_t{1}, uint64_t{1} << 30));
  app.add_option("--window", options.window, "Orders posted per destination and rail")->check(CLI::Range(1u, 256u));
  app.add_option("--frame", options.frame_bytes, "Bytes per frame; 0: the transport's choice");
  app.add_option("--send-buffer", options.send_buffer_bytes, "SO_SNDBUF; 0: the kernel's choice");
  app.add_option("--receive-buffer", options.receive_buffer_bytes, "SO_RCVBUF; 0: the kernel's choice");
  CLI11_PARSE(app, argc, argv);

  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* shared = new (memory) Shared;
  std::vector<pid_t> children;
  for (uint32_t node = 0; node < options.nodes; ++node) {
    const pid_t child = ::fork();
    if (child == 0) {
      RunNode(options, node, shared);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  bool all_well = true;
  for (uint32_t node = 0; node < options.nodes && all_well; ++node) {
    int status = 0;
    ::wait(&status);
    all_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!all_well) {
    for (const pid_t child : children) ::kill(child, SIGKILL);
    return 1;
  }
  Report(options, *shared);
  return 0;
}

}  // namespace
}  // namespace railsd

int main(int argc, char** argv) { return railsd::Main(argc, argv); }
