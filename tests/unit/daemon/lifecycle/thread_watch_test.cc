#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/lifecycle/serve.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ThreadWatchTest, AThreadThatComesRoundIsNeverStuck) {
  ThreadWatch watch(2);
  for (uint64_t turn = 1; turn < 20; ++turn) {
    EXPECT_THAT(watch.Look({{"engine", turn}, {"rail-0", 1000 * turn}}), IsEmpty());
  }
}

TEST(ThreadWatchTest, OneThatDoesNotIsStuckAfterSoManyLooksUntilItDoes) {
  ThreadWatch watch(2);
  EXPECT_THAT(watch.Look({{"engine", 1}, {"rail-0", 7}, {"rail-1", 7}}), IsEmpty());
  EXPECT_THAT(watch.Look({{"engine", 2}, {"rail-0", 7}, {"rail-1", 7}}), IsEmpty());
  EXPECT_THAT(watch.Look({{"engine", 3}, {"rail-0", 7}, {"rail-1", 8}}), ElementsAre("rail-0"));
  EXPECT_THAT(watch.Look({{"engine", 4}, {"rail-0", 7}, {"rail-1", 8}}), ElementsAre("rail-0"));
  EXPECT_THAT(watch.Look({{"engine", 4}, {"rail-0", 8}, {"rail-1", 8}}), ElementsAre("rail-1"));
  EXPECT_THAT(watch.Look({{"engine", 5}, {"rail-0", 9}, {"rail-1", 9}}), IsEmpty());
}

TEST(ThreadWatchTest, AThreadThatHasNotBegunYetGetsTheSamePatience) {
  ThreadWatch watch(3);
  for (int look = 0; look < 3; ++look) EXPECT_THAT(watch.Look({{"rail-0", 0}}), IsEmpty());
  EXPECT_THAT(watch.Look({{"rail-0", 0}}), ElementsAre("rail-0"));
}

}  // namespace
}  // namespace railsd
