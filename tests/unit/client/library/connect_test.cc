// Sessions and segments.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/src/daemon_life.h"
#include "rails/v1/descriptor.pb.h"
#include "tests/support/dma_bufs.h"
#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

size_t OpenDescriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// A field of this process's status, in bytes.
uint64_t MemoryField(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field, 0) == 0) return std::stoull(line.substr(field.size())) << 10;
  }
  return 0;
}
uint64_t PeakMemory() { return MemoryField("VmHWM:"); }
// From here on the peak counts anew. Returns what is in use now.
uint64_t ForgetPeakMemory() {
  std::ofstream("/proc/self/clear_refs") << "5";
  return MemoryField("VmRSS:");
}

TEST_F(ClientTest, ConnectsAndKnowsTheNode) {
  EXPECT_TRUE(client_->Connected());
  EXPECT_EQ(client_->node(), "fake-node");
  EXPECT_EQ(daemon_->sessions_open(), 1);
  client_.reset();
  EXPECT_TRUE(Until([&] { return daemon_->sessions_open() == 0; }));
}

TEST(ConnectTest, NamesTheSocketWhenNobodyIsThere) {
  const TemporaryFolder directory;
  auto client = Client::Connect({.socket_dir = directory.path(), .connect_timeout = absl::ZeroDuration()});
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
  EXPECT_THAT(client.status().message(), HasSubstr(directory.path() + "/descriptors.sock"));
  EXPECT_THAT(client.status().message(), HasSubstr("is railsd running"));
}

TEST(ConnectTest, RefusesPathsThatNoSocketCanHave) {
  auto client = Client::Connect({.socket_dir = std::string(200, 'x'), .connect_timeout = absl::Hours(1)});
  EXPECT_TRUE(absl::IsInvalidArgument(client.status())) << client.status();
  EXPECT_THAT(client.status().message(), HasSubstr("socket_dir"));
  client = Client::Connect({.socket_dir = ""});
  EXPECT_TRUE(absl::IsInvalidArgument(client.status())) << client.status();
}

TEST(ConnectTest, WaitsForADaemonThatStarts) {
  const TemporaryFolder directory;
  absl::StatusOr<std::unique_ptr<Client>> client = absl::UnknownError("not tried");
  std::thread thread(
      [&] { client = Client::Connect({.socket_dir = directory.path(), .connect_timeout = absl::Minutes(1)}); });
  FakeDaemon daemon(directory.path(), 1);
  thread.join();
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST_F(ClientTest, LeaksNoDescriptorOverAHundredConnects) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Connect().ok());
  ASSERT_TRUE(Until([&] { return daemon_->sessions_open() == 1; }));
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) {
    auto client = Connect();
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_TRUE((*client)->CreateSegment(4096).ok());
  }
  EXPECT_TRUE(Until([&] { return OpenDescriptors() <= before + daemon_->segments().size(); }))
      << before << " before, " << OpenDescriptors() << " after";
}

// An empty packet that carries `fd`.
void SendDescriptorAlone(int socket, int fd) {
  msghdr message{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
  EXPECT_EQ(sendmsg(socket, &message, MSG_NOSIGNAL), 0);
}

// Connects to a socket that gives one connection one answer; an empty one is its end, or a descriptor and its end.
absl::Status StatusAfter(const std::string& answer, absl::Duration connect_timeout, bool with_descriptor = false) {
  const TemporaryFolder directory;
  internal::UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (directory.path() + "/descriptors.sock").c_str());
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener.get(), 4), 0);
  std::thread thread([&listener, &answer, with_descriptor] {
    const internal::UniqueFd peer(accept(listener.get(), nullptr, nullptr));
    char packet[1024];
    if (recv(peer.get(), packet, sizeof(packet), 0) <= 0) return;
    if (with_descriptor) SendDescriptorAlone(peer.get(), listener.get());
    if (!answer.empty()) send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  });
  auto client = Client::Connect({.socket_dir = directory.path(), .connect_timeout = connect_timeout});
  thread.join();
  return client.status();
}

