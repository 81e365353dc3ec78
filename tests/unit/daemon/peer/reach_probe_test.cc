#include "daemon/peer/reach_probe.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

class ReachProbeTest : public ::testing::Test {
 protected:
  // Listens on loopback with a backlog for one connection, and accepts none.
  void Listen() {
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_.get(), 0), 0);
    const absl::StatusOr<tcp::SocketAddress> bound = tcp::LocalAddressOf(listener_.get());
    ASSERT_TRUE(bound.ok());
    address_ = bound->ToString();
  }
  // Steps until the result of an attempt that began now is known.
  Reach Ask(absl::Time now) {
    probe_.Step(address_, now);
    for (int i = 0; i < 1000 && probe_.reach() == Reach::kUnknown; ++i) {
      absl::SleepFor(absl::Milliseconds(1));
      probe_.Step(address_, now);
    }
    return probe_.reach();
  }

  UniqueFd listener_;
  std::string address_;
  ReachProbe probe_;
};

TEST_F(ReachProbeTest, SomebodyListens) {
  Listen();
  EXPECT_EQ(Ask(kStart), Reach::kListening);
  EXPECT_EQ(probe_.refused_since(), absl::InfiniteFuture());
}

TEST_F(ReachProbeTest, NobodyListensAndItIsKnownSinceWhen) {
  Listen();
  listener_.Reset();
  EXPECT_EQ(Ask(kStart), Reach::kRefused);
  EXPECT_EQ(probe_.refused_since(), kStart);
  for (int i = 0; i < 4; ++i) probe_.Step(address_, kStart + absl::Seconds(1));
  EXPECT_EQ(probe_.reach(), Reach::kRefused);
  EXPECT_EQ(probe_.refused_since(), kStart);
  probe_.Reset();
  EXPECT_EQ(probe_.reach(), Reach::kUnknown);
  EXPECT_EQ(probe_.refused_since(), absl::InfiniteFuture());
}

TEST_F(ReachProbeTest, NoAnswerIsSilenceAfterASecond) {
  Listen();
  // The kernel drops connection requests once its queue is full.
  std::vector<UniqueFd> fill;
  for (int i = 0; i < 4; ++i) {
    fill.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const absl::StatusOr<tcp::SocketAddress> to = tcp::ParseAddress(address_);
    connect(fill.back().get(), to->get(), to->length);
  }
  absl::SleepFor(absl::Milliseconds(20));
  probe_.Step(address_, kStart);
  probe_.Step(address_, kStart + absl::Milliseconds(900));
  EXPECT_EQ(probe_.reach(), Reach::kUnknown);
  probe_.Step(address_, kStart + absl::Milliseconds(1100));
  EXPECT_EQ(probe_.reach(), Reach::kSilent);
}

TEST_F(ReachProbeTest, ANameIsNotAsked) {
  for (const char* address : {"", "localhost:80", "127.0.0.1"}) {
    probe_.Step(address, kStart);
    probe_.Step(address, kStart + absl::Seconds(2));
    EXPECT_EQ(probe_.reach(), Reach::kUnknown) << address;
  }
}

}  // namespace
}  // namespace railsd
