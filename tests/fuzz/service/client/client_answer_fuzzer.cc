// Any bytes as the answers of a daemon to a client library, on the descriptor socket: the session opens only with all
// that it needs, segments are shared only when the answer says so, what is no answer is the last one, and no descriptor
// is left. An answer is: how many descriptors, a byte; its length, two bytes; itself.
#include <dirent.h>
#include <google/protobuf/stubs/logging.h>
#include <sys/mman.h>
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

#include "absl/strings/str_cat.h"
#include "client/src/descriptor_channel.h"

namespace {

using rails::internal::DescriptorChannel;
using rails::internal::UniqueFd;
using rails::v1::DescriptorResponse;

constexpr size_t kMaxAnswers = 8;
constexpr size_t kMaxDescriptors = 6;  // the library has room for 4
constexpr absl::Duration kPatience = absl::Seconds(9);

struct Answer {
  size_t descriptors = 0;
  std::string bytes;

  // What the library may take for an answer.
  bool Parses(DescriptorResponse* out) const {
    return !bytes.empty() && descriptors <= 4 && out->ParseFromString(bytes);
  }
};

void Require(bool ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "%s\n", what);
  std::abort();
}

int File() {
  static const int file = memfd_create("fuzz", MFD_CLOEXEC);
  return file;
}

size_t OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// A name that no file system has.
const std::string& SocketName() {
  static const std::string name = std::string(1, '\0') + absl::StrCat("rails-fuzz-", getpid());
  return name;
}

UniqueFd Listen() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, SocketName().data(), SocketName().size());
  const bool bound = bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  Require(bound && listen(socket.get(), 1) == 0, "cannot listen");
  return socket;
}

void Send(int socket, const Answer& answer) {
  std::vector<int> fds(answer.descriptors, File());
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  iovec io = {const_cast<char*>(answer.bytes.data()), answer.bytes.size()};
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
  sendmsg(socket, &message, MSG_NOSIGNAL);  // the client may be gone
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
    Send(socket.get(), answer);
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
