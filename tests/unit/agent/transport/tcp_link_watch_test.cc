// In a network namespace of its own.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/link_watch.h"

namespace railsd::tcp {
namespace {

bool Ip(const std::string& arguments) {
  return std::system(absl::StrCat("PATH=$PATH:/usr/sbin:/sbin ip ", arguments).c_str()) == 0;
}

class LinkWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "a network namespace needs root";
    if (::unshare(CLONE_NEWNET) != 0) GTEST_SKIP() << "no network namespace can be made here";
    if (!Ip("link set lo up") || !Ip("link add a0 type veth peer name b0") || !Ip("link set a0 up") ||
        !Ip("link set b0 up") || !Ip("addr add 10.9.0.1/24 dev a0")) {
      GTEST_SKIP() << "no veth interfaces can be made here";
    }
  }
  std::unique_ptr<LinkWatch> Watch(const std::string& address, const std::string& interface = "") {
    auto watch = std::make_unique<LinkWatch>(*ParseAddress(address), interface);
    EXPECT_TRUE(watch->Open().ok());
    Settle(*watch);
    return watch;
  }
  // Until the kernel has nothing more to say for a while. True: the error has changed on the way.
  static bool Settle(LinkWatch& watch) {
    bool changed = false;
    pollfd poll_fd{watch.fd(), POLLIN, 0};
    while (::poll(&poll_fd, 1, 100) > 0) changed = watch.Read() || changed;
    return changed;
  }
  // Waits for the error; carriers are told of by a work queue of the kernel.
  static bool Becomes(LinkWatch& watch, int error) {
    pollfd poll_fd{watch.fd(), POLLIN, 0};
    while (watch.error() != error && ::poll(&poll_fd, 1, 20'000) > 0) watch.Read();
    return watch.error() == error;
  }
};

TEST_F(LinkWatchTest, TheLoopbackHasAllOfItsNetwork) {
  auto watch = Watch("127.3.2.1:7000");
  EXPECT_EQ(watch->error(), 0);
  ASSERT_TRUE(Ip("link set lo down"));
  EXPECT_TRUE(Becomes(*watch, ENETDOWN) || watch->error() == EADDRNOTAVAIL) << watch->error();
  ASSERT_TRUE(Ip("link set lo up"));
  EXPECT_TRUE(Becomes(*watch, 0)) << watch->error();
}

TEST_F(LinkWatchTest, SwitchedOffAndOn) {
  auto watch = Watch("10.9.0.1");
  EXPECT_EQ(watch->error(), 0);
  ASSERT_TRUE(Ip("link set a0 down"));
  EXPECT_TRUE(Becomes(*watch, ENETDOWN)) << watch->error();
  ASSERT_TRUE(Ip("link set a0 up"));
  EXPECT_TRUE(Becomes(*watch, 0)) << watch->error();
}

// Some tools name addresses after the interface, with a suffix.
TEST_F(LinkWatchTest, AnAddressThatGetsALabel) {
  auto watch = Watch("10.9.0.1", "a0");
  ASSERT_TRUE(Ip("addr del 10.9.0.1/24 dev a0"));
  EXPECT_TRUE(Becomes(*watch, EADDRNOTAVAIL)) << watch->error();
  ASSERT_TRUE(Ip("addr add 10.9.0.1/24 dev a0 label a0:rail"));
  EXPECT_TRUE(Becomes(*watch, 0)) << watch->error();
}

TEST_F(LinkWatchTest, NoCarrier) {
  auto watch = Watch("10.9.0.1");
  ASSERT_TRUE(Ip("link set b0 down"));
  EXPECT_TRUE(Becomes(*watch, ENETDOWN)) << watch->error();
  ASSERT_TRUE(Ip("link set b0 up"));
  EXPECT_TRUE(Becomes(*watch, 0)) << watch->error();
}

TEST_F(LinkWatchTest, TheAddressIsTakenAwayAndGivenBack) {
  auto watch = Watch("10.9.0.1");
  ASSERT_TRUE(Ip("addr add 10.9.0.7/24 dev a0"));
  EXPECT_FALSE(Settle(*watch)) << "another address";
  ASSERT_TRUE(Ip("addr flush dev a0"));
  EXPECT_TRUE(Becomes(*watch, EADDRNOTAVAIL)) << watch->error();
  ASSERT_TRUE(Ip("addr add 10.9.0.1/24 dev a0"));
  EXPECT_TRUE(Becomes(*watch, 0)) << watch->error();
  ASSERT_TRUE(Ip("link del a0"));
  EXPECT_TRUE(Becomes(*watch, EADDRNOTAVAIL)) << watch->error();
}

TEST_F(LinkWatchTest, WhatWasNeverThereIsNotDown) {
  EXPECT_EQ(Watch("10.77.0.1")->error(), 0);
  EXPECT_EQ(Watch("0.0.0.0")->error(), 0);
  auto bound = Watch("0.0.0.0", "a0");
  EXPECT_EQ(bound->error(), 0);
  ASSERT_TRUE(Ip("link del a0"));
  EXPECT_TRUE(Becomes(*bound, ENODEV)) << bound->error();
}

// More messages than the socket holds: the state is read anew.
TEST_F(LinkWatchTest, LostMessagesAreMadeUpFor) {
  auto watch = Watch("10.9.0.1");
  ASSERT_TRUE(Ip("link set a0 down"));
  std::string batch;
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&batch, "link set b0 mtu ", 1400 + i % 2, "\\n");
  ASSERT_EQ(std::system(absl::StrCat("printf '", batch, "' | PATH=$PATH:/usr/sbin:/sbin ip -batch -").c_str()), 0);
  EXPECT_TRUE(Becomes(*watch, ENETDOWN)) << watch->error();
  ASSERT_TRUE(Ip("link set a0 up"));
  EXPECT_TRUE(Becomes(*watch, 0)) << watch->error();
}

}  // namespace
}  // namespace railsd::tcp
