#include "daemon/service/connection_gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/service/beginning.h"
#include "daemon/service/rpc_server.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/until.h"

namespace railsd {
namespace {

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kHttp2 = kPreface + std::string("\0\0\0\4\0\0\0\0\0", 9);

std::string Record(const std::string& body) {
  return absl::StrCat(std::string("\x16\x03\x01", 3), std::string(1, static_cast<char>(body.size() >> 8)),
                      std::string(1, static_cast<char>(body.size() & 255)), body);
}

TEST(BeginningTest, OfHttp2EachByteTells) {
  for (size_t n = 0; n < kHttp2.size(); ++n) {
    EXPECT_EQ(LookAtBeginning(kHttp2.substr(0, n), false), Beginning::kMore) << n;
    std::string wrong = kHttp2.substr(0, n + 1);
    wrong[n] = static_cast<char>(wrong[n] ^ 1);
    if (n < kPreface.size()) {
      EXPECT_EQ(LookAtBeginning(wrong, false), Beginning::kWrong) << n;
    }
  }
  EXPECT_EQ(LookAtBeginning(kHttp2, false), Beginning::kWhole);
  EXPECT_EQ(LookAtBeginning(kHttp2 + "more", false), Beginning::kWhole);
  EXPECT_EQ(LookAtBeginning(kPreface + std::string("\0\0\0\1\0\0\0\0\1", 9), false), Beginning::kWrong)
      << "headers before SETTINGS";
}

TEST(BeginningTest, OfTlsOneWholeRecordTells) {
  for (const size_t size : {size_t{1}, size_t{300}, size_t{16} << 10}) {
    const std::string record = Record(std::string(size, 'x'));
    EXPECT_EQ(LookAtBeginning(record, true), Beginning::kWhole);
    EXPECT_LE(record.size(), kMaxBeginning);
    for (const size_t less : {size_t{1}, size, record.size()}) {
      EXPECT_EQ(LookAtBeginning(record.substr(0, record.size() - less), true), Beginning::kMore);
    }
  }
  EXPECT_EQ(LookAtBeginning(Record(""), true), Beginning::kWrong);
  EXPECT_EQ(LookAtBeginning(Record(std::string((16 << 10) + 1, 'x')), true), Beginning::kWrong);
  EXPECT_EQ(LookAtBeginning(kHttp2, true), Beginning::kWrong);
  EXPECT_EQ(LookAtBeginning(std::string("\x16\x02", 2), true), Beginning::kWrong);
}

TEST(BeginningTest, OfALaneTheWholeGreetingTells) {
  const std::string greeting = std::string(kLaneMagic) + std::string(kLaneGreetingBytes - kLaneMagic.size(), 'x');
  for (const bool tls : {false, true}) {
    for (size_t n = 1; n < greeting.size(); ++n) {
      EXPECT_EQ(LookAtBeginning(greeting.substr(0, n), tls, true), Beginning::kMore) << n;
    }
    EXPECT_EQ(LookAtBeginning(greeting, tls, true), Beginning::kLane);
    EXPECT_EQ(LookAtBeginning(greeting, tls, false), Beginning::kWrong) << "not at this door";
    EXPECT_EQ(LookAtBeginning("\1RSLANE2", tls, true), Beginning::kWrong);
    EXPECT_EQ(LookAtBeginning("\1", tls, true), Beginning::kMore);
  }
}

UniqueFd ConnectTcp(const std::string& host, int port) {
  if (host.find(':') != std::string::npos) {
    sockaddr_in6 to = {};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET6, host.c_str(), &to.sin6_addr);
    UniqueFd fd(socket(AF_INET6, SOCK_STREAM, 0));
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) fd.Reset();
    return fd;
  }
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &to.sin_addr);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) fd.Reset();
  return fd;
}

