// A chunk on its way through a rail's thread allocates nothing.
#include <gtest/gtest.h>

#include <array>
#include <deque>

#include "agent/rails/rail_sender.h"
#include "tests/support/allocations.h"

namespace railsd::testing {
namespace {

// Takes every order. They end in the order in which they came.
class RingTransport final : public RailTransport {
 public:
  TransportInfo Info() override { return {}; }
  void SetPeer(const RailPeer&) override {}
  void RemovePeer(PeerIndex) override {}
  size_t Post(absl::Span<const SendOrder> orders) override {
    for (const SendOrder& order : orders) cookies_[posted_++ % cookies_.size()] = order.cookie;
    return orders.size();
  }
  void StopSends(JobTag) override {}
  size_t Poll(absl::Duration, absl::Span<RailEvent>) override { return 0; }
  void Wake() override {}

  uint64_t TakeOldest() { return cookies_[ended_++ % cookies_.size()]; }

 private:
  std::array<uint64_t, 1024> cookies_{};
  size_t posted_ = 0, ended_ = 0;
};

TEST(RailAllocationTest, NoneForAChunk) {
  constexpr uint32_t kPeers = 64, kTenants = 4, kChunk = 4096;
  RingTransport transport;
  RailBoard board(1);
  RailSender sender(RailIndex(0), {.speed_bytes_per_s = 1e9, .chunk_bytes = kChunk}, &board, &transport);
  absl::Time now = absl::UnixEpoch();
  std::deque<SendStream> streams;
  for (uint32_t peer = 0; peer < kPeers; ++peer) {
    RailPeer link;
    link.peer = PeerIndex(peer);
    sender.SetPeer(link);
    for (uint32_t tenant = 0; tenant < kTenants; ++tenant) {
      SendStream& stream = streams.emplace_back();
      stream.peer = PeerIndex(peer);
      Assignment all;
      all.stream = &stream;
      all.length_bytes = uint64_t{1} << 40;
      all.tenant = tenant;
      all.place = peer;
      all.weight = 255;
      sender.Give(all);
    }
  }
  std::array<RailEvent, 16> reports;
  const auto carry = [&](int chunks) {
    for (int i = 0; i < chunks; ++i) {
      sender.Post(now);
      now += absl::Microseconds(4);
      RailEvent end;
      end.kind = RailEvent::Kind::kSendDone;
      end.cookie = transport.TakeOldest();
      sender.OnEvent(end, now);
      while (sender.reports().Take(absl::MakeSpan(reports)) > 0) {
      }
    }
  };
  carry(10'000);
  const uint64_t before = AllocationsSoFar().count;
  carry(100'000);
  EXPECT_EQ(AllocationsSoFar().count - before, 0u);
}

}  // namespace
}  // namespace railsd::testing
