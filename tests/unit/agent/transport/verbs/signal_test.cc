#include "agent/transport/verbs/signal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/seeds.h"

namespace railsd::verbs {
namespace {

using ::testing::HasSubstr;

Signal Hello() {
  Signal signal;
  signal.state = LinkState::kConnected;
  signal.node = "node-a";
  signal.rail = RailIndex(3);
  signal.port = "mlx5_3/1";
  signal.boot = BootId(0x1122334455667788);
  signal.to_boot = BootId(7);
  signal.generation = 5;
  signal.answers = 9;
  signal.endpoint.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 10, 1};
  signal.endpoint.lid = 12;
  signal.endpoint.link_layer = LinkLayer::kEthernet;
  signal.endpoint.mtu_bytes = 1024;
  signal.endpoint.max_dest_rd_atomic = 16;
  signal.endpoint.queue_pairs = {{0x123456, 0xfedcba}, {17, 0}};
  return signal;
}

TEST(RailSignal, HelloRoundTrip) { EXPECT_EQ(DecodeSignal(EncodeSignal(Hello())).value(), Hello()); }

TEST(RailSignal, DownAndRefusedRoundTrip) {
  Signal down = Hello();
  down.kind = Signal::Kind::kDown;
  down.endpoint = {};
  EXPECT_EQ(DecodeSignal(EncodeSignal(down)).value(), down);
  Signal refused = down;
  refused.kind = Signal::Kind::kRefused;
  refused.reason = RefusalReason::kRail;
  refused.text = "the rails would cross";
  EXPECT_EQ(DecodeSignal(EncodeSignal(refused)).value(), refused);
}

TEST(RailSignal, TheLargestFits) {
  Signal signal = Hello();
  signal.node = signal.port = std::string(300, 'x');
  signal.endpoint.queue_pairs.assign(kMaxQueuePairsPerPeer, {1, 2});
  const std::string bytes = EncodeSignal(signal);
  EXPECT_LE(bytes.size(), kMaxSignalBytes);
  EXPECT_EQ(DecodeSignal(bytes).value().node, std::string(255, 'x'));
}

TEST(RailSignal, AnotherVersionIsReadAsFarAsItGoes) {
  Signal signal = Hello();
  signal.version = 2;
  EXPECT_EQ(DecodeSignal(EncodeSignal(signal)).value().version, 2);
  EXPECT_EQ(DecodeSignal(EncodeSignal(signal).substr(0, 6)).value().version, 2);
}

TEST(RailSignal, EveryCutIsRefused) {
  const std::string bytes = EncodeSignal(Hello());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeSignal(bytes.substr(0, length)).ok()) << length;
  }
  EXPECT_THAT(std::string(DecodeSignal(bytes + "x").status().message()), HasSubstr("1 bytes too many"));
  EXPECT_FALSE(DecodeSignal(std::string(kMaxSignalBytes + 1, 'x')).ok());
}

TEST(RailSignal, ValuesOutOfRangeAreRefusedByName) {
  const auto message = [](const Signal& signal) {
    return std::string(DecodeSignal(EncodeSignal(signal)).status().message());
  };
  Signal signal = Hello();
  signal.endpoint.mtu_bytes = 1000;
  EXPECT_THAT(message(signal), HasSubstr("MTU 1000"));
  signal = Hello();
  signal.endpoint.queue_pairs.clear();
  EXPECT_THAT(message(signal), HasSubstr("0 queue pairs"));
  signal = Hello();
  signal.endpoint.queue_pairs[1].number = 1 << 24;
  EXPECT_THAT(message(signal), HasSubstr("queue pair 1"));
  signal = Hello();
  signal.generation = 0;
  EXPECT_THAT(message(signal), HasSubstr("generation 0"));
  signal = Hello();
  signal.answers = 0;
  EXPECT_THAT(message(signal), HasSubstr("does not go with"));
  signal = Hello();
  signal.endpoint.link_layer = static_cast<LinkLayer>(3);
  EXPECT_THAT(message(signal), HasSubstr("link layer 3"));
  signal = Hello();
  signal.kind = static_cast<Signal::Kind>(4);
  EXPECT_THAT(message(signal), HasSubstr("kind 4"));
}

TEST(RailSignal, DamagedBytesNeverHurt) {
  std::mt19937_64 random = testing::SeededRandom();
  const std::string good = EncodeSignal(Hello());
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % 4 == 0 ? random() % (bytes.size() + 40) : bytes.size());
    const absl::StatusOr<Signal> signal = DecodeSignal(bytes);
    if (signal.ok() && signal->version == kSignalVersion) {
      EXPECT_EQ(EncodeSignal(*signal), bytes);
    }
  }
}

TEST(GidText, AddressesAsPeopleWriteThem) {
  EXPECT_EQ(GidText(Hello().endpoint.gid), "192.168.10.1");
  EXPECT_EQ(GidText({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}), "fe80::1");
}

}  // namespace
}  // namespace railsd::verbs