void Send(const UniqueFd& fd, const std::string& bytes) {
  EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// Has the other end closed it? Reads what it has sent before.
bool Ended(const UniqueFd& fd) {
  char bytes[4096];
  ssize_t got;
  do {
    got = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  } while (got > 0);
  return got == 0 || errno != EAGAIN;
}

class GateTest : public ::testing::Test {
 protected:
  void TearDown() override {
    gate_.reset();
    EXPECT_EQ(options_.counters->open, 0u);
    EXPECT_EQ(options_.counters->half_open, 0u);
  }
  void Start(const std::string& address = "127.0.0.1:0", bool tls = false) {
    absl::StatusOr<Listeners> listeners = ListenOn(address);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    port_ = listeners->port;
    auto gate = ConnectionGate::Start(*std::move(listeners), tls, options_, &ledger_, [this](UniqueFd fd) {
      absl::MutexLock lock(&mutex_);
      taken_.push_back(std::move(fd));
    });
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
  }
  UniqueFd Connect() { return ConnectTcp("127.0.0.1", port_); }
  size_t Taken() {
    absl::MutexLock lock(&mutex_);
    return taken_.size();
  }
  uint64_t Refused(Limit limit) const { return options_.refused->Read(limit); }

  GateOptions options_;
  ConnectionLedger ledger_;
  int port_ = 0;
  absl::Mutex mutex_;
  std::vector<UniqueFd> taken_;
  std::unique_ptr<ConnectionGate> gate_;
};

// One address and port may be connected to several addresses of this machine.
TEST(ConnectionLedgerTest, NoConnectionIsLeftThatIsNotCounted) {
  ConnectionLedger ledger;
  const Caller caller{"ipv4:1.2.3.4:5", "1.2.3.4"};
  int first[2], second[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, first), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, second), 0);
  const UniqueFd ours(first[0]), theirs(first[1]), ours_too(second[0]), theirs_too(second[1]);
  ledger.Add(ours.get(), caller, absl::InfiniteFuture());
  EXPECT_FALSE(Ended(theirs));
  ledger.Add(ours_too.get(), caller, absl::InfiniteFuture());
  EXPECT_TRUE(Ended(theirs));
  EXPECT_FALSE(Ended(theirs_too));
  EXPECT_EQ(ledger.size(), 1u);
  EXPECT_EQ(ledger.CountFrom("1.2.3.4"), 1u);
}

