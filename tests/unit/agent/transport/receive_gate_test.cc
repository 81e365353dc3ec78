#include "agent/transport/receive_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace railsd {
namespace {

TEST(ReceiveGateTest, ClosedOnceNobodyIsInside) {
  ReceiveGate gate;
  ASSERT_TRUE(gate.Enter());
  EXPECT_FALSE(gate.Close());
  EXPECT_FALSE(gate.Enter());
  gate.Leave();
  EXPECT_TRUE(gate.Close());
  EXPECT_FALSE(gate.Enter());
}

// Whoever got in when Close() said that nobody was inside would write into memory that is somebody else's by then.
TEST(ReceiveGateTest, NobodyIsInsideAfterAnEmptyClose) {
  for (int round = 0; round < 300; ++round) {
    ReceiveGate gate;
    std::atomic<bool> quiet{false};
    std::atomic<int> late{0};
    std::vector<std::thread> rails;
    for (int r = 0; r < 3; ++r) {
      rails.emplace_back([&] {
        while (gate.Enter()) {
          late += quiet.load();
          gate.Leave();
        }
      });
    }
    while (!gate.Close()) std::this_thread::yield();
    quiet = true;
    for (std::thread& rail : rails) rail.join();
    ASSERT_EQ(late.load(), 0);
  }
}

}  // namespace
}  // namespace railsd
