#include "daemon/tls/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/daemon/tls/tls_session_fixture.h"

namespace railsd::tls_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(TlsLinkTest, BothEndsProveTheirNames) {
  EXPECT_THAT(dialler->PeerNames(), ElementsAre("n2"));
  EXPECT_THAT(acceptor->PeerNames(), ElementsAre("n1"));
  const auto again = dialler->Handshake();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, Progress::kDone);
}

TEST_F(TlsLinkTest, NothingIsSentAfterTheHandshake) {
  for (const UniqueFd* fd : {&sockets.dialler, &sockets.acceptor}) {
    char byte = 0;
    EXPECT_EQ(recv(fd->get(), &byte, 1, MSG_PEEK), -1) << "tickets?";
  }
  EXPECT_FALSE(dialler->pending());
  EXPECT_FALSE(acceptor->pending());
}

TEST_F(TlsLinkTest, SeveralRecordsComeWithOneReadOfTheSocket) {
  for (const char* text : {"one", "two", "three"}) WriteText(*dialler, text);
  EXPECT_FALSE(acceptor->pending());
  EXPECT_EQ(ReadText(*acceptor), "one");
  char byte = 0;
  EXPECT_EQ(recv(sockets.acceptor.get(), &byte, 1, MSG_PEEK), -1);
  EXPECT_TRUE(acceptor->pending());
  EXPECT_EQ(ReadText(*acceptor), "two");
  EXPECT_TRUE(acceptor->pending());
  EXPECT_EQ(ReadText(*acceptor), "three");
  EXPECT_FALSE(acceptor->pending());
  const auto io = acceptor->Read(&byte, 1);
  ASSERT_TRUE(io.ok());
  EXPECT_EQ(io->want, Progress::kWantRead);
}

TEST_F(TlsLinkTest, HalfARecordIsNotPending) {
  WriteText(*dialler, "text");
  char record[256] = {};
  const ssize_t size = recv(sockets.acceptor.get(), record, sizeof(record), 0);
  ASSERT_GT(size, 4);
  for (ssize_t i = 0; i < size; ++i) {
    ASSERT_EQ(send(sockets.dialler.get(), record + i, 1, 0), 1);
    char text[8] = {};
    const auto io = acceptor->Read(text, sizeof(text));
    ASSERT_TRUE(io.ok()) << io.status();
    EXPECT_EQ(io->bytes, i + 1 == size ? 4u : 0u);
    EXPECT_FALSE(acceptor->pending());
  }
}

TEST_F(TlsLinkTest, ACutIsNoOrderlyEnd) {
  sockets.dialler.Reset();
  char byte = 0;
  const absl::Status status = acceptor->Read(&byte, 1).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "tls: connection lost: closed without close_notify");
}

TEST_F(TlsLinkTest, AResetIsNoOrderlyEndAndNoSignal) {
  WriteText(*acceptor, "never read");
  sockets.dialler.Reset();
  const absl::Status status = acceptor->Write("x", 1).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tls: connection lost: "));
  EXPECT_EQ(acceptor->Read(nullptr, 1).status(), status) << "the same from now on";
}

TEST_F(TlsLinkTest, AnotherKeyChangesNothing) {
  for (int i = 0; i < 100; ++i) {
    dialler->RenewKey();
    acceptor->RenewKey();
    WriteText(*dialler, absl::StrCat("to ", i));
    WriteText(*acceptor, absl::StrCat("back ", i));
    EXPECT_EQ(ReadText(*acceptor), absl::StrCat("to ", i));
    EXPECT_EQ(ReadText(*dialler), absl::StrCat("back ", i));
  }
}

