// The chunk path allocates nothing.
#include <gtest/gtest.h>

#include <chrono>

#include "agent/transport/tcp/tcp_transport.h"
#include "tests/support/allocations.h"
#include "tests/support/test_memory.h"

namespace railsd {
namespace {

TEST(TcpAllocationTest, SteadyStateAllocatesNothing) {
  std::mt19937_64 random(1);
  ZoneTable zones;
  std::array<std::unique_ptr<RailTransport>, 2> ends;
  for (uint64_t i = 0; i < 2; ++i) {
    TcpOptions options;
    options.node = i == 0 ? "a" : "b";
    options.boot = BootId(i + 1);
    options.zones = &zones;
    options.listen_address = "127.0.0.1";
    options.frame_bytes = 10000;
    ends[i] = CreateTcpTransport(options).value();
  }
  ends[0]->SetPeer({PeerIndex(1), "b", BootId(2), ends[1]->Info().address});
  ends[1]->SetPeer({PeerIndex(1), "a", BootId(1), ends[0]->Info().address});
  constexpr uint64_t kBytes = 1 << 20;
  auto zone = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
  zone->peer = PeerIndex(1);
  zone->memory = testing::Scatter(testing::MakeSegment(kBytes), 0, kBytes, 2000, random);
  zones.Open(zone);
  const SendStream stream{.job = JobTag(1),
                          .peer = PeerIndex(1),
                          .memory = testing::Scatter(testing::MakeSegment(kBytes), 0, kBytes, 3000, random),
                          .zone = zone->ref};

  std::array<RailEvent, 64> events;
  size_t up = 0, done = 0, fences = 0;
  uint64_t connection = 0;
  const auto poll = [&] {
    for (auto& end : ends) {
      const size_t count = end->Poll(absl::ZeroDuration(), absl::MakeSpan(events));
      for (size_t i = 0; i < count; ++i) {
        up += events[i].kind == RailEvent::Kind::kPeerUp;
        if (events[i].kind == RailEvent::Kind::kPeerUp && end == ends[0]) connection = events[i].connection;
        done += events[i].kind == RailEvent::Kind::kSendDone;
        fences += events[i].kind == RailEvent::Kind::kFence;
      }
    }
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (up < 2 && std::chrono::steady_clock::now() < deadline) poll();
  ASSERT_EQ(up, 2u);
  poll();
  const uint64_t before = testing::AllocationsSoFar().count;
  size_t posted = 0;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t offset = 0; offset < kBytes; offset += kBytes / 16) {
      const SendOrder order{.stream = &stream,
                            .offset_bytes = offset,
                            .length_bytes = kBytes / 16,
                            .connection = connection,
                            .weight = 1};
      posted += ends[0]->Post({&order, 1});
      poll();
    }
  }
  while ((done < posted || fences < posted) && std::chrono::steady_clock::now() < deadline) poll();
  const uint64_t after = testing::AllocationsSoFar().count;
  EXPECT_EQ(posted, 320u);
  EXPECT_EQ(done, posted);
  EXPECT_EQ(fences, posted);
  EXPECT_EQ(zone->landed[0].bytes(), 20 * kBytes);
  EXPECT_EQ(after - before, 0u);
}

}  // namespace
}  // namespace railsd
