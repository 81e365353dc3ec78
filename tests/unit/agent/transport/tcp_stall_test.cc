#include <gtest/gtest.h>

#include "agent/transport/tcp/stall.h"

namespace railsd::tcp {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kStall = 400 * kMs;

class StallTest : public ::testing::Test {
 protected:
  // Looks every 50 ms while `info` tells; returns after how many milliseconds it is broken, or -1 within ten seconds.
  template <typename Info>
  int64_t BrokenAfter(Info info) {
    for (int64_t ms = 50; ms <= 10'000; ms += 50) {
      if (watch_.Judge(info(ms), 1 + ms * kMs, kStall) == Progress::kBroken) return ms;
    }
    return -1;
  }
  StallWatch watch_;
};

TEST_F(StallTest, ABlackHoleIsFoundInHalfASecond) {
  const auto info = [](int64_t ms) {
    return ConnectionInfo{.unacknowledged_segments = 10,
                          .retransmissions = ms >= 600   ? 2u
                                             : ms >= 204 ? 1u
                                                         : 0u,
                          .since_acknowledged = ms * kMs};
  };
  EXPECT_GE(BrokenAfter(info), 400);
  StallWatch again;
  watch_ = again;
  EXPECT_LE(BrokenAfter(info), 500);
}

TEST_F(StallTest, ReceiversThatSleepAreNone) {
  // Their kernels acknowledge what fits, and then every probe of the closed window.
  EXPECT_EQ(
      BrokenAfter([](int64_t ms) { return ConnectionInfo{.probes = 1, .since_acknowledged = (ms % 3000) * kMs}; }), -1);
}

TEST_F(StallTest, ProbesThatNobodyAnswersAreOne) {
  EXPECT_GE(BrokenAfter([](int64_t ms) {
              return ConnectionInfo{.probes = static_cast<uint32_t>(ms / 200), .since_acknowledged = ms * kMs};
            }),
            400);
}

TEST_F(StallTest, ALostSegmentIsNone) {
  // After ten idle seconds the first segment is lost, and its retransmission is acknowledged soon.
  EXPECT_EQ(BrokenAfter([](int64_t ms) {
              const bool acknowledged = ms > 300;
              return ConnectionInfo{.unacknowledged_segments = acknowledged ? 0u : 1u,
                                    .retransmissions = ms > 204 && !acknowledged ? 1u : 0u,
                                    .since_acknowledged = acknowledged ? 0 : (10'000 + ms) * kMs};
            }),
            -1);
}

TEST_F(StallTest, ALongRoundTripIsNone) {
  EXPECT_EQ(BrokenAfter([](int64_t ms) {
              return ConnectionInfo{.unacknowledged_segments = 100, .since_acknowledged = ms * kMs};
            }),
            -1)
      << "the kernel has not given up waiting for the acknowledgement";
}

TEST_F(StallTest, HalfWayItIsSuspect) {
  ConnectionInfo info{.unacknowledged_segments = 1};
  EXPECT_EQ(watch_.Judge(info, 1, kStall), Progress::kMoving);
  info.retransmissions = 1;
  info.since_acknowledged = 250 * kMs;
  EXPECT_EQ(watch_.Judge(info, 100 * kMs, kStall), Progress::kStalled);
  info.retransmissions = 0;
  EXPECT_EQ(watch_.Judge(info, 150 * kMs, kStall), Progress::kMoving);
}

}  // namespace
}  // namespace railsd::tcp
