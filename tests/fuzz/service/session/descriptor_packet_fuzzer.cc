// Any bytes as the packets of a connection to the descriptor socket, each with some descriptors: a server takes what a
// second look at the rules takes, answers everything else with the reason, and when the connection is closed no
// descriptor and no session is left. A packet is: how many descriptors, a byte; its length, two bytes; itself.
#include <google/protobuf/stubs/logging.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/lifecycle/logging.h"
#include "daemon/session/descriptor_server.h"
#include "daemon/session/packet_socket.h"
#include "rails/v1/descriptor.pb.h"
#include "tests/fuzz/service/descriptors.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/session/send_packet.h"

namespace {

using rails::v1::DescriptorRequest;
using rails::v1::DescriptorResponse;
using railsd::testing::File;
using railsd::testing::OpenDescriptors;
using railsd::testing::Require;
using railsd::testing::SocketAddress;
using railsd::testing::SocketName;

constexpr size_t kMaxSentDescriptors = 20;
constexpr size_t kMaxPackets = 16;
constexpr size_t kMaxName = 128;

railsd::UniqueFd Connect() {
  railsd::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = SocketAddress();
  const int done = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  Require(done == 0, "cannot connect");
  return socket;
}

// Null: the server has closed the connection.
std::unique_ptr<DescriptorResponse> Receive(int socket) {
  pollfd entry = {socket, POLLIN, 0};
  int ready;
  do {
    ready = poll(&entry, 1, 9000);
  } while (ready < 0 && errno == EINTR);  // libFuzzer's own alarm
  Require(ready == 1, "no answer");
  const railsd::Packet packet = railsd::ReceivePacket(socket);
  if (packet.kind != railsd::Packet::Kind::kPacket) return nullptr;
  auto response = std::make_unique<DescriptorResponse>();
  Require(response->ParseFromString(packet.bytes), "the answer is none");
  Require(packet.fds.size() == (response->has_open_session() ? 1 : 0), "a descriptor too many or too few");
  return response;
}

// Whether a request keeps to docs/protocol.md and the limits.
bool IsGood(const DescriptorRequest& request, size_t descriptors, bool open) {
  if (request.has_open_session()) {
    const auto& asked = request.open_session();
    return !open && descriptors == 0 && asked.min_version() <= 1 && asked.max_version() >= 1 &&
           asked.client_name().size() <= kMaxName;
  }
  return request.has_add_segment() && open && descriptors == 1 && request.add_segment().length_bytes() > 0;
}

void Talk(int socket, const uint8_t* bytes, size_t size) {
  bool open = false;
  for (size_t i = 0; i < kMaxPackets && size >= 3; ++i) {
    const size_t descriptors = bytes[0] % kMaxSentDescriptors;
    const size_t length = std::min<size_t>(bytes[1] + 256 * bytes[2], size - 3);
    const std::string packet(reinterpret_cast<const char*>(bytes) + 3, length);
    bytes += 3 + length;
    size -= 3 + length;
    DescriptorRequest request;
    const bool ends = packet.empty();  // as the end of the connection does
    const bool fits = !ends && descriptors <= railsd::kMaxPacketDescriptors && request.ParseFromString(packet);
    const std::vector<int> fds(descriptors, File());
    Require(railsd::testing::SendPacket(socket, packet, fds), "cannot send");
    const std::unique_ptr<DescriptorResponse> response = Receive(socket);
    if (ends) return Require(response == nullptr, "goes on after its end");
    Require(response != nullptr, "closed without a word");
    if (fits && IsGood(request, descriptors, open)) {
      Require(response->code() == 0 && response->message().empty(), "refused for nothing");
      Require(response->has_open_session() == request.has_open_session(), "the answer to something else");
      open = true;
      continue;
    }
    Require(response->code() > 0 && response->code() <= 16 && !response->message().empty(), "taken, or no reason");
    if (!fits) return Require(Receive(socket) == nullptr, "goes on after what is no request");
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // as the daemon does
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  File();
  const size_t before = OpenDescriptors();
  {
    railsd::FakeAgent agent;
    railsd::SessionRegistry registry;
    railsd::DescriptorServerOptions options;
    options.sockets = {{SocketName()}};
    options.node = "n0";
    options.boot = railsd::BootId(77);
    options.log = railsd::NullLogger();
    auto server = railsd::DescriptorServer::Start(options, &agent, &registry);
    Require(server.ok(), "no server");
    Talk(Connect().get(), bytes, size);
    server->reset();
    Require(agent.session_count == 0 && registry.size() == 0, "a session is left");
  }
  Require(OpenDescriptors() == before, "a descriptor is left");
  return 0;
}
