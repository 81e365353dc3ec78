// A client of the descriptor socket, made by hand.
#ifndef RAILSD_TESTS_UNIT_DAEMON_SESSION_DESCRIPTOR_CLIENT_H_
#define RAILSD_TESTS_UNIT_DAEMON_SESSION_DESCRIPTOR_CLIENT_H_

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/unique_fd.h"
#include "daemon/session/packet_socket.h"
#include "rails/v1/descriptor.pb.h"
#include "tests/unit/daemon/session/send_packet.h"

namespace railsd::testing {

inline size_t OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

inline std::string OpenRequest(const std::string& name = "test") {
  rails::v1::DescriptorRequest request;
  request.mutable_open_session()->set_min_version(1);
  request.mutable_open_session()->set_max_version(1);
  request.mutable_open_session()->set_client_name(name);
  return request.SerializeAsString();
}
inline std::string OpenRingRequest(uint32_t min_version = 1, uint32_t max_version = 1) {
  rails::v1::DescriptorRequest request;
  request.mutable_open_ring()->set_min_version(min_version);
  request.mutable_open_ring()->set_max_version(max_version);
  return request.SerializeAsString();
}
inline std::string AddRequest(uint32_t id, uint64_t length) {
  rails::v1::DescriptorRequest request;
  request.mutable_add_segment()->set_segment_id(id);
  request.mutable_add_segment()->set_length_bytes(length);
  return request.SerializeAsString();
}
inline std::string ReserveRequest(uint32_t id, uint64_t length) {
  rails::v1::DescriptorRequest request;
  request.mutable_reserve_segment()->set_segment_id(id);
  request.mutable_reserve_segment()->set_length_bytes(length);
  return request.SerializeAsString();
}

class DescriptorClient {
 public:
  explicit DescriptorClient(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.data(), path.size());
    connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  int fd() const { return socket_.get(); }
  bool connected() const { return connected_; }
  bool Send(const std::string& bytes, const std::vector<int>& fds = {}) {
    return SendPacket(socket_.get(), bytes, fds);
  }
  // Waits for the next answer. False: the server has closed the connection.
  bool Receive(rails::v1::DescriptorResponse* response, std::vector<UniqueFd>* fds = nullptr) {
    pollfd entry = {socket_.get(), POLLIN, 0};
    if (poll(&entry, 1, 10'000) != 1) return false;
    Packet packet = ReceivePacket(socket_.get());
    if (packet.kind != Packet::Kind::kPacket) return false;
    if (fds != nullptr) *fds = std::move(packet.fds);
    return response->ParseFromString(packet.bytes);
  }
  rails::v1::DescriptorResponse Ask(const std::string& bytes, const std::vector<int>& fds = {}) {
    rails::v1::DescriptorResponse response;
    EXPECT_TRUE(Send(bytes, fds));
    EXPECT_TRUE(Receive(&response));
    return response;
  }
  bool Closed() {
    rails::v1::DescriptorResponse response;
    while (Receive(&response)) {
    }
    return true;
  }
  void Close() { socket_.Reset(); }

 private:
  UniqueFd socket_;
  bool connected_ = false;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_DAEMON_SESSION_DESCRIPTOR_CLIENT_H_
