#include "daemon/peer/name_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/support/until.h"

namespace railsd {
namespace {

TEST(NameLookupTest, AnswersInOrderAndFirstOnesBefore) {
  absl::Mutex mutex;
  std::vector<std::string> answers;
  absl::Notification go;
  NameLookup lookup([&](const std::string& address, absl::StatusOr<std::vector<std::string>> found) {
    go.WaitForNotification();
    absl::MutexLock lock(&mutex);
    EXPECT_EQ(found.ok() ? (*found)[0] : "", address);
    answers.push_back(address);
  });
  lookup.Ask("127.0.0.1:1");
  for (const char* address : {"127.0.0.2:2", "127.0.0.3:3"}) lookup.Ask(address);
  lookup.Ask("127.0.0.4:4", /*first=*/true);
  go.Notify();
  ASSERT_TRUE(testing::Until([&] {
    absl::MutexLock lock(&mutex);
    return answers.size() == 4;
  }));
  absl::MutexLock lock(&mutex);
  // The first question may be under way, or not yet, when the last one comes.
  EXPECT_LE(std::find(answers.begin(), answers.end(), "127.0.0.4:4") - answers.begin(), 1);
  EXPECT_EQ(answers.back(), "127.0.0.3:3");
}

}  // namespace
}  // namespace railsd
