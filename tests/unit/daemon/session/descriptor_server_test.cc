#include "daemon/session/descriptor_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/session/packet_socket.h"
#include "rails/v1/descriptor.pb.h"
#include "tests/support/seeds.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/session/descriptor_client.h"

namespace railsd {
namespace {

using rails::v1::DescriptorRequest;
using rails::v1::DescriptorResponse;
using testing::AddRequest;
using testing::OpenDescriptors;
using testing::OpenRequest;
using testing::ReserveRequest;
using Client = testing::DescriptorClient;
using ::testing::HasSubstr;

class DescriptorServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    DescriptorServerOptions options;
    options.sockets = {{path()}};
    options.node = "n0";
    options.boot = BootId(77);
    options.max_connections = 4;
    options.on_session_closed = [this](SessionId) { ++closed_; };
    options.log = NullLogger();
    Adjust(&options);
    auto server = DescriptorServer::Start(options, &agent_, &registry_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  virtual void Adjust(DescriptorServerOptions*) {}
  std::string path() const { return directory_ + "/descriptors.sock"; }

  const testing::TemporaryFolder folder_;
  const std::string directory_ = folder_.path();
  FakeAgent agent_;
  SessionRegistry registry_;
  std::atomic<int> closed_{0};
  std::unique_ptr<DescriptorServer> server_;
};

TEST_F(DescriptorServerTest, OpensASessionWithATokenAndAPidfdOfTheDaemon) {
  Client client(path());
  DescriptorResponse response;
  std::vector<UniqueFd> fds;
  ASSERT_TRUE(client.Send(OpenRequest()));
  ASSERT_TRUE(client.Receive(&response, &fds));
  EXPECT_EQ(response.code(), 0);
  EXPECT_EQ(response.open_session().version(), 1u);
  EXPECT_EQ(response.open_session().node(), "n0");
  EXPECT_EQ(response.open_session().boot_id(), 77u);
  EXPECT_EQ(response.open_session().token().size(), 64u);
  ASSERT_EQ(fds.size(), 1u);
  pollfd entry = {fds[0].get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0) << "the daemon lives";
  const auto identity = registry_.Find(response.open_session().token());
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->info.pid, getpid());
  EXPECT_EQ(identity->info.uid, getuid());
  EXPECT_EQ(identity->info.client_name, "test");
  std::string wrong = response.open_session().token();
  wrong[0] = wrong[0] == 'a' ? 'b' : 'a';
  EXPECT_FALSE(registry_.Find(wrong));
  EXPECT_FALSE(registry_.Find(""));
}

TEST_F(DescriptorServerTest, TheEndOfTheConnectionEndsTheSession) {
  Client client(path());
  const std::string token = client.Ask(OpenRequest("train \"7\"")).open_session().token();
  client.Close();
  ASSERT_TRUE(testing::Until([&] { return closed_ == 1; }));
  EXPECT_FALSE(registry_.Find(token));
  EXPECT_EQ(registry_.size(), 0u);
  EXPECT_THAT(agent_.close_reasons()[0], HasSubstr(absl::StrCat("trainer process ", getpid(), " (train \"7\")")));
}

TEST_F(DescriptorServerTest, TheEndOfTheProcessEndsTheSessionThoughAChildHoldsTheSocket) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t trainer = fork();
  if (trainer == 0) {
    Client client(path());
    client.Ask(OpenRequest());
    // A worker that inherits the socket and outlives the trainer.
    const pid_t worker = fork();
    if (worker == 0) {
      char byte;
      close(ready[0]);
      [[maybe_unused]] ssize_t n = write(ready[1], "x", 1);
      close(ready[1]);
      poll(nullptr, 0, 2'000);
      [[maybe_unused]] ssize_t m = read(-1, &byte, 1);
      _exit(0);
    }
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  waitpid(trainer, nullptr, 0);
  ASSERT_TRUE(testing::Until([&] { return closed_ == 1; }));
  EXPECT_THAT(agent_.close_reasons()[0], HasSubstr("the process ended"));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(DescriptorServerTest, TakesSegments) {
  Client client(path());
  client.Ask(OpenRequest());
  const UniqueFd memory(memfd_create("x", 0));
  EXPECT_EQ(client.Ask(ReserveRequest(3, 4096)).code(), 0);
  EXPECT_EQ(agent_.reservations.size(), 1u);
  EXPECT_EQ(client.Ask(AddRequest(3, 4096), {memory.get()}).code(), 0);
  EXPECT_EQ(agent_.segment_count(), 1u);
}

TEST_F(DescriptorServerTest, HostilePacketsAreAnsweredAndLeakNothing) {
  const UniqueFd memory(memfd_create("x", 0));
  const int fd = memory.get();
  Client client(path());
  EXPECT_EQ(client.Ask(AddRequest(1, 1), {fd}).message(), "add_segment: no session; send open_session first");
  EXPECT_EQ(client.Ask(OpenRequest(), {fd, fd}).message(), "open_session: carries 2 descriptors, wants none");
  EXPECT_EQ(client.Ask(OpenRequest(std::string(129, 'x'))).message(),
            "open_session: client_name: 129 bytes, more than 128");
  DescriptorRequest old;
  old.mutable_open_session()->set_min_version(2);
  old.mutable_open_session()->set_max_version(9);
  EXPECT_EQ(client.Ask(old.SerializeAsString()).message(), "open_session: versions 2 to 9 do not include 1");
  EXPECT_EQ(client.Ask(OpenRequest()).code(), 0);
  const size_t before = OpenDescriptors();
  EXPECT_EQ(client.Ask(OpenRequest()).message(), "open_session: this connection has a session already");
  EXPECT_EQ(client.Ask(AddRequest(1, 1)).message(), "add_segment: carries 0 descriptors, wants 1");
  EXPECT_EQ(client.Ask(AddRequest(1, 1), std::vector(16, fd)).message(),
            "add_segment: carries 16 descriptors, wants 1");
  EXPECT_EQ(client.Ask(AddRequest(1, 0), {fd}).message(), "add_segment: length_bytes: 0");
  EXPECT_EQ(client.Ask(ReserveRequest(1, 1), {fd}).message(), "reserve_segment: carries 1 descriptors, wants none");
  EXPECT_EQ(client.Ask(ReserveRequest(1, 0)).message(), "reserve_segment: length_bytes: 0");
  // Field 15, varint 1: a request of an unknown kind.
  EXPECT_EQ(client.Ask(std::string("\x78\x01", 2), {fd}).message(), "request: empty or of an unknown kind");
  EXPECT_TRUE(testing::Until([&] { return OpenDescriptors() <= before; }));
  EXPECT_EQ(agent_.session_count, 1u);
  EXPECT_EQ(agent_.segment_count(), 0u);
  EXPECT_EQ(server_->counters().bad_packets, 11u);
}

TEST_F(DescriptorServerTest, PacketsThatCannotBeReadEndTheConnection) {
  const UniqueFd memory(memfd_create("x", 0));
  const size_t before = OpenDescriptors();
  {
    Client client(path());
    EXPECT_EQ(client.Ask(std::string(70'000, 'a')).message(), "packet: longer than 65536 bytes");
    EXPECT_TRUE(client.Closed());
  }
  {
    Client client(path());
    EXPECT_EQ(client.Ask("\xff\xff\xff", {memory.get()}).message(), "packet: not a rails.v1.DescriptorRequest");
    EXPECT_TRUE(client.Closed());
  }
  {
    Client client(path());
    const std::vector<int> many(17, memory.get());
    EXPECT_EQ(client.Ask(OpenRequest(), many).message(), "packet: carries 17 descriptors, more than 16");
    EXPECT_TRUE(client.Closed());
  }
  ASSERT_TRUE(testing::Until([&] { return server_->counters().open_connections == 0; }));
  ASSERT_TRUE(testing::Until([&] { return OpenDescriptors() == before; }));
  EXPECT_EQ(agent_.session_count, 0u);
}

TEST_F(DescriptorServerTest, RandomPacketsNeitherCrashNorLeak) {
  std::mt19937_64 random = testing::SeededRandom();
  const UniqueFd memory(memfd_create("x", 0));
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 300; ++i) {
    Client client(path());
    if (!client.connected()) continue;
    std::string bytes = random() % 2 ? OpenRequest() : AddRequest(1, 5);
    for (uint32_t n = random() % 4; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    const std::vector<int> fds(random() % 4, memory.get());
    if (random() % 2) client.Send(OpenRequest());
    client.Send(bytes, fds);
    if (random() % 2) {
      DescriptorResponse response;
      client.Receive(&response);
    }
  }
  ASSERT_TRUE(testing::Until([&] { return server_->counters().open_connections == 0; }));
  ASSERT_TRUE(testing::Until([&] { return agent_.session_count == 0 && registry_.size() == 0; }));
  ASSERT_TRUE(testing::Until([&] { return OpenDescriptors() == before; }));
}

TEST_F(DescriptorServerTest, ConnectionsAreBounded) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(path()));
    clients.back()->Ask(OpenRequest());
  }
  Client late(path());
  DescriptorResponse response;
  ASSERT_TRUE(late.Receive(&response));
  EXPECT_EQ(response.code(), 8);
  EXPECT_EQ(response.message(), "limits.max_sessions: more than 4 connections to the descriptor socket");
  EXPECT_TRUE(late.Closed());
  EXPECT_EQ(server_->counters().refused_connections, 1u);
  clients.pop_back();
  ASSERT_TRUE(testing::Until([&] { return server_->counters().open_connections == 3; }));
  Client next(path());
  EXPECT_EQ(next.Ask(OpenRequest()).code(), 0);
}

TEST_F(DescriptorServerTest, ARefusedSessionLeavesTheConnectionUsable) {
  agent_.open_status = absl::ResourceExhaustedError("limits.max_sessions 1");
  Client client(path());
  EXPECT_EQ(client.Ask(OpenRequest()).code(), 8);
  agent_.open_status = absl::OkStatus();
  EXPECT_EQ(client.Ask(OpenRequest()).code(), 0);
}

TEST_F(DescriptorServerTest, DrainingRefusesNewConnectionsOnly) {
  Client client(path());
  client.Ask(OpenRequest());
  server_->StopAccepting();
  Client late(path());
  DescriptorResponse response;
  ASSERT_TRUE(late.Receive(&response));
  EXPECT_EQ(response.code(), 14);
  const UniqueFd memory(memfd_create("x", 0));
  EXPECT_EQ(client.Ask(AddRequest(3, 4096), {memory.get()}).code(), 0);
}

TEST_F(DescriptorServerTest, TheEndOfTheServerEndsItsSessions) {
  Client client(path());
  client.Ask(OpenRequest());
  server_.reset();
  EXPECT_EQ(agent_.session_count, 0u);
  EXPECT_TRUE(client.Closed());
}

// Four sockets: the shared one, and one for each of three tenants.
class TenantServerTest : public DescriptorServerTest {
 protected:
  void Adjust(DescriptorServerOptions* options) override {
    TenantConfig listed = {.name = "listed", .users = {absl::StrCat(getuid() + 1)}, .groups = {absl::StrCat(getgid())}};
    TenantConfig other = {.name = "other", .users = {absl::StrCat(getuid() + 1)}};
    TenantConfig open = {.name = "open"};
    if (!shared_finds_me) listed.groups.clear();
    auto tenants = TenantMap::Make({other, listed, open}, "n0");
    ASSERT_TRUE(tenants.ok()) << tenants.status();
    options->tenants = *std::move(tenants);
    for (const char* tenant : {"listed", "other", "open"}) {
      options->sockets.push_back({absl::StrCat(directory_, "/", tenant), 0666, tenant});
    }
  }
  std::string TenantOf(const DescriptorResponse& response) {
    const auto identity = registry_.Find(response.open_session().token());
    return identity ? identity->info.tenant : "";
  }
  void ExpectDenied(const std::string& socket, const std::string& text) {
    Client client(socket);
    const uint64_t before = server_->counters().denied_sessions;
    const DescriptorResponse response = client.Ask(OpenRequest());
    EXPECT_EQ(response.code(), static_cast<int>(absl::StatusCode::kPermissionDenied));
    EXPECT_THAT(response.message(), HasSubstr(absl::StrCat("uid ", getuid(), ", gid ", getgid())));
    EXPECT_THAT(response.message(), HasSubstr(text));
    EXPECT_TRUE(client.Closed());
    EXPECT_EQ(server_->counters().denied_sessions, before + 1);
  }
  bool shared_finds_me = true;
};

TEST_F(TenantServerTest, TheSocketOrTheCredentialsSayWhoseSessionItIs) {
  Client shared(path());
  EXPECT_EQ(TenantOf(shared.Ask(OpenRequest())), "listed");
  Client own(directory_ + "/listed");
  EXPECT_EQ(TenantOf(own.Ask(OpenRequest())), "listed");
  Client open(directory_ + "/open");
  EXPECT_EQ(TenantOf(open.Ask(OpenRequest())), "open");
  EXPECT_EQ(agent_.session_count, 3u);
  ExpectDenied(directory_ + "/other", "is not of tenant other");
  EXPECT_EQ(agent_.session_count, 3u);
}

class UnmappedServerTest : public TenantServerTest {
 protected:
  UnmappedServerTest() { shared_finds_me = false; }
};

TEST_F(UnmappedServerTest, WhoIsOfNoTenantIsRefusedAndToldWhatToDo) {
  ExpectDenied(path(), "its operator must add");
  ExpectDenied(path(), "`users`");
  EXPECT_EQ(agent_.session_count, 0u);
  EXPECT_TRUE(testing::Until([&] { return server_->counters().open_connections == 0; }));
  Client open(directory_ + "/open");
  EXPECT_EQ(TenantOf(open.Ask(OpenRequest())), "open");
}

class ImpatientServerTest : public DescriptorServerTest {
  void Adjust(DescriptorServerOptions* options) override { options->hello_timeout = absl::Milliseconds(20); }
};

TEST_F(ImpatientServerTest, IdleConnectionsAreClosed) {
  Client idle(path());
  EXPECT_TRUE(idle.Closed());
  EXPECT_EQ(server_->counters().bad_packets, 1u);
}

}  // namespace
}  // namespace railsd
