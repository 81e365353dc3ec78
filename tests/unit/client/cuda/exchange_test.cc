// Random exchanges between ranks with device memory: every byte, and no access that nothing orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/support/seeds.h"
#include "tests/unit/client/cuda/rank.h"

namespace railsd::testing {
namespace {

struct Shape {
  uint32_t world_size = 2, nodes = 2;
  rails::cuda::Staging staging{};
  uint32_t turns = 3;
  bool flushes = false;  // some rank receives what a network card writes
  bool direct = false;   // network cards reach the memory of the device
  bool capacities = false;
  std::vector<std::vector<uint64_t>> bytes{};  // by source and destination
  std::vector<std::vector<uint64_t>> rooms{};  // what the destination gives; the same without capacities
};

Shape RandomShape(uint64_t seed, bool capacities) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  Shape shape{.world_size = 1 + static_cast<uint32_t>(below(5)), .capacities = capacities};
  shape.nodes = 1 + static_cast<uint32_t>(below(shape.world_size));
  shape.staging.local_copies = below(4) != 0;
  shape.staging.slice_bytes = shape.world_size * 64 + below(4000);
  shape.staging.slices = 1 + static_cast<uint32_t>(below(4));
  const uint64_t longest = below(2) == 0 ? 200 : 9000;
  shape.bytes.assign(shape.world_size, std::vector<uint64_t>(shape.world_size));
  shape.rooms = shape.bytes;
  for (uint32_t from = 0; from < shape.world_size; ++from) {
    for (uint32_t to = 0; to < shape.world_size; ++to) {
      const uint64_t bytes = below(4) == 0 ? 0 : below(longest);
      shape.bytes[from][to] = bytes;
      shape.rooms[from][to] = bytes + (capacities ? below(3) * below(longest) : 0);
    }
  }
  return shape;
}

std::string Content(uint32_t turn, uint32_t from, uint32_t to, uint64_t bytes) {
  std::string content(bytes, 0);
  uint64_t value = turn * 1000003 + from * 1009 + to * 7 + 1;
  for (char& byte : content) {
    value = value * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<char>(value >> 56);
  }
  return content;
}

// Bytes that a rank sends or receives, one flow after the other: ranges of device memory, or of a segment for flows of
// an odd number.
class Buffers {
 public:
  Buffers(Rank& rank, const std::vector<uint64_t>& rooms, std::mt19937_64& random) {
    uint64_t device_bytes = 1, host_bytes = 1;
    for (size_t i = 0; i < rooms.size(); ++i) (OnHost(i) ? host_bytes : device_bytes) += rooms[i];
    device = *rank.device->Allocate(device_bytes);
    host = *rank.client->CreateSegment(host_bytes, {});
    uint64_t device_at = 0, host_at = 0;
    for (size_t i = 0; i < rooms.size(); ++i) {
      uint64_t& at = OnHost(i) ? host_at : device_at;
      begins_.push_back(at);
      rails::FlowRanges flow{.rank = static_cast<uint32_t>(i)};
      for (uint64_t left = rooms[i]; left > 0;) {
        const uint64_t length = random() % 2 == 0 ? left : 1 + random() % left;
        flow.ranges.push_back({OnHost(i) ? host : std::static_pointer_cast<rails::Segment>(device), at, length});
        at += length;
        left -= length;
      }
      flows.push_back(std::move(flow));
    }
  }

  static bool OnHost(size_t flow) { return flow % 3 == 2; }
  // The bytes of a flow, in what the device and the host have.
  std::string Of(size_t flow, uint64_t bytes, const std::string& on_device) const {
    if (!OnHost(flow)) return on_device.substr(begins_[flow], bytes);
    return {reinterpret_cast<const char*>(host->bytes().data()) + begins_[flow], bytes};
  }
  void Put(size_t flow, const std::string& bytes, std::string* on_device) const {
    if (OnHost(flow)) {
      std::memcpy(host->bytes().data() + begins_[flow], bytes.data(), bytes.size());
    } else {
      on_device->replace(begins_[flow], bytes.size(), bytes);
    }
  }

  std::shared_ptr<rails::cuda::Memory> device;
  std::shared_ptr<rails::Segment> host;
  std::vector<rails::FlowRanges> flows;

