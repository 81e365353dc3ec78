// Sends a packet with any descriptors, which neither end of the descriptor socket would send.
#ifndef RAILSD_TESTS_UNIT_DAEMON_SESSION_SEND_PACKET_H_
#define RAILSD_TESTS_UNIT_DAEMON_SESSION_SEND_PACKET_H_

#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

namespace railsd::testing {

// False: the other end has closed the connection, or the kernel refuses so many descriptors.
inline bool SendPacket(int socket, const std::string& bytes, const std::vector<int>& fds) {
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  iovec io = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) >= 0;
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_DAEMON_SESSION_SEND_PACKET_H_
