#include "daemon/peer/name_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/until.h"

namespace railsd {
namespace {

TEST(NameLookupTest, AnswersInOrderAndFirstOnesBefore) {
  absl::Notification go;
  NameLookup lookup([&](const std::string& address) {
    go.WaitForNotification();
    return NameLookup::Addresses({address});
  });
  for (const char* address : {"one", "two", "three"}) lookup.Ask(address);
  lookup.Ask("four", /*first=*/true);
  EXPECT_TRUE(lookup.TakeAnswers().empty());
  go.Notify();
  std::vector<std::string> answers;
  ASSERT_TRUE(testing::Until([&] {
    for (const NameLookup::Answer& answer : lookup.TakeAnswers()) {
      EXPECT_EQ(answer.found->at(0), answer.address);
      answers.push_back(answer.address);
    }
    return answers.size() == 4;
  }));
  // The first question may be under way, or not yet, when the last one comes.
  EXPECT_LE(std::find(answers.begin(), answers.end(), "four") - answers.begin(), 1);
  EXPECT_EQ(answers.back(), "three");
}

TEST(NameLookupTest, ItsEndDoesNotWaitForTheResolver) {
  // The thread may outlive the test's stack.
  const auto begun = std::make_shared<absl::Notification>(), go = std::make_shared<absl::Notification>(),
             left = std::make_shared<absl::Notification>();
  {
    NameLookup lookup([begun, go, last = std::shared_ptr<void>(nullptr, [left](void*) { left->Notify(); })](auto&) {
      begun->Notify();
      go->WaitForNotification();
      return NameLookup::Addresses(absl::NotFoundError("late"));
    });
    lookup.Ask("a name");
    lookup.Ask("another one");
    begun->WaitForNotification();
  }
  go->Notify();
  left->WaitForNotification();  // it has looked up no other name, since that would notify twice
}

}  // namespace
}  // namespace railsd