// The client says what is wrong, whatever process answers on the socket.
TEST(ConnectTest, HostileAnswersAreErrors) {
  v1::DescriptorResponse no_token;
  no_token.mutable_open_session()->set_version(1);
  v1::DescriptorResponse no_pidfd = no_token;
  no_pidfd.mutable_open_session()->set_token("token");
  v1::DescriptorResponse version = no_pidfd;
  version.mutable_open_session()->set_version(9);
  v1::DescriptorResponse refusal;
  refusal.set_code(8);
  refusal.set_message("max_sessions 256 reached");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xff\xff\xff garbage", "no DescriptorResponse"},
      {no_token.SerializeAsString(), "without a session token"},
      {no_pidfd.SerializeAsString(), "no pidfd"},
      {version.SerializeAsString(), "version 9"},
      {refusal.SerializeAsString(), "max_sessions 256 reached"},
      {std::string(65'537, 'x'), "cut short"},
      {"", "closed the descriptor socket"},
  };
  for (const auto& [answer, says] : cases) {
    const absl::Status status = StatusAfter(answer, absl::ZeroDuration());
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(says)) << status;
  }
}

// Found by client_answer_fuzzer.
TEST(ConnectTest, ClosesTheDescriptorOfAnEmptyAnswer) {
  const size_t before = OpenDescriptors();
  EXPECT_THAT(StatusAfter("", absl::ZeroDuration(), true).message(), HasSubstr("closed the descriptor socket"));
  EXPECT_EQ(OpenDescriptors(), before);
}

// The client is of no tenant, and the daemon would say the same again. A second try would wait for an answer for ever.
TEST(ConnectTest, WhatTheDaemonDeniesIsNotTriedAgain) {
  v1::DescriptorResponse denied;
  denied.set_code(static_cast<int>(absl::StatusCode::kPermissionDenied));
  denied.set_message("uid 1 is of no tenant");
  EXPECT_EQ(StatusAfter(denied.SerializeAsString(), absl::InfiniteDuration()),
            absl::PermissionDeniedError("uid 1 is of no tenant"));
}

// Such a program links, and aborts: its strings and ours have the same name and another form.
TEST(HeaderTest, RefusesTheOldFormOfStrings) {
  const std::string preprocess = CLIENT_PREPROCESSOR " -D_GLIBCXX_USE_CXX11_ABI=0 -Wfatal-errors /dev/null 2>&1 >&-";
  EXPECT_EQ(std::system((preprocess + " | grep -q 'compile without -D_GLIBCXX_USE_CXX11_ABI=0'").c_str()), 0);
}

TEST_F(ClientTest, EveryDescriptorClosesOnExec) {
  auto segment = MakeSegment();
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    const int flags = fcntl(fd, F_GETFD);
    // Descriptors that the process was started with, and the iterator's own, are not ours.
    if (flags < 0 || fd <= 2 || (target.rfind("socket:", 0) != 0 && target.rfind("/memfd:rails", 0) != 0)) continue;
    EXPECT_NE(flags & FD_CLOEXEC, 0) << fd << " " << target;
  }
}

