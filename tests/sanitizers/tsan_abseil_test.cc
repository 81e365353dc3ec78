// Programs of a ThreadSanitizer build rely on this: it sees the mutexes of Abseil, and still sees races.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace railsd {
namespace {

// Each of two threads writes a plain value, in the order that the primitive makes. Without it told, this would be a
// race, and the end of the program.
class Ordered : public ::testing::Test {
 protected:
  absl::Mutex mutex_;
  int turn_ = 0;
  int value_ = 0;
};

TEST_F(Ordered, ByAMutex) {
  const auto count = [this] {
    for (int i = 0; i < 1000; ++i) {
      const absl::MutexLock lock(&mutex_);
      ++value_;
    }
  };
  std::thread other(count);
  count();
  other.join();
  EXPECT_EQ(value_, 2000);
}

TEST_F(Ordered, ByTryLock) {
  const auto count = [this] {
    for (int done = 0; done < 1000;) {
      if (!mutex_.TryLock()) continue;
      ++value_;
      ++done;
      mutex_.Unlock();
    }
  };
  std::thread other(count);
  count();
  other.join();
  EXPECT_EQ(value_, 2000);
}

TEST_F(Ordered, ByAReaderLock) {
  std::thread other([this] {
    const absl::WriterMutexLock lock(&mutex_);
    value_ = 1;
  });
  for (int seen = 0; seen == 0;) {
    const absl::ReaderMutexLock lock(&mutex_);
    seen = value_;
  }
  other.join();
}

// Conditions are evaluated by whoever gives the mutex back.
TEST_F(Ordered, ByConditions) {
  std::thread other([this] {
    for (int i = 0; i < 100; ++i) {
      const auto mine = [this, i] { return turn_ == 2 * i + 1; };
      const absl::MutexLock lock(&mutex_, absl::Condition(&mine));
      ++turn_;
      ++value_;
    }
  });
  for (int i = 0; i < 100; ++i) {
    const absl::MutexLock lock(&mutex_);
    const auto mine = [this, i] { return turn_ == 2 * i; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&mine), absl::InfiniteDuration()));
    ++turn_;
    ++value_;
  }
  other.join();
  EXPECT_EQ(value_, 200);
}

TEST_F(Ordered, ByACondVar) {
  absl::CondVar changed;
  std::thread other([&] {
    const absl::MutexLock lock(&mutex_);
    value_ = 1;
    changed.Signal();
  });
  {
    const absl::MutexLock lock(&mutex_);
    while (value_ == 0) changed.WaitWithTimeout(&mutex_, absl::Seconds(1));
  }
  other.join();
}

TEST_F(Ordered, ByANotification) {
  absl::Notification written;
  absl::Notification read;
  std::thread other([&] {
    value_ = 1;
    written.Notify();
    while (!read.HasBeenNotified()) std::this_thread::yield();
    value_ = 3;
  });
  written.WaitForNotification();
  value_ = 2;
  read.Notify();
  other.join();
  EXPECT_EQ(value_, 3);
}

TEST_F(Ordered, ByTheCopiesOfAStatus) {
  for (int i = 0; i < 1000; ++i) {
    auto text = std::make_unique<absl::Status>(absl::InternalError("a text that is too long to be kept in place"));
    std::thread other([copy = *text] { EXPECT_FALSE(copy.message().empty()); });
    EXPECT_FALSE(text->message().empty());
    text.reset();
    other.join();
  }
}

TEST(RaceDeathTest, IsStillSeen) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        int value = 0;
        std::thread other([&] { ++value; });
        ++value;
        other.join();
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "data race");
}

}  // namespace
}  // namespace railsd