 private:
  std::vector<uint64_t> begins_;
};

// One rank's turns, which the host does not wait for: kernels before and after a job use the same device memory.
void Play(const Shape& shape, uint64_t seed, MemoryCluster& cluster, uint32_t number) {
  Rank rank(cluster, number, shape.world_size, shape.staging);
  ASSERT_TRUE(rank.status.ok()) << rank.status;
  std::mt19937_64 random(seed * 100 + number);
  std::vector<uint64_t> send_bytes = shape.bytes[number], receive_bytes, receive_rooms;
  std::vector<bool> local;  // copied between devices of the node
  for (uint32_t from = 0; from < shape.world_size; ++from) {
    local.push_back(shape.staging.local_copies && from != number && from % shape.nodes == number % shape.nodes);
    receive_bytes.push_back(shape.bytes[from][number]);
    receive_rooms.push_back(shape.rooms[from][number]);
  }
  // Segments take the bytes of one turn; device memory those of all, one after the other.
  std::vector<Buffers> sends, receives;
  std::vector<std::string> sent(shape.turns), received(shape.turns);
  std::vector<Pinned> pinned;
  std::vector<std::shared_ptr<rails::cuda::Job>> jobs;
  for (uint32_t turn = 0; turn < shape.turns; ++turn) {
    sends.emplace_back(rank, send_bytes, random);
    receives.emplace_back(rank, receive_rooms, random);
    if (turn > 0) {
      for (Buffers* buffers : {&sends.back(), &receives.back()}) {
        const auto& first = buffers == &sends.back() ? sends[0].device : receives[0].device;
        for (rails::FlowRanges& flow : buffers->flows) {
          for (rails::Range& range : flow.ranges) {
            if (range.segment == buffers->device) range.segment = first;
          }
        }
        buffers->device = first;
      }
    }
  }
  for (uint32_t turn = 0; turn < shape.turns; ++turn) {
    sent[turn].resize(sends[0].device->length_bytes());
    received[turn].resize(receives[0].device->length_bytes());
    for (std::string* bytes : {&sent[turn], &received[turn]}) pinned.emplace_back(*rank.driver, bytes);
    for (uint32_t to = 0; to < shape.world_size; ++to) {
      sends[turn].Put(to, Content(turn, number, to, send_bytes[to]), &sent[turn]);
    }
    rank.Write(*sends[0].device, sent[turn]);
    auto job = rank.group->Submit(
        {.sends = sends[turn].flows, .receives = receives[turn].flows, .tag = turn, .capacities = shape.capacities},
        rank.stream, kLimit);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE((*job)->WaitOn(rank.stream).ok());
    rank.Read(*receives[0].device, &received[turn]);
    jobs.push_back(*std::move(job));
  }
  rank.driver->cuStreamSynchronize(rank.stream);
  for (uint32_t turn = 0; turn < shape.turns; ++turn) {
    const auto report = jobs[turn]->Wait(absl::InfiniteDuration());
    ASSERT_TRUE(report.ok() && report->status.ok()) << report.status() << report->status;
    uint64_t to_host = 0, to_device = 0, read = 0;  // by copies
    for (uint32_t from = 0; from < shape.world_size; ++from) {
      EXPECT_EQ(receives[turn].Of(from, receive_bytes[from], received[turn]),
                Content(turn, from, number, receive_bytes[from]))
          << "turn " << turn << ", from " << from << " to " << number;
      const bool in_node = from % shape.nodes == number % shape.nodes, staged = in_node || !shape.direct;
      if (local[from]) {
        read += receive_bytes[from];
      } else if (from != number && staged) {
        if (!Buffers::OnHost(from)) to_device += receive_bytes[from], to_host += send_bytes[from];
      }
      if (shape.capacities) {
        EXPECT_EQ(report->received_by_rank[from], receive_bytes[from]) << from << " to " << number;
      }
    }
    EXPECT_EQ(jobs[turn]->copies().to_host_bytes, to_host);
    EXPECT_EQ(jobs[turn]->copies().to_device_bytes, to_device);
    EXPECT_EQ(jobs[turn]->copies().local_bytes, read);
  }
}

class ExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override { fakeReset(); }
  void Run(const Shape& shape, uint64_t seed) {
    fakeSetDelays(seed, 200);
    fakeSetAttribute(124, shape.direct ? 1 : 0);  // dma-bufs
    {
      MemoryCluster cluster(shape.world_size, seed, shape.nodes);
      OnRanks(shape.world_size, [&](uint32_t rank) { Play(shape, seed, cluster, rank); });
    }
    EXPECT_EQ(fakeCounts().flushes > 0, shape.direct && shape.flushes);
    for (uint64_t i = 0; i < std::min<uint64_t>(fakeViolations(), 5); ++i) ADD_FAILURE() << fakeViolation(i);
    const FakeLive live = fakeLive();
    EXPECT_EQ(live.allocations, 0);
    EXPECT_EQ(live.streams, 0);
    EXPECT_EQ(live.events, 0);
    EXPECT_EQ(live.contexts, 0);
    EXPECT_EQ(live.registrations, shape.world_size) << "more than the words for which streams wait";
    fakeReset();
  }
};

TEST_F(ExchangeTest, EveryByteArrives) {
  for (const uint64_t seed : Seeds(40)) {
    SCOPED_TRACE(seed);
    Run(RandomShape(seed, /*capacities=*/false), seed);
    if (HasFailure()) return;
  }
}

