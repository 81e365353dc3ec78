// Free ports for hubs, which must know each other's ports before they start.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_FREE_PORT_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_FREE_PORT_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace railsd {

// Binds a free port, releases it and returns its number.
inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_FREE_PORT_H_