TEST_F(ClientTest, SegmentArrivesSealedAndShared) {
  auto segment = MakeSegment(10'000);
  ASSERT_NE(segment, nullptr);
  ASSERT_EQ(segment->bytes().size(), 10'000u);
  const auto segments = daemon_->segments();
  ASSERT_EQ(segments.count(segment->id()), 1u);
  const FakeDaemon::SharedSegment& shared = segments.at(segment->id());
  EXPECT_EQ(shared.length_bytes, 10'000u);
  EXPECT_EQ(fcntl(shared.fd->get(), F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
  EXPECT_EQ(ftruncate(shared.fd->get(), 1), -1);
  std::memset(segment->bytes().data(), 0x5a, segment->bytes().size());
  unsigned char last = 0;
  ASSERT_EQ(pread(shared.fd->get(), &last, 1, 9'999), 1);
  EXPECT_EQ(last, 0x5a);
  struct stat info {};
  ASSERT_EQ(fstat(shared.fd->get(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 10'000) << "prefaulted";
}

TEST_F(ClientTest, DroppedSegmentIsRemoved) {
  auto segment = MakeSegment();
  segment.reset();
  auto other = MakeSegment();  // waits for the removal, so that quotas count what lives
  EXPECT_EQ(daemon_->segments().size(), 1u);
}

TEST_F(ClientTest, SegmentOutlivesTheClient) {
  auto segment = MakeSegment();
  client_.reset();
  std::memset(segment->bytes().data(), 1, segment->bytes().size());
}

TEST_F(ClientTest, ADmaBufIsSharedWithoutBeingMapped) {
  internal::UniqueFd fd(memfd_create("device", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), 8192), 0);
  railsd::testing::PassForDmaBuf(fd.get());
  auto imported = client_->ImportSegment(fd.get(), 8193);
  EXPECT_TRUE(absl::IsInvalidArgument(imported.status())) << imported.status();
  EXPECT_THAT(imported.status().message(), HasSubstr("8192 bytes of the dma-buf"));
  imported = client_->ImportSegment(fd.get(), 5000);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ((*imported)->bytes().data(), nullptr);
  EXPECT_EQ((*imported)->bytes().size(), 5000u);
  EXPECT_EQ(daemon_->segments().size(), 1u);
}

TEST_F(ClientTest, RefusesBadSegments) {
  EXPECT_TRUE(absl::IsInvalidArgument(client_->CreateSegment(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->CreateSegment(~uint64_t{0}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->ImportSegment(-1, 1).status()));
  internal::UniqueFd pipe_like(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->ImportSegment(pipe_like.get(), 1).status()));
  internal::UniqueFd fd(memfd_create("import", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  auto imported = client_->ImportSegment(fd.get(), 4096);
  EXPECT_THAT(imported.status().message(), HasSubstr("F_SEAL_SHRINK"));
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  imported = client_->ImportSegment(fd.get(), 4097);
  EXPECT_THAT(imported.status().message(), HasSubstr("4097"));
  EXPECT_TRUE(daemon_->segments().empty());
  imported = client_->ImportSegment(fd.get(), 4096);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const char text[] = "hello";
  ASSERT_EQ(pwrite(fd.get(), text, sizeof(text), 0), static_cast<ssize_t>(sizeof(text)));
  EXPECT_EQ(std::memcmp((*imported)->bytes().data(), text, sizeof(text)), 0);
}

TEST_F(ClientTest, RefusalOfASegmentPassesThrough) {
  daemon_->RefuseSegments(absl::ResourceExhaustedError("max_segments_per_session 64 reached"));
  auto segment = client_->CreateSegment(4096);
  EXPECT_TRUE(absl::IsResourceExhausted(segment.status())) << segment.status();
  daemon_->RefuseSegments(absl::OkStatus());
  EXPECT_NE(MakeSegment(), nullptr) << "the session goes on";
}

TEST_F(ClientTest, ADaemonThatDoesNotShareInTimeLosesTheSession) {
  auto segment = MakeSegment();
  auto group = Join();
  auto job = group->Submit(Exchange(segment, MakeSegment()));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(absl::IsInvalidArgument(client_->CreateSegment(1, {.timeout = absl::ZeroDuration()}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->ImportSegment(0, 1, -absl::Seconds(1)).status()));
  daemon_->HoldSegments(true);
  const absl::Status status = client_->CreateSegment(4096, {.timeout = absl::Milliseconds(50)}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("segment 3 (timeout 50ms): railsd does not answer on the descriptor socket"));
  EXPECT_FALSE(client_->Connected());
  EXPECT_EQ((*job)->Wait().status(), absl::AbortedError(status.message())) << "every call says why";
  EXPECT_EQ(group->Submit(Exchange(segment, segment)).status(), status);
  daemon_->HoldSegments(false);
  ASSERT_TRUE(client_->Reconnect().ok());
  EXPECT_TRUE(client_->CreateSegment(4096).ok());
}

TEST_F(ClientTest, PagesAreTouchedOnceTheDaemonHasRoom) {
  constexpr uint64_t kLength = 64 << 20;
  daemon_->RefuseSegments(absl::ResourceExhaustedError("the quota is 0 bytes"));
  const uint64_t before = ForgetPeakMemory();
  EXPECT_TRUE(absl::IsResourceExhausted(client_->CreateSegment(kLength).status()));
  EXPECT_LT(PeakMemory(), before + kLength / 2) << "no page of what is refused";
  daemon_->RefuseSegments(absl::OkStatus());
  EXPECT_TRUE(daemon_->reservations().empty());
  auto segment = MakeSegment(kLength);
  EXPECT_EQ(daemon_->reservations(), (std::map<uint32_t, uint64_t>{{segment->id(), kLength}}));
  EXPECT_GE(PeakMemory(), before + kLength / 2);
  EXPECT_TRUE(client_->CreateSegment(kLength, {.prefault = false}).ok());
  EXPECT_EQ(daemon_->reservations().size(), 1u) << "nothing to touch";
}

TEST_F(ClientTest, HugePagesEitherWorkOrSaySo) {
  auto segment = client_->CreateSegment(1'000'000, {.huge_pages = true});
  if (segment.ok()) {
    EXPECT_EQ((*segment)->bytes().size(), 1'000'000u);
  } else {
    EXPECT_TRUE(absl::IsResourceExhausted(segment.status())) << segment.status();
    EXPECT_THAT(segment.status().message(), HasSubstr("nr_hugepages"));
  }
}

TEST_F(ClientTest, ReconnectRegistersLivingSegmentsAgain) {
  auto kept = MakeSegment();
  auto dropped = MakeSegment();
  const uint32_t id = kept->id();
  daemon_->Die();
  EXPECT_TRUE(Until([&] { return !client_->Connected(); }));
  EXPECT_TRUE(absl::IsUnavailable(client_->CreateSegment(4096).status()));
  EXPECT_TRUE(absl::IsUnavailable(client_->JoinGroup({.name = "g", .world_size = 1}).status()));
  dropped.reset();
  StartDaemon();
  ASSERT_TRUE(client_->Reconnect().ok());
  EXPECT_TRUE(client_->Connected());
  const auto segments = daemon_->segments();
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments.begin()->first, id);
  auto fresh = MakeSegment();
  EXPECT_NE(fresh->id(), id);
  auto group = Join();
  auto job = group->Submit(Exchange(kept, fresh));
  EXPECT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(client_->Reconnect().ok()) << "nothing to do";
  EXPECT_EQ(daemon_->sessions_open(), 1);
}

TEST_F(ClientTest, EndedProcessIsNoticed) {
  daemon_->EndProcess();
  EXPECT_TRUE(Until([&] { return !client_->Connected(); }));
  EXPECT_THAT(std::string(client_->CreateSegment(4096).status().message()),
              ContainsRegex("process [0-9]+ of node fake-node has ended"));
}

// They would fail at the daemon, which counts them as somebody's errors.
TEST_F(ClientTest, WhatWasDroppedIsRemovedBeforeTheSessionEnds) {
  std::vector<std::shared_ptr<Segment>> segments;
  for (int i = 0; i < 20; ++i) segments.push_back(MakeSegment(4096));
  segments.clear();
  client_.reset();
  EXPECT_TRUE(daemon_->segments().empty());
}

TEST_F(ClientTest, ClosedSessionNamesWhoClosedIt) {
  daemon_->CloseSessions();
  EXPECT_TRUE(Until([&] { return !client_->Connected(); }));
  EXPECT_THAT(client_->CreateSegment(4096).status().message(), HasSubstr("closed the session and still runs"));
  ASSERT_TRUE(client_->Reconnect().ok());
  daemon_->RefuseSegments(absl::DataLossError(std::string(100'000, 'x')));  // no packet is so long
  EXPECT_TRUE(absl::IsInternal(client_->CreateSegment(4096).status()));
  EXPECT_TRUE(Until([&] { return !client_->Connected(); }));
  EXPECT_THAT(client_->CreateSegment(4096).status().message(),
              AllOf(HasSubstr("this client closed its session"), HasSubstr("was cut short")));
}

// A killed process closes its sockets first.
TEST(DaemonLifeTest, WaitsForTheEndOfAProcess) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const internal::DaemonLife life{internal::UniqueFd(ends[0])};
  EXPECT_FALSE(life.EndedWithin(absl::Milliseconds(1)));
  std::thread end([&] {
    absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(write(ends[1], "x", 1), 1);
  });
  EXPECT_TRUE(life.EndedWithin(absl::Minutes(1)));
  end.join();
  close(ends[1]);
}

}  // namespace
}  // namespace rails::testing
