// Any bytes as the answers of a daemon to a client library, on the descriptor socket: the session opens only with all
// that it needs, segments are shared only when the answer says so, what is no answer is the last one, and no descriptor
// is left. An answer is: how many descriptors, a byte; its length, two bytes; itself.
#include <google/protobuf/stubs/logging.h>
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
#include <thread>
#include <utility>
#include <vector>

#include "client/src/descriptor_channel.h"
#include "tests/fuzz/service/descriptors.h"
#include "tests/unit/daemon/session/send_packet.h"

namespace {

using rails::internal::DescriptorChannel;
using rails::internal::UniqueFd;
using rails::v1::DescriptorResponse;
using railsd::testing::File;
using railsd::testing::OpenDescriptors;
using railsd::testing::Require;
using railsd::testing::SocketAddress;
using railsd::testing::SocketName;

constexpr size_t kMaxAnswers = 8;
constexpr size_t kMaxDescriptors = 6;  // the library has room for 4
constexpr absl::Duration kPatience = absl::Seconds(9);

struct Answer {
  size_t descriptors = 0;
  std::string bytes;

  // Whether the library may take the packet for an answer.
  bool Parses(DescriptorResponse* out) const {
    return !bytes.empty() && descriptors <= 4 && out->ParseFromString(bytes);
  }
};

UniqueFd Listen() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = SocketAddress();
  const bool bound = bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  Require(bound && listen(socket.get(), 1) == 0, "cannot listen");
  return socket;
}

// Answers one request after the other.
void Serve(int listener, const std::vector<Answer>& answers) {
  int accepted;
  do {
    accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  } while (accepted < 0 && errno == EINTR);
  const UniqueFd socket(accepted);
  char request[4096];
  for (const Answer& answer : answers) {
    ssize_t got;
    do {
      got = recv(socket.get(), request, sizeof(request), 0);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) return;
    // The client may be gone.
    railsd::testing::SendPacket(socket.get(), answer.bytes, std::vector<int>(answer.descriptors, File()));
  }
}

void Ask(const std::vector<Answer>& answers) {
  const auto channel = DescriptorChannel::Open(SocketName(), "fuzz", kPatience);
  DescriptorResponse response;
  const bool opens = !answers.empty() && answers[0].Parses(&response) && response.code() == 0 &&
                     response.has_open_session() && !response.open_session().token().empty() &&
                     response.open_session().version() == 1 && answers[0].descriptors > 0;
  Require(channel.ok() == opens, "a session from nothing, or none");
  if (!opens) return Require(!channel.status().message().empty() || response.code() != 0, "no reason");
  Require((*channel)->hello().token == response.open_session().token(), "another session");
  bool over = false;
  for (size_t i = 1; i < answers.size() + 1; ++i) {
    const absl::Status status = (*channel)->AddSegment(static_cast<uint32_t>(i), File(), 1, kPatience);
    over = over || i == answers.size() || !answers[i].Parses(&response);
    Require(status.ok() == (!over && response.code() == 0), "shared, or not shared, against the answer");
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  std::vector<Answer> answers;
  while (size >= 3 && answers.size() < kMaxAnswers) {
    const size_t length = std::min<size_t>(bytes[1] + 256 * bytes[2], size - 3);
    answers.push_back({bytes[0] % kMaxDescriptors, std::string(reinterpret_cast<const char*>(bytes) + 3, length)});
    bytes += 3 + length;
    size -= 3 + length;
  }
  File();
  const size_t before = OpenDescriptors();
  {
    const UniqueFd listener = Listen();
    std::thread daemon([&] { Serve(listener.get(), answers); });
    Ask(answers);
    daemon.join();
  }
  Require(OpenDescriptors() == before, "a descriptor is left");
  return 0;
}
