#include "daemon/lifecycle/readiness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace railsd {
namespace {

struct Told {
  bool ready = true, live = false;
};

class ReadinessTest : public ::testing::Test {
 protected:
  ReadinessTest() {
    readiness_.AddListener([this](bool ready, bool live) { told_ = {ready, live}; });
  }
  Told told_;
  Readiness readiness_;
};

TEST_F(ReadinessTest, AListenerHearsAtOnceThatTheDaemonStarts) {
  EXPECT_FALSE(told_.ready);
  EXPECT_TRUE(told_.live);
  EXPECT_EQ(readiness_.why_not(), "starting");
}

TEST_F(ReadinessTest, ADrainTakesReadinessAndLeavesLife) {
  readiness_.SetStarted();
  EXPECT_TRUE(told_.ready);
  EXPECT_EQ(readiness_.why_not(), "");
  readiness_.SetDrained(true);
  EXPECT_FALSE(told_.ready);
  EXPECT_TRUE(told_.live);
  EXPECT_THAT(readiness_.why_not(), ::testing::HasSubstr("drained by an operator"));
  readiness_.SetDrained(false);
  EXPECT_TRUE(told_.ready);
}

TEST_F(ReadinessTest, AThreadThatHangsTakesBothUntilItGoesOn) {
  readiness_.SetStarted();
  readiness_.SetStuck({"rail-1", "copy-0"});
  EXPECT_FALSE(told_.ready);
  EXPECT_FALSE(told_.live);
  EXPECT_EQ(readiness_.why_not(), "these threads hang: rail-1, copy-0");
  readiness_.SetStuck({});
  EXPECT_TRUE(told_.ready);
  EXPECT_TRUE(told_.live);
}

TEST_F(ReadinessTest, NothingBringsAStoppingDaemonBack) {
  readiness_.SetStarted();
  readiness_.SetStopping();
  readiness_.SetDrained(false);
  EXPECT_FALSE(told_.ready);
  EXPECT_TRUE(told_.live);
  EXPECT_TRUE(readiness_.stopping());
}

}  // namespace
}  // namespace railsd