TEST_F(TlsLinkTest, GarbageAfterTheHandshakeEndsIt) {
  ASSERT_EQ(send(sockets.dialler.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
  char byte = 0;
  EXPECT_EQ(acceptor->Read(&byte, 1).status().code(), Code::kUnavailable);
}

class NarrowTlsLinkTest : public TlsLinkTest {
 protected:
  NarrowTlsLinkTest() : TlsLinkTest(4096) {}
};

// One direction of a stream in pieces of odd sizes. Acts like an event loop: reads when the socket is readable or
// pending() is true, and waits for the event that the session wants.
struct Direction {
  TlsSession& from;
  TlsSession& to;
  int from_fd, to_fd;
  std::string sent, received = {};
  size_t taken = 0, offered = 0;

  static bool Ready(int fd, int16_t events) {
    pollfd entry = {fd, events, 0};
    return poll(&entry, 1, 0) == 1;
  }
  bool Send(std::mt19937_64& random) {
    if (taken == sent.size() || !Ready(from_fd, POLLOUT)) return false;
    if (random() % 8 == 0) from.RenewKey();
    offered = std::min(sent.size() - taken, std::max<size_t>(offered, 1 + random() % 40'000));
    const std::string elsewhere = sent.substr(taken, offered);  // a different address each time
    const auto io = from.Write(elsewhere.data(), elsewhere.size());
    EXPECT_TRUE(io.ok()) << io.status();
    if (!io.ok() || io->bytes == 0) return false;
    taken += io->bytes;
    offered = 0;
    return true;
  }
  bool Receive(std::mt19937_64& random) {
    if (!to.pending() && !Ready(to_fd, POLLIN)) return false;
    std::string piece(1 + random() % 30'000, '\0');
    const auto io = to.Read(piece.data(), piece.size());
    EXPECT_TRUE(io.ok()) << io.status();
    if (io.ok()) received.append(piece, 0, io->bytes);
    return io.ok();
  }
};

TEST_F(NarrowTlsLinkTest, StreamsArriveWholeInOddPieces) {
  for (const uint64_t seed : testing::Seeds(20)) {
    std::mt19937_64 random(seed);
    const auto noise = [&] {
      std::string text(500'000 + random() % 100'000, '\0');
      for (char& c : text) c = static_cast<char>(random());
      return text;
    };
    Direction there{*dialler, *acceptor, sockets.dialler.get(), sockets.acceptor.get(), noise()};
    Direction back{*acceptor, *dialler, sockets.acceptor.get(), sockets.dialler.get(), noise()};
    int idle = 0;
    while (there.received.size() < there.sent.size() || back.received.size() < back.sent.size()) {
      bool moved = false;
      for (Direction* direction : {&there, &back}) {
        if (random() % 2 == 0) moved = direction->Send(random) || moved;
        if (random() % 2 == 0) moved = direction->Receive(random) || moved;
      }
      idle = moved ? 0 : idle + 1;
      ASSERT_LT(idle, 1000) << "stands still, seed " << seed;
      ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
    ASSERT_TRUE(there.received == there.sent && back.received == back.sent) << "seed " << seed;
  }
}

TEST_F(TlsSessionTest, WhatIsNoMaterialIsRefused) {
  const TlsMaterial good = Node("n1");
  const std::vector<std::pair<std::string TlsMaterial::*, std::string>> parts = {
      {&TlsMaterial::certificate, "the certificate is no whole"},
      {&TlsMaterial::key, "the key is no private key"},
      {&TlsMaterial::ca, "the CA is no whole"}};
  for (const auto& [part, text] : parts) {
    TlsMaterial bad = good;
    bad.*part = "no PEM";
    const absl::Status status = TlsContext::Make(bad, kProtocol).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  TlsMaterial mixed = good;
  mixed.key = Node("n1").key;
  EXPECT_THAT(std::string(TlsContext::Make(mixed, kProtocol).status().message()),
              HasSubstr("TLS does not use the key: key values mismatch"));
  for (const size_t size : {0, 256}) {
    EXPECT_EQ(TlsContext::Make(good, std::string(size, 'x')).status().code(), Code::kInvalidArgument);
  }
}

TEST_F(TlsSessionTest, OnlyNamesThatANodeMayHaveCount) {
  std::vector<std::string> names = {"n1",   std::string("n1\0.evil", 8), std::string("n2\0", 3), "*.cluster", "", "n 3",
                                    "n4\n", std::string(254, 'x'),       std::string(253, 'y')};
  SocketPair sockets;
  const auto dialler = Begin(Context(Material(WithNames(names))), sockets.dialler.get(), Side::kDialler);
  const auto acceptor = Begin(Context(Node("n2")), sockets.acceptor.get(), Side::kAcceptor);
  EXPECT_THAT(acceptor->PeerNames(), IsEmpty());
  const Verdicts verdicts = Meet(sockets, *dialler, *acceptor);
  ASSERT_TRUE(verdicts.acceptor.ok()) << verdicts.acceptor;
  EXPECT_THAT(acceptor->PeerNames(), ElementsAre("n1", std::string(253, 'y')));
}

TEST_F(TlsSessionTest, NamesAreBounded) {
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(absl::StrCat("n", i));
  SocketPair sockets;
  const auto dialler = Begin(Context(Node("n2")), sockets.dialler.get(), Side::kDialler);
  const auto acceptor = Begin(Context(Material(WithNames(names))), sockets.acceptor.get(), Side::kAcceptor);
  ASSERT_TRUE(Meet(sockets, *dialler, *acceptor).dialler.ok());
  EXPECT_THAT(dialler->PeerNames(), SizeIs(TlsSession::kMaxPeerNames));
}

// `good` refuses `bad` in both roles: the refusing end names the cause, and the other end learns it.
#define EXPECT_REFUSED(bad, good, here, there)                                                  \
  do {                                                                                          \
    const Verdicts dials = Meet(bad, good), accepts = Meet(good, bad);                          \
    for (const absl::Status& status : {dials.acceptor, accepts.dialler}) {                      \
      EXPECT_EQ(status.code(), Code::kUnauthenticated);                                         \
      EXPECT_THAT(std::string(status.message()), HasSubstr("this node refuses the other end")); \
      EXPECT_THAT(std::string(status.message()), HasSubstr(here));                              \
    }                                                                                           \
    for (const absl::Status& status : {dials.dialler, accepts.acceptor}) {                      \
      EXPECT_EQ(status.code(), Code::kUnauthenticated);                                         \
      EXPECT_THAT(std::string(status.message()), HasSubstr("refuses this node's certificate")); \
      EXPECT_THAT(std::string(status.message()), HasSubstr(there));                             \
    }                                                                                           \
  } while (false)

TEST_F(TlsSessionTest, AnotherAuthorityIsRefused) {
  const TlsTestFiles others;
  const pki::Pair pair = others.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(24)));
  EXPECT_REFUSED(Context(Material(pair)), Context(Node("n2")), "unable to get local issuer certificate", "unknown ca");
}

TEST_F(TlsSessionTest, TimesAreChecked) {
  const pki::Pair past = files.Issue("n1", ValidFor(absl::Hours(48), -absl::Hours(24)));
  EXPECT_REFUSED(Context(Material(past)), Context(Node("n2")), "certificate has expired", "certificate expired");
  const pki::Pair future = files.Issue("n1", ValidFor(-absl::Hours(1), absl::Hours(24)));
  EXPECT_REFUSED(Context(Material(future)), Context(Node("n2")), "certificate is not yet valid", "bad certificate");
}

TEST_F(TlsSessionTest, ACertificateForTheOtherRoleIsRefused) {
  const auto server = Context(Material(ForPurpose("serverAuth")));
  const auto client = Context(Material(ForPurpose("clientAuth")));
  const Verdicts right = Meet(client, server);
  EXPECT_TRUE(right.dialler.ok() && right.acceptor.ok()) << right.dialler << right.acceptor;
  const Verdicts dials = Meet(server, Context(Node("n2")));
  EXPECT_EQ(dials.acceptor.code(), Code::kUnauthenticated);
  EXPECT_THAT(std::string(dials.acceptor.message()), HasSubstr("certificate purpose"));
  EXPECT_EQ(dials.dialler.code(), Code::kUnauthenticated);
  const Verdicts accepts = Meet(Context(Node("n2")), client);
  EXPECT_EQ(accepts.dialler.code(), Code::kUnauthenticated);
  EXPECT_THAT(std::string(accepts.dialler.message()), HasSubstr("certificate purpose"));
  EXPECT_EQ(accepts.acceptor.code(), Code::kUnauthenticated);
}

TEST_F(TlsSessionTest, AWriteHearsOfTheRefusalToo) {
  const TlsTestFiles others;
  SocketPair sockets;
  const auto bad = Context(Material(others.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(24)))));
  const auto dialler = Begin(bad, sockets.dialler.get(), Side::kDialler);
  const auto acceptor = Begin(Context(Node("n2")), sockets.acceptor.get(), Side::kAcceptor);
  absl::Status refused;
  Step(*dialler, &refused);
  Step(*acceptor, &refused);
  ASSERT_TRUE(Step(*dialler, &refused) && refused.ok()) << refused;
  ASSERT_TRUE(Step(*acceptor, &refused) && !refused.ok());
  sockets.acceptor.Reset();
  const absl::Status status = dialler->Write("hello", 5).status();
  EXPECT_EQ(status.code(), Code::kUnauthenticated) << status;
}

// The acceptor has read the dialler's first data together with the end of the handshake.
TEST_F(TlsSessionTest, DataBehindTheHandshakeIsPending) {
  SocketPair sockets;
  const auto dialler = Begin(Context(Node("n1")), sockets.dialler.get(), Side::kDialler);
  const auto acceptor = Begin(Context(Node("n2")), sockets.acceptor.get(), Side::kAcceptor);
  absl::Status status;
  Step(*dialler, &status);
  Step(*acceptor, &status);
  ASSERT_TRUE(Step(*dialler, &status) && status.ok()) << status;
  WriteText(*dialler, "hello");
  ASSERT_TRUE(Step(*acceptor, &status) && status.ok()) << status;
  char byte = 0;
  EXPECT_EQ(recv(sockets.acceptor.get(), &byte, 1, MSG_PEEK), -1);
  EXPECT_TRUE(acceptor->pending());
  EXPECT_EQ(ReadText(*acceptor), "hello");
}

TEST_F(TlsSessionTest, NothingGoesBeforeTheHandshake) {
  SocketPair sockets;
  const auto dialler = Begin(Context(Node("n1")), sockets.dialler.get(), Side::kDialler);
  char byte = 0;
  EXPECT_EQ(dialler->Read(&byte, 1).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(dialler->Write("x", 1).status().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(dialler->pending());
  dialler->RenewKey();
  EXPECT_EQ(recv(sockets.acceptor.get(), &byte, 1, 0), -1);
}

}  // namespace
}  // namespace railsd::tls_test