// Two ends of a connection over loopback.
std::pair<UniqueFd, UniqueFd> TcpPair() {
  const absl::StatusOr<Listeners> listeners = ListenOn("127.0.0.1:0");
  EXPECT_TRUE(listeners.ok()) << listeners.status();
  UniqueFd ours = ConnectTcp("127.0.0.1", listeners->port);
  pollfd come = {listeners->sockets[0].get(), POLLIN, 0};
  EXPECT_EQ(poll(&come, 1, 30'000), 1);
  return {std::move(ours), UniqueFd(accept4(listeners->sockets[0].get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

// Has the kernel taken so many bytes from the other end?
bool Arrived(const UniqueFd& fd, size_t bytes) {
  std::string buffer(bytes, '\0');
  return testing::Until(
      [&] { return recv(fd.get(), buffer.data(), bytes, MSG_PEEK | MSG_DONTWAIT) == static_cast<ssize_t>(bytes); });
}

TEST(ConnectionLedgerTest, WhoBringsMoreThanIsTakenIsEnded) {
  ConnectionLedger ledger;
  const auto [ours, theirs] = TcpPair();
  const auto [other, other_theirs] = TcpPair();
  const absl::Time now = absl::Now();
  const Caller caller = CallerOfSocket(theirs.get());
  ledger.Add(theirs.get(), caller, absl::InfiniteFuture());
  ledger.Add(other_theirs.get(), CallerOfSocket(other_theirs.get()), absl::InfiniteFuture());
  Send(ours, std::string(20'000, 'x'));
  ASSERT_TRUE(Arrived(theirs, 20'000));
  EXPECT_EQ(ledger.Meter(now, 30'000), 0u);
  ledger.Taken(caller.name, 15'000);
  Send(ours, std::string(20'000, 'x'));
  ASSERT_TRUE(Arrived(theirs, 40'000));
  EXPECT_EQ(ledger.Meter(now, 30'000), 0u) << "some of it was taken";
  Send(ours, std::string(20'000, 'x'));
  ASSERT_TRUE(Arrived(theirs, 60'000));
  EXPECT_EQ(ledger.Meter(now, 30'000), 1u);
  EXPECT_TRUE(testing::Until([&ours = ours] { return Ended(ours); }));
  EXPECT_FALSE(Ended(other)) << "who did nothing";
  EXPECT_EQ(ledger.Meter(now, 30'000), 0u) << "counted once";
}

TEST(ConnectionLedgerTest, WhatCallsCostBesidesTheirMessagesIsForgivenWithTime) {
  ConnectionLedger ledger;
  const auto [ours, theirs] = TcpPair();
  ledger.Add(theirs.get(), CallerOfSocket(theirs.get()), absl::InfiniteFuture());
  absl::Time now = absl::Now();
  for (int second = 1; second <= 20; ++second) {
    const std::string little(ConnectionLedger::kForgivenPerSecond / 2, 'x');
    Send(ours, little);
    ASSERT_TRUE(Arrived(theirs, little.size()));
    std::string all(little.size(), '\0');
    ASSERT_EQ(recv(theirs.get(), all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
    now += absl::Seconds(1);
    EXPECT_EQ(ledger.Meter(now, 2 * ConnectionLedger::kForgivenPerSecond), 0u);
  }
  EXPECT_FALSE(Ended(ours));
}

TEST(ConnectionLedgerTest, UnixSocketsAreNotMetered) {
  ConnectionLedger ledger;
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd ours(pair[0]), theirs(pair[1]);
  ledger.Add(theirs.get(), CallerOfSocket(theirs.get()), absl::InfiniteFuture());
  Send(ours, std::string(1000, 'x'));
  EXPECT_EQ(ledger.Meter(absl::Now(), 10), 0u);
}

TEST_F(GateTest, ABeginningByteByByteIsTakenWhenItIsWhole) {
  Start();
  const UniqueFd slow = Connect();
  for (const char byte : kHttp2.substr(0, kHttp2.size() - 1)) Send(slow, std::string(1, byte));
  ASSERT_TRUE(testing::Until([&] { return options_.counters->half_open == 1; }));
  EXPECT_EQ(Taken(), 0u);
  Send(slow, kHttp2.substr(kHttp2.size() - 1));
  ASSERT_TRUE(testing::Until([&] { return Taken() == 1; }));
  EXPECT_EQ(options_.counters->open, 1u);
  EXPECT_EQ(options_.counters->half_open, 0u);
  char bytes[100];
  EXPECT_EQ(recv(taken_[0].get(), bytes, sizeof(bytes), MSG_DONTWAIT), static_cast<ssize_t>(kHttp2.size()))
      << "nothing of it is lost";
}

TEST_F(GateTest, WhoBeginsWithSomethingElseIsCounted) {
  Start();
  const UniqueFd other = Connect(), gone = Connect();
  Send(other, "GET / HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(testing::Until([&] { return Taken() == 1; })) << "gRPC answers";
  EXPECT_EQ(options_.counters->protocol_errors, 1u);
  Send(gone, "PRI");
  shutdown(gone.get(), SHUT_WR);
  ASSERT_TRUE(testing::Until([&] { return Ended(gone); }));
  EXPECT_EQ(options_.counters->protocol_errors, 1u);
  EXPECT_EQ(Taken(), 1u);
}

TEST_F(GateTest, ALaneGoesToWhoeverTakesLanes) {
  std::atomic<int> lanes{0};
  options_.take_lane = [&](UniqueFd fd) { lanes += fd.valid(); };
  Start();
  const UniqueFd lane = Connect();
  const std::string greeting = std::string(kLaneMagic) + std::string(kLaneGreetingBytes - kLaneMagic.size(), 'x');
  Send(lane, greeting.substr(0, 20));
  ASSERT_TRUE(testing::Until([&] { return options_.counters->half_open == 1; }));
  EXPECT_EQ(lanes, 0);
  Send(lane, greeting.substr(20));
  ASSERT_TRUE(testing::Until([&] { return lanes == 1; }));
  EXPECT_EQ(Taken(), 0u);
  ASSERT_TRUE(testing::Until([&] { return options_.counters->half_open == 0; }));
  const UniqueFd call = Connect();
  Send(call, kHttp2);
  ASSERT_TRUE(testing::Until([&] { return Taken() == 1; }));
}

TEST_F(GateTest, TheOldestHalfOpenOneGivesWay) {
  options_.max_half_open = 3;
  Start();
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 10; ++i) idle.push_back(Connect());
  ASSERT_TRUE(testing::Until([&] { return Refused(Limit::kHalfOpen) == 7; }));
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(testing::Until([&] { return Ended(idle[i]); })) << i;
  EXPECT_FALSE(Ended(idle[7]));
  Send(idle[7], kHttp2);
  ASSERT_TRUE(testing::Until([&] { return Taken() == 1; }));
  EXPECT_EQ(options_.counters->half_open, 2u);
}

TEST_F(GateTest, WhoDoesNotBeginInTimeIsClosed) {
  options_.handshake = absl::Milliseconds(20);
  Start();
  const UniqueFd idle = Connect(), slow = Connect();
  Send(slow, kPreface);
  ASSERT_TRUE(testing::Until([&] { return Ended(idle) && Ended(slow); }));
  EXPECT_EQ(Refused(Limit::kHandshake), 2u);
}

TEST_F(GateTest, WhoDoesNotCallInTimeIsClosed) {
  options_.handshake = absl::Milliseconds(20);
  Start();
  const UniqueFd mute = Connect(), caller = Connect();
  Send(mute, kHttp2);
  Send(caller, kHttp2);
  ASSERT_TRUE(testing::Until([&] { return Taken() == 2; }));
  ledger_.Spoke(CallerOfSocket(taken_[0].get()).name);
  ASSERT_TRUE(testing::Until([&] { return Refused(Limit::kHandshake) == 1; }));
  EXPECT_TRUE(testing::Until([&] { return Ended(taken_[1]); })) << "gRPC sees the end";
  EXPECT_FALSE(Ended(taken_[0]));
}

TEST_F(GateTest, ConnectionsAreCountedUntilTheyAreClosed) {
  options_.max_connections = 2;
  Start();
  std::vector<UniqueFd> callers;
  for (int i = 0; i < 3; ++i) {
    callers.push_back(Connect());
    Send(callers.back(), kHttp2);
    ASSERT_TRUE(
        testing::Until([&] { return Taken() + Refused(Limit::kClientConnections) == static_cast<size_t>(i) + 1; }));
  }
  EXPECT_EQ(Refused(Limit::kClientConnections), 1u);
  EXPECT_TRUE(testing::Until([&] { return Ended(callers[2]); }));
  // Another file takes the number of the one that is closed: that is no connection.
  const int number = taken_[0].get();
  taken_[0].Reset();
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(file.get(), number);
  ASSERT_TRUE(testing::Until([&] {
    const UniqueFd again = Connect();
    Send(again, kHttp2);
    absl::SleepFor(absl::Milliseconds(10));
    return Taken() == 3;
  }));
  EXPECT_EQ(options_.counters->open, 2u);
}

TEST_F(GateTest, OneAddressCannotHaveThemAll) {
  options_.max_per_address = 1;
  Start("0.0.0.0:0");
  std::vector<UniqueFd> callers;
  for (const char* host : {"127.0.0.1", "127.0.0.1", "::1", "::1"}) {
    callers.push_back(ConnectTcp(host, port_));
    if (!callers.back().valid()) GTEST_SKIP() << "no IPv6 here";
    Send(callers.back(), kHttp2);
    ASSERT_TRUE(
        testing::Until([&] { return Taken() + Refused(Limit::kControlConnectionsPerAddress) == callers.size(); }));
  }
  EXPECT_EQ(Taken(), 2u);
  EXPECT_TRUE(testing::Until([&] { return Ended(callers[1]) && Ended(callers[3]); }));
}

TEST_F(GateTest, OfTlsAWholeRecordMustHaveCome) {
  Start("127.0.0.1:0", /*tls=*/true);
  const UniqueFd plain = Connect(), slow = Connect();
  Send(plain, kHttp2);
  Send(slow, Record("hello").substr(0, 7));
  ASSERT_TRUE(testing::Until([&] { return Taken() == 1; }));
  EXPECT_EQ(options_.counters->protocol_errors, 1u);
  EXPECT_EQ(options_.counters->half_open, 1u);
}

TEST_F(GateTest, AUnixSocketIsRemovedAtTheEnd) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/gate";
  Start("unix:" + path);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  gate_.reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

// gRPC's names of callers are the ledger's.
TEST(RpcServerGateTest, WhoCallsStays) {
  for (const std::string host : {"127.0.0.1", "[::1]", "localhost", "0.0.0.0"}) {
    SCOPED_TRACE(host);
    RpcServerOptions options;
    options.address = host + ":0";
    options.gate.handshake = absl::Milliseconds(300);
    auto server = RpcServer::Start(options, {});
    if (host == "[::1]" && !server.ok()) continue;  // no IPv6 here
    ASSERT_TRUE(server.ok()) << server.status();
    const UniqueFd mute = ConnectTcp(host == "[::1]" ? "::1" : "127.0.0.1", (*server)->port());
    Send(mute, kHttp2);
    // Nothing to look up: c-ares leaks a name now and then.
    const std::string target = absl::StrCat(host == "[::1]" ? "ipv6:[::1]:" : "ipv4:127.0.0.1:", (*server)->port());
    const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    ASSERT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
    (*server)->SetHealth(true, true);
    const grpc::Slice empty("");
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    grpc::GenericStub stub(channel);
    const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_TRUE(status.ok()) << status.error_message();
    ASSERT_TRUE(testing::Until([&] { return options.gate.refused->Read(Limit::kHandshake) == 1; })) << "the mute one";
    EXPECT_TRUE(testing::Until([&] { return Ended(mute); }));
    absl::SleepFor(absl::Milliseconds(1500));  // past a sweep
    EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
    EXPECT_EQ(options.gate.refused->Read(Limit::kHandshake), 1u);
    EXPECT_EQ(options.gate.counters->open, 1u);
  }
}

}  // namespace
}  // namespace railsd
