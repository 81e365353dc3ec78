#include "daemon/session/packet_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/base/unique_fd.h"

namespace railsd {
namespace {

// Closing a socket also closes descriptors queued in it, which may block as long as their owner chose.
TEST(DropUnreadTest, TakesEverythingThatIsQueuedBehindAnError) {
  int ends[2], pipe_ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  ASSERT_EQ(pipe2(pipe_ends, O_NONBLOCK), 0);
  const UniqueFd ours(ends[0]), reader(pipe_ends[0]);
  UniqueFd theirs(ends[1]), writer(pipe_ends[1]);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(SendPacket(theirs.get(), "packet", {writer.get()}));
  ASSERT_TRUE(SendPacket(theirs.get(), "")) << "looks like the end";
  ASSERT_TRUE(SendPacket(theirs.get(), "packet", {writer.get()}));
  ASSERT_TRUE(SendPacket(ours.get(), "an answer that nobody reads"));
  theirs.Reset();  // the next receive from it fails with ECONNRESET
  writer.Reset();
  char byte;
  ASSERT_EQ(read(reader.get(), &byte, 1), -1) << "the queue holds the pipe's other end";
  DropUnread(ours.get());
  EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "nothing does any more";
}

}  // namespace
}  // namespace railsd
