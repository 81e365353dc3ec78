// Tests ends that have another version, break off, or misbehave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/tls/session.h"
#include "tests/support/seeds.h"
#include "tests/unit/daemon/tls/tls_session_fixture.h"

namespace railsd::tls_test {
namespace {

using ::testing::HasSubstr;

class TlsHostileTest : public TlsSessionTest {
 protected:
  // Connects a session as `side` with an end of OpenSSL, which `change` sets up. Returns the session's status.
  absl::Status MeetRaw(Side side, const std::function<void(SSL_CTX*)>& change, bool certificate = true) {
    const TlsMaterial material = Node("n2");
    const bool dials = side == Side::kDialler;
    session = Begin(Context(Node("n1")), (dials ? sockets.dialler : sockets.acceptor).get(), side);
    raw =
        std::make_unique<RawPeer>(certificate ? &material : nullptr, (dials ? sockets.acceptor : sockets.dialler).get(),
                                  dials ? Side::kAcceptor : Side::kDialler, change);
    return Meet(*session, *raw);
  }
  static void ExpectOtherVersion(const absl::Status& status, const std::string& why) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(kOtherVersion));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), HasSubstr("run one version of railsd on all nodes"));
  }
  static void Nothing(SSL_CTX*) {}

  // One end of a connection whose bytes the test carries.
  struct Carried {
    Carried(const std::shared_ptr<const TlsContext>& context, Side side)
        : session(Begin(context, sockets.dialler.get(), side)) {}
    // Takes the bytes that the session has sent.
    std::string Take() const {
      std::string all;
      char bytes[4096];
      for (ssize_t n = 0; (n = recv(sockets.acceptor.get(), bytes, sizeof(bytes), 0)) > 0;) {
        all.append(bytes, static_cast<size_t>(n));
      }
      return all;
    }
    void Give(const std::string& bytes) const {
      ASSERT_EQ(send(sockets.acceptor.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
    }
    SocketPair sockets;
    std::unique_ptr<TlsSession> session;
  };

  SocketPair sockets;
  std::unique_ptr<TlsSession> session;
  std::unique_ptr<RawPeer> raw;
};

TEST_F(TlsHostileTest, OtherEndsOfTls13AreAccepted) {
  for (const Side side : {Side::kDialler, Side::kAcceptor}) {
    sockets = SocketPair();
    EXPECT_TRUE(MeetRaw(side, &Nothing).ok());
  }
}

TEST_F(TlsHostileTest, Tls12IsRefused) {
  const auto older = [](SSL_CTX* context) { SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION); };
  ExpectOtherVersion(MeetRaw(Side::kAcceptor, older), "unsupported protocol");
  EXPECT_THAT(raw->failure, HasSubstr("protocol version"));
  sockets = SocketPair();
  ExpectOtherVersion(MeetRaw(Side::kDialler, older), "protocol version");
}

TEST_F(TlsHostileTest, ADiallerWithoutACertificateIsRefused) {
  const absl::Status status = MeetRaw(Side::kAcceptor, &Nothing, false);
  EXPECT_EQ(status.code(), Code::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer did not return a certificate"));
}

TEST_F(TlsHostileTest, OurOwnCertificateRefusedByDiallerWithoutCaIsTold) {
  const absl::Status status =
      MeetRaw(Side::kAcceptor, [](SSL_CTX* context) { SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr); });
  EXPECT_EQ(status.code(), Code::kUnauthenticated) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("refuses this node's certificate: tlsv1 alert unknown ca"));
}

TEST_F(TlsHostileTest, AnotherProtocolIsAnotherVersionAtBothEnds) {
  const Verdicts verdicts = Meet(Context(Node("n1")), Context(Node("n2"), "railsd-link/3"));
  ExpectOtherVersion(verdicts.dialler, "no application protocol");
  ExpectOtherVersion(verdicts.acceptor, "no application protocol");
  const Verdicts longer = Meet(Context(Node("n1"), "railsd-link/22"), Context(Node("n2")));
  ExpectOtherVersion(longer.dialler, "no application protocol");
  ExpectOtherVersion(longer.acceptor, "no application protocol");
}

TEST_F(TlsHostileTest, NoProtocolIsAnotherVersion) {
  ExpectOtherVersion(MeetRaw(Side::kAcceptor, [](SSL_CTX* context) { SSL_CTX_set_alpn_protos(context, nullptr, 0); }),
                     "no application protocol");
  EXPECT_THAT(raw->failure, HasSubstr("no application protocol"));
  sockets = SocketPair();
  ExpectOtherVersion(
      MeetRaw(Side::kDialler, [](SSL_CTX* context) { SSL_CTX_set_alpn_select_cb(context, nullptr, nullptr); }),
      "it names no application protocol");
}