TEST_F(ExchangeTest, NetworkCardsReachTheDevice) {
  for (const uint64_t seed : Seeds(40)) {
    SCOPED_TRACE(seed);
    Shape shape = RandomShape(seed, /*capacities=*/seed % 2 == 0);
    shape.direct = true;
    for (uint32_t from = 0; from < shape.world_size; ++from) {
      for (uint32_t to = 0; to < shape.world_size; ++to) {
        const bool crosses = from % shape.nodes != to % shape.nodes && !Buffers::OnHost(from);
        shape.flushes = shape.flushes || (crosses && shape.rooms[from][to] > 0);
      }
    }
    Run(shape, seed);
    if (HasFailure()) return;
  }
}

// More ranges than a note for a rank of the node has room for, some of a segment: they are gathered first.
TEST_F(ExchangeTest, ManyRangesGoToRanksOfTheNode) {
  constexpr uint64_t kRanges = 40, kBytes = 25;
  {
    MemoryCluster cluster(2, 1, /*nodes=*/1);
    OnRanks(2, [&](uint32_t number) {
      Rank rank(cluster, number, 2, {.slice_bytes = 200});
      const auto send = *rank.device->Allocate(2 * kRanges * kBytes),
                 receive = *rank.device->Allocate(kRanges * kBytes);
      const auto host = *rank.client->CreateSegment(kRanges * kBytes, {});
      const uint32_t peer = 1 - number;
      const std::string own = Content(0, number, peer, kRanges * kBytes),
                        expected = Content(0, peer, number, kRanges * kBytes);
      std::string on_device(send->length_bytes(), 0);
      rails::AllToAllv exchange{.sends = {{peer, {}}}, .receives = {{peer, {{receive, 0, kRanges * kBytes}}}}};
      for (uint64_t i = 0; i < kRanges; ++i) {  // every second piece of `send`, and every fifth range of `host`
        const std::string piece = own.substr(i * kBytes, kBytes);
        if (i % 5 == 0) {
          std::memcpy(host->bytes().data() + i * kBytes, piece.data(), kBytes);
          exchange.sends[0].ranges.push_back({host, i * kBytes, kBytes});
        } else {
          on_device.replace(2 * i * kBytes, kBytes, piece);
          exchange.sends[0].ranges.push_back({send, 2 * i * kBytes, kBytes});
        }
      }
      rank.Write(*send, on_device);
      auto job = rank.group->Submit(exchange, rank.stream, kLimit);
      ASSERT_TRUE(job.ok()) << job.status();
      ASSERT_TRUE((*job)->Wait(kLimit)->status.ok());
      std::string landed;
      rank.Read(*receive, &landed);
      EXPECT_EQ(landed, expected);
      EXPECT_EQ((*job)->copies().local_bytes, kRanges * kBytes);
    });
  }
  EXPECT_EQ(fakeViolations(), 0u) << fakeViolation(0);
  fakeReset();
}

// Jobs that a stream orders, each of which sends what the one before it has received. The host waits for none of them.
TEST_F(ExchangeTest, AStreamOrdersJobsWithoutTheHost) {
  constexpr uint32_t kRanks = 2;
  constexpr uint64_t kBytes = 1000;
  for (const uint64_t seed : Seeds(10)) {
    SCOPED_TRACE(seed);
    fakeSetDelays(seed, 200);
    MemoryCluster cluster(kRanks, seed);
    OnRanks(kRanks, [&](uint32_t number) {
      Rank rank(cluster, number, kRanks, {.slice_bytes = 300, .slices = 1 + static_cast<uint32_t>(seed % 4)});
      const std::shared_ptr<rails::cuda::Memory> memory[] = {*rank.device->Allocate(kRanks * kBytes),
                                                             *rank.device->Allocate(kRanks * kBytes)};
      const std::string sent = Content(0, number, 0, kRanks * kBytes);
      rank.Write(*memory[0], sent);
      std::vector<std::shared_ptr<rails::cuda::Job>> jobs;
      for (int turn = 0; turn < 6; ++turn) {
        rails::AllToAllv exchange;
        for (uint32_t peer = 0; peer < kRanks; ++peer) {
          exchange.sends.push_back({peer, {{memory[turn % 2], peer * kBytes, kBytes}}});
          exchange.receives.push_back({peer, {{memory[1 - turn % 2], peer * kBytes, kBytes}}});
        }
        auto job = rank.group->Submit(exchange, rank.stream, kLimit);
        ASSERT_TRUE(job.ok()) << job.status();
        jobs.push_back(*std::move(job));
        ASSERT_TRUE(jobs.back()->WaitOn(rank.stream).ok());
      }
      for (const auto& job : jobs) ASSERT_TRUE(job->Wait(kLimit)->status.ok());
      std::string landed;
      rank.Read(*memory[0], &landed);
      EXPECT_EQ(landed, sent);
    });
    EXPECT_EQ(fakeViolations(), 0u) << fakeViolation(0);
    fakeReset();
  }
}

TEST_F(ExchangeTest, CapacitiesTakeWhatComes) {
  for (const uint64_t seed : Seeds(40)) {
    SCOPED_TRACE(seed);
    Run(RandomShape(seed, /*capacities=*/true), seed);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace railsd::testing