TEST_F(TlsHostileTest, AnOrderlyEndSaysSo) {
  ASSERT_TRUE(MeetRaw(Side::kAcceptor, &Nothing).ok());
  raw->Write("last");
  SSL_shutdown(raw->ssl());
  EXPECT_EQ(ReadText(*session), "last");
  EXPECT_TRUE(session->pending());
  EXPECT_EQ(ReadText(*session), "tls: closed by the other end");
  EXPECT_EQ(ReadText(*session), "tls: closed by the other end") << "still";
  EXPECT_FALSE(session->pending());
}

TEST_F(TlsHostileTest, OneProtocolAmongOthersIsTaken) {
  EXPECT_TRUE(MeetRaw(Side::kAcceptor, [](SSL_CTX* context) {
                const std::string list = absl::StrCat("\x02h2\x0d", kProtocol);
                SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(list.data()),
                                        static_cast<unsigned int>(list.size()));
              }).ok());
}

TEST_F(TlsHostileTest, WhatIsNoTlsIsPlainText) {
  for (const Side side : {Side::kDialler, Side::kAcceptor}) {
    for (const std::string& said :
         {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string("\0\0\0\4\0\0\0\0\0", 9), std::string("GET / "),
          std::string("RAILSD-LINK 2 hello"), std::string(100'000, '\xff'), std::string(5, '\x80')}) {
      const Carried end(Context(Node("n1")), side);
      absl::Status status;
      Step(*end.session, &status);
      end.Give(said);
      ASSERT_TRUE(Step(*end.session, &status));
      EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
      EXPECT_EQ(status.message(), kTlsModesDiffer);
    }
  }
}

// Every prefix of a flight, then the end of the connection: an error each time.
TEST_F(TlsHostileTest, ACutAnywhereInTheDiallersFlightIsAnError) {
  const auto dials = Context(Node("n1")), accepts = Context(Node("n2"));
  const Carried dialler(dials, Side::kDialler);
  absl::Status status;
  Step(*dialler.session, &status);
  const std::string flight = dialler.Take();
  ASSERT_GT(flight.size(), 100u);
  for (size_t size = 0; size <= flight.size(); ++size) {
    Carried acceptor(accepts, Side::kAcceptor);
    acceptor.Give(flight.substr(0, size));
    EXPECT_FALSE(Step(*acceptor.session, &status)) << "it waits for the rest, " << size;
    shutdown(acceptor.sockets.acceptor.get(), SHUT_WR);
    ASSERT_TRUE(Step(*acceptor.session, &status));
    ASSERT_EQ(status.code(), Code::kUnavailable) << size << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("connection lost in the handshake"));
    EXPECT_EQ(acceptor.session->Handshake().status(), status) << "still";
  }
}

TEST_F(TlsHostileTest, ACutInTheAcceptorsFlightIsAnError) {
  const auto dials = Context(Node("n1")), accepts = Context(Node("n2"));
  for (size_t size = 0;; size += testing::kSanitized ? 41 : 7) {
    Carried dialler(dials, Side::kDialler);
    const Carried acceptor(accepts, Side::kAcceptor);
    absl::Status status;
    Step(*dialler.session, &status);
    acceptor.Give(dialler.Take());
    Step(*acceptor.session, &status);
    const std::string flight = acceptor.Take();
    if (size >= flight.size()) break;
    dialler.Give(flight.substr(0, size));
    EXPECT_FALSE(Step(*dialler.session, &status));
    dialler.sockets.acceptor.Reset();
    ASSERT_TRUE(Step(*dialler.session, &status));
    ASSERT_EQ(status.code(), Code::kUnavailable) << size << ": " << status;
  }
}

TEST_F(TlsHostileTest, AHandshakeThatDribblesSucceeds) {
  const Carried dialler(Context(Node("n1")), Side::kDialler), acceptor(Context(Node("n2")), Side::kAcceptor);
  bool dialler_done = false, acceptor_done = false;
  absl::Status status;
  const auto dribble = [&](const Carried& from, const Carried& to, bool* done) {
    for (const char c : from.Take()) {
      ASSERT_FALSE(*done);
      to.Give(std::string(1, c));
      *done = Step(*to.session, &status);
      ASSERT_TRUE(status.ok()) << status;
    }
  };
  Step(*dialler.session, &status);
  for (int round = 0; round < 10; ++round) {
    dribble(dialler, acceptor, &acceptor_done);
    dribble(acceptor, dialler, &dialler_done);
  }
  EXPECT_TRUE(dialler_done && acceptor_done);
}

// Offsets in a flight that TLS protects: all except the version in the header of unencrypted records, which both ends
// must ignore (RFC 8446, 5.1).
std::vector<size_t> ProtectedBytes(const std::string& flight) {
  std::vector<size_t> offsets;
  for (size_t begin = 0; begin + 5 <= flight.size();) {
    const auto byte = [&](size_t i) { return size_t{static_cast<unsigned char>(flight[begin + i])}; };
    const size_t end = begin + 5 + byte(3) * 256 + byte(4);
    const bool encrypted = byte(0) == SSL3_RT_APPLICATION_DATA;
    for (size_t i = begin; i < end; ++i) {
      if (encrypted || (i != begin + 1 && i != begin + 2)) offsets.push_back(i);
    }
    begin = end;
  }
  return offsets;
}

// With one wrong bit in the exchanged bytes, never both ends complete the handshake.
TEST_F(TlsHostileTest, AWrongBitIsNoticed) {
  const auto dials = Context(Node("n1")), accepts = Context(Node("n2"));
  for (const uint64_t seed : testing::Seeds(500)) {
    std::mt19937_64 random(seed);
    const Carried dialler(dials, Side::kDialler), acceptor(accepts, Side::kAcceptor);
    absl::Status statuses[2];
    bool done[2] = {Step(*dialler.session, &statuses[0]), false};
    const size_t bad_flight = random() % 3;
    size_t bad_offset = 0;
    for (size_t flight = 0; flight < 3; ++flight) {
      const bool back = flight == 1;
      const Carried &from = back ? acceptor : dialler, &to = back ? dialler : acceptor;
      std::string bytes = from.Take();
      if (bytes.empty()) break;
      if (flight == bad_flight) {
        const std::vector<size_t> offsets = ProtectedBytes(bytes);
        bad_offset = offsets[random() % offsets.size()];
        bytes[bad_offset] = static_cast<char>(bytes[bad_offset] ^ (1 << random() % 8));
      }
      to.Give(bytes);
      done[back ? 0 : 1] = Step(*to.session, &statuses[back ? 0 : 1]);
    }
    EXPECT_FALSE(done[0] && done[1] && statuses[0].ok() && statuses[1].ok())
        << "seed " << seed << ", flight " << bad_flight << ", offset " << bad_offset;
  }
}

TEST_F(TlsHostileTest, NoiseIsAnError) {
  const auto context = Context(Node("n1"));
  for (const uint64_t seed : testing::Seeds(500)) {
    std::mt19937_64 random(seed);
    Carried end(context, random() % 2 == 0 ? Side::kDialler : Side::kAcceptor);
    absl::Status status;
    Step(*end.session, &status);
    std::string noise(random() % 2'000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (noise.size() > 5) noise.replace(0, 3, "\x16\x03\x01");  // the begin of a record
    end.Give(noise);
    end.sockets.acceptor.Reset();
    for (int round = 0; status.ok() && round < 10; ++round) Step(*end.session, &status);
    EXPECT_FALSE(status.ok()) << "seed " << seed;
  }
}

TEST_F(TlsHostileTest, KeyUpdatesWithDataAreFine) {
  ASSERT_TRUE(MeetRaw(Side::kAcceptor, &Nothing).ok());
  for (int i = 0; i < 200; ++i) {
    SSL_key_update(raw->ssl(), SSL_KEY_UPDATE_REQUESTED);
    raw->Write(absl::StrCat(i));
    EXPECT_EQ(ReadText(*session), absl::StrCat(i));
    WriteText(*session, "answer");
    char answer[16] = {};
    ASSERT_EQ(SSL_read(raw->ssl(), answer, sizeof(answer)), 6);
  }
}

TEST_F(TlsHostileTest, KeyUpdatesWithoutDataEndTheSession) {
  ASSERT_TRUE(MeetRaw(Side::kAcceptor, &Nothing).ok());
  absl::Status status;
  int updates = 0;
  for (; updates < 100 && status.ok(); ++updates) {
    SSL_key_update(raw->ssl(), SSL_KEY_UPDATE_NOT_REQUESTED);
    ASSERT_TRUE(raw->Step());
    char byte = 0;
    const auto io = session->Read(&byte, 1);
    status = io.status();
    EXPECT_TRUE(!io.ok() || io->want == Progress::kWantRead);
    EXPECT_FALSE(session->pending());
  }
  EXPECT_EQ(updates, 33);
  EXPECT_EQ(status.message(), "tls: the other end sends over 32 key updates or tickets in a row, and no data");
}

TEST_F(TlsHostileTest, AFloodOfKeyUpdatesEndsTheSessionInOneRead) {
  ASSERT_TRUE(MeetRaw(Side::kAcceptor, &Nothing).ok());
  for (int i = 0; i < 100; ++i) {
    SSL_key_update(raw->ssl(), SSL_KEY_UPDATE_REQUESTED);
    ASSERT_TRUE(raw->Step());
  }
  char byte = 0;
  EXPECT_EQ(session->Read(&byte, 1).status().code(), Code::kUnavailable);
}

// The answer to a key update must not come into the middle of a record.
TEST_F(TlsHostileTest, AKeyUpdateBesideAHalfWrittenRecordIsFine) {
  sockets = SocketPair(4096);
  ASSERT_TRUE(MeetRaw(Side::kAcceptor, &Nothing).ok());
  const std::string text(16'000, 'x');
  size_t written = 0;
  for (bool full = false; !full;) {
    const auto io = session->Write(text.data(), text.size());
    ASSERT_TRUE(io.ok()) << io.status();
    written += io->bytes;
    full = io->want == Progress::kWantWrite;
  }
  session->RenewKey();
  SSL_key_update(raw->ssl(), SSL_KEY_UPDATE_REQUESTED);
  raw->Write("data");
  char got[32'000];
  std::string heard;
  size_t read = 0;
  bool rest = false;
  for (int round = 0; round < 1000 && (heard != "data" || !rest || read < written); ++round) {
    if (heard != "data") {
      const auto io = session->Read(got, sizeof(got));
      ASSERT_TRUE(io.ok()) << io.status();
      heard.append(got, io->bytes);
    }
    if (const int n = SSL_read(raw->ssl(), got, sizeof(got)); n > 0) read += static_cast<size_t>(n);
    if (!rest) {
      const auto io = session->Write(text.data(), text.size());
      ASSERT_TRUE(io.ok()) << io.status();
      written += io->bytes;
      rest = io->bytes != 0;
    }
  }
  EXPECT_EQ(heard, "data");
  EXPECT_TRUE(rest);
  EXPECT_EQ(read, written);
}

// The socket has no room for the answer to a key update. The answer waits for the next Write(); Read() does not wait.
TEST_F(TlsHostileTest, AKeyUpdateWhoseAnswerMustWaitIsFine) {
  ASSERT_TRUE(MeetRaw(Side::kAcceptor, &Nothing).ok());
  WriteText(*session, std::string(16'000, 'x'));
  const int least = 1;
  ASSERT_EQ(setsockopt(sockets.acceptor.get(), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
  SSL_key_update(raw->ssl(), SSL_KEY_UPDATE_REQUESTED);
  raw->Write("data");
  EXPECT_EQ(ReadText(*session), "data");
  const auto full = session->Write("answer", 6);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->want, Progress::kWantWrite);
  char got[32'000];
  ASSERT_EQ(SSL_read(raw->ssl(), got, sizeof(got)), 16'000);
  WriteText(*session, "answer");
  ASSERT_EQ(SSL_read(raw->ssl(), got, sizeof(got)), 6);
}

TEST_F(TlsHostileTest, TicketsAreTakenForNothing) {
  ASSERT_TRUE(MeetRaw(Side::kDialler, &Nothing).ok());  // OpenSSL sends two
  char byte = 0;
  const auto io = session->Read(&byte, 1);
  ASSERT_TRUE(io.ok()) << io.status();
  EXPECT_EQ(io->want, Progress::kWantRead);
  EXPECT_FALSE(session->pending());
  raw->Write("data");
  EXPECT_EQ(ReadText(*session), "data");
}

TEST_F(TlsHostileTest, RenegotiationIsRefused) {
  ASSERT_TRUE(MeetRaw(Side::kAcceptor, &Nothing).ok());
  // A ClientHello in an unencrypted record.
  const Carried other(Context(Node("n3")), Side::kDialler);
  absl::Status status;
  Step(*other.session, &status);
  const std::string hello = other.Take();
  ASSERT_EQ(send(sockets.dialler.get(), hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  char byte = 0;
  EXPECT_EQ(session->Read(&byte, 1).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace railsd::tls_test
