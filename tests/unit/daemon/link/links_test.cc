// Links over real sockets: who is served when, who is refused, and how connections end.
#include "daemon/link/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/base/steady_now.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/link/listen.h"
#include "daemon/link/socket_connection.h"
#include "daemon/tls/tls_files.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/source_thread.h"
#include "tests/unit/daemon/tls/tls_session_fixture.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;
using tls_test::RawPeer;

// Holds `gate` in every call: while a test holds it, the links' thread stands still.
class Recorder final : public ConnectionHandler {
 public:
  void OnOpen(const ConnectionPtr& connection) override {
    absl::MutexLock lock(&gate);
    opened.push_back(connection);
    if (greets) connection->SetGreeted();
  }
  void OnFrame(const ConnectionPtr& connection, const Frame& frame) override {
    absl::MutexLock lock(&gate);
    frames.emplace_back(connection, frame.kind);
    readers.push_back(std::this_thread::get_id());
  }
  void OnWritable(const ConnectionPtr&) override {}
  void OnEnd(const ConnectionPtr& connection, const absl::Status& why) override {
    absl::MutexLock lock(&gate);
    ended[connection] = why;
  }
  void OnTick(absl::Time now) override {
    absl::MutexLock lock(&gate);
    ++ticks;
    last_tick = now;
  }
  // Waits for a state that only the links' thread changes.
  template <typename Condition>
  bool Reaches(const Condition& done) {
    return testing::Until([&] {
      absl::MutexLock lock(&gate);
      return done();
    });
  }
  // The thread has read what had arrived before the call.
  bool PassesATurn() {
    const int before = ticks;
    return Reaches([&] { return ticks >= before + 2; });
  }

  absl::Mutex gate;
  std::atomic<int> ticks = 0;
  absl::Time last_tick;
  std::atomic<bool> greets = false;  // whoever opens
  std::vector<ConnectionPtr> opened;
  std::vector<std::pair<ConnectionPtr, FrameKind>> frames;
  std::vector<std::thread::id> readers;  // of frames
  std::map<ConnectionPtr, absl::Status> ended;
};

class LinksTest : public tls_test::TlsSessionTest {
 protected:
  LinksTest() {
    options.listen = "0.0.0.0:0";
    options.tick = absl::Milliseconds(1);
    options.handshake = absl::Hours(1);
    options.log = NullLogger();
  }
  void Start() {
    auto started = Links::Start(options, &recorder, &engine);
    ASSERT_TRUE(started.ok()) << started.status();
    links = *std::move(started);
  }
  void StartWithTls() {
    tls = *TlsFiles::Open(files.WriteNode("n1"), "n1", NullLogger());
    options.tls = tls.get();
    Start();
  }
  UniqueFd Connect(const std::string& from = "127.0.0.1") const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const tcp::SocketAddress own = *tcp::ParseAddress(from);
    const tcp::SocketAddress to = *tcp::ParseAddress(absl::StrCat("127.0.0.1:", links->port()));
    EXPECT_EQ(bind(fd.get(), own.get(), own.length), 0);
    EXPECT_EQ(connect(fd.get(), to.get(), to.length), 0);
    return fd;
  }
  static void Send(const UniqueFd& fd, const std::string& bytes) {
    ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static bool AtEnd(const UniqueFd& fd) {
    char byte = 0;
    return testing::Until(
        [&] { return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK); });
  }
  // OpenSSL's end of a connection to the links, after its handshake.
  std::unique_ptr<RawPeer> MeetTls(
      const UniqueFd& fd, const std::function<void(SSL_CTX*)>& change = [](SSL_CTX*) {}) {
    const TlsMaterial material = Node("n2");
    auto peer = std::make_unique<RawPeer>(&material, fd.get(), tls_test::Side::kDialler, [&](SSL_CTX* context) {
      const std::string alpn = absl::StrCat(std::string(1, static_cast<char>(kLinkProtocol.size())), kLinkProtocol);
      SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(alpn.data()),
                              static_cast<unsigned int>(alpn.size()));
      change(context);
    });
    EXPECT_TRUE(peer->Step() && peer->failure.empty()) << peer->failure;
    peer->Write(absl::StrCat(kLinkPreface, FrameOf(FrameKind::kHello, 0)));
    ++met;
    EXPECT_TRUE(recorder.Reaches([&] { return recorder.frames.size() == met; }));
    return peer;
  }

  Recorder recorder;
  SourceThread engine;
  LinksOptions options;
  std::unique_ptr<TlsFiles> tls;
  std::unique_ptr<Links> links;
  size_t met = 0;
};

TEST_F(LinksTest, PeersThatFloodOverTlsAreReadInTurns) {
  StartWithTls();
  constexpr size_t kFrames = 200;  // all of them fit into what OpenSSL receives at once
  const std::array<UniqueFd, 2> fds = {Connect(), Connect()};
  const auto first = MeetTls(fds[0]), second = MeetTls(fds[1]);
  {
    absl::MutexLock lock(&recorder.gate);
    recorder.frames.clear();
    for (const auto& peer : {first.get(), second.get()}) {
      for (size_t i = 0; i < kFrames; ++i) peer->Write(FrameOf(FrameKind::kTaken, i));
    }
  }
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.frames.size() == 2 * kFrames; }));
  std::map<ConnectionPtr, size_t> read;
  for (const auto& [connection, kind] : recorder.frames) {
    if (++read[connection] == kFrames) break;
  }
  ASSERT_EQ(read.size(), 2u) << "one has been read to its end before the other's turn";
  for (const auto& [connection, count] : read) EXPECT_GE(count, kFrames / 2);
}

TEST_F(LinksTest, TheEnginesThreadReadsAFewGreetedConnectionsAndTheLinksThreadTheRest) {
  constexpr size_t kPeers = 20, kPolled = 16;
  recorder.greets = true;
  Start();
  std::vector<UniqueFd> fds;
  const auto say = [&](const UniqueFd& fd, const std::string& bytes) {
    const size_t before = recorder.frames.size();
    Send(fd, bytes);
    ASSERT_TRUE(recorder.Reaches([&] { return recorder.frames.size() == before + 1; }));
  };
  for (size_t i = 0; i < kPeers; ++i) {
    fds.push_back(Connect());
    say(fds.back(), absl::StrCat(kLinkPreface, FrameOf(FrameKind::kHello, 0)));
  }
  recorder.readers.clear();
  for (const UniqueFd& fd : fds) say(fd, FrameOf(FrameKind::kTaken, 1));
  const auto by_engine = [&] {
    return static_cast<size_t>(std::count(recorder.readers.begin(), recorder.readers.end(), engine.id()));
  };
  EXPECT_EQ(by_engine(), kPolled);
  // One of them ends: there is room for the next that is read.
  fds.front().Reset();
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.ended.size() == 1; }));
  say(fds.back(), FrameOf(FrameKind::kTaken, 2));
  recorder.readers.clear();
  say(fds.back(), FrameOf(FrameKind::kTaken, 3));
  EXPECT_EQ(by_engine(), 1u);
  ASSERT_TRUE(recorder.Reaches([&] { return options.counters->open.load() == kPeers - 1; }));
}

// Parsing a long message takes the engine's thread too long. Short ones may come between its parts.
TEST_F(LinksTest, TheLinksThreadReadsAMessageInPartsToItsEnd) {
  recorder.greets = true;
  for (const bool with_tls : {false, true}) {
    with_tls ? StartWithTls() : Start();
    const UniqueFd fd = Connect();
    std::unique_ptr<RawPeer> peer;
    size_t count = recorder.frames.size();
    const auto say = [&](const std::string& bytes) {
      peer == nullptr ? Send(fd, bytes) : peer->Write(bytes);
      ++count;
      EXPECT_TRUE(recorder.Reaches([&] { return recorder.frames.size() == count; }));
      absl::MutexLock lock(&recorder.gate);
      return recorder.readers.back() == engine.id();
    };
    if (with_tls) {
      met = count;
      peer = MeetTls(fd);
      ++count;
    } else {
      say(absl::StrCat(kLinkPreface, FrameOf(FrameKind::kHello, 0)));
    }
    for (int message = 0; message < 3; ++message) {
      EXPECT_TRUE(say(FrameOf(FrameKind::kTaken, 1)));
      EXPECT_TRUE(say(FrameOf(FrameKind::kPart, 1, std::string(kMaxFrameBody, 'x')))) << "nothing is parsed yet";
      EXPECT_FALSE(say(FrameOf(FrameKind::kTaken, 1)));
      EXPECT_FALSE(say(FrameOf(FrameKind::kPart, 2, std::string(kMaxFrameBody, 'x'))));
      EXPECT_FALSE(say(FrameOf(FrameKind::kLastPart, 3, "x")));
    }
    ASSERT_TRUE(recorder.PassesATurn());
    EXPECT_EQ(options.counters->open.load(), 1u);
    links.reset();
  }
}

TEST_F(LinksTest, TicksDoNotJumpWhenSomebodySetsTheClock) {
  Start();
  ASSERT_TRUE(recorder.PassesATurn());
  absl::MutexLock lock(&recorder.gate);
  EXPECT_LT(absl::AbsDuration(SteadyNow() - recorder.last_tick), absl::Hours(1)) << "the time since boot, not the date";
}

class ResetTest : public LinksTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(PlainAndTls, ResetTest, ::testing::Bool());

TEST_P(ResetTest, BytesThatCameBeforeAResetAreReadAlsoWhileAFrameWaitsForRoom) {
  GetParam() ? StartWithTls() : Start();
  UniqueFd fd = Connect();
  const std::unique_ptr<RawPeer> peer = GetParam() ? MeetTls(fd) : nullptr;
  if (peer == nullptr) Send(fd, absl::StrCat(kLinkPreface, FrameOf(FrameKind::kHello, 0)));
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.frames.size() == 1; }));
  {
    absl::MutexLock lock(&recorder.gate);
    const auto frame = std::make_shared<const std::string>(FrameOf(FrameKind::kTaken, 1, std::string(60'000, 'x')));
    while (recorder.opened[0]->Write(frame)) continue;
    const std::string last = FrameOf(FrameKind::kStopping, 0);
    peer != nullptr ? peer->Write(last) : Send(fd, last);
    const linger reset = {1, 0};
    ASSERT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    fd.Reset();
  }
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.ended.size() == 1; }));
  EXPECT_EQ(recorder.frames.back().second, FrameKind::kStopping);
}

TEST_F(LinksTest, ConnectionsAreLimitedInAll) {
  options.max_connections = 2;
  Start();
  const UniqueFd first = Connect();
  UniqueFd second = Connect("127.0.0.2");
  EXPECT_TRUE(AtEnd(Connect("127.0.0.3")));
  EXPECT_EQ(options.refused->Read(Limit::kControlConnections), 1u);
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.opened.size() == 2; }));
  second.Reset();
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.ended.size() == 1; }));
  const UniqueFd third = Connect("127.0.0.3");
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.opened.size() == 3; }));
}

TEST_F(LinksTest, HalfOpenConnectionsOfOneAddressAreLimited) {
  options.max_per_address = 2;
  Start();
  const auto refused = [&] { return options.refused->Read(Limit::kControlConnectionsPerAddress); };
  const std::array<UniqueFd, 2> open = {Connect(), Connect()};
  EXPECT_TRUE(AtEnd(Connect()));
  EXPECT_EQ(refused(), 1u);
  const UniqueFd other = Connect("127.0.0.2");
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.opened.size() == 3; }));
  recorder.opened[0]->SetGreeted();
  ASSERT_TRUE(recorder.PassesATurn());
  const UniqueFd third = Connect();
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.opened.size() == 4; })) << "a greeted one does not count";
  EXPECT_TRUE(AtEnd(Connect()));
  EXPECT_EQ(refused(), 2u);
}

TEST(SourceOfTest, AnAddressOfIpv4OrANetworkOfIpv6) {
  const auto source = [](const char* address) { return SourceOf(*tcp::ParseAddress(address)); };
  EXPECT_EQ(source("192.0.2.1:1000"), source("192.0.2.1:2000"));
  EXPECT_NE(source("192.0.2.1:1000"), source("192.0.2.2:1000"));
  EXPECT_NE(source("[::ffff:192.0.2.1]:1"), source("[::ffff:192.0.2.2]:1"));
  EXPECT_EQ(source("[2001:db8:0:1::1]:1"), source("[2001:db8:0:1:ffff::2]:2"));
  EXPECT_NE(source("[2001:db8:0:1::1]:1"), source("[2001:db8:0:2::1]:1"));
}

TEST_F(LinksTest, AConnectionThatSaysNothingEndsAndAGreetedOneStays) {
  options.handshake = absl::Milliseconds(1);
  Start();
  recorder.greets = true;
  const UniqueFd greeted = Connect();
  ASSERT_TRUE(recorder.Reaches([&] { return recorder.opened.size() == 1; }));
  recorder.greets = false;
  EXPECT_TRUE(AtEnd(Connect()));
  ASSERT_TRUE(recorder.PassesATurn());
  absl::MutexLock lock(&recorder.gate);
  ASSERT_EQ(recorder.ended.size(), 1u);
  EXPECT_THAT(std::string(recorder.ended[recorder.opened[1]].message()), HasSubstr("no hello came within 1ms"));
  EXPECT_EQ(options.refused->Read(Limit::kHandshake), 1u);
}

// HKDF-Expand-Label of TLS 1.3 (RFC 8446, 7.1) with SHA-384, up to one block.
std::string Expand(const std::string& secret, const std::string& label, uint8_t size) {
  const std::string name = "tls13 " + label;
  const std::string info = absl::StrCat(std::string({0, static_cast<char>(size), static_cast<char>(name.size())}), name,
                                        std::string("\0\1", 2));
  unsigned char out[EVP_MAX_MD_SIZE];
  HMAC(EVP_sha384(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(info.data()), info.size(), out, nullptr);
  return std::string(reinterpret_cast<const char*>(out), size);
}

// The record `number` of a direction of TLS_AES_256_GCM_SHA384, with a piece of a message of the handshake.
std::string HandshakeRecord(const std::string& secret, uint8_t number, std::string piece) {
  const std::string key = Expand(secret, "key", 32);
  std::string nonce = Expand(secret, "iv", 12);
  nonce.back() = static_cast<char>(nonce.back() ^ number);
  piece.push_back(SSL3_RT_HANDSHAKE);
  std::string record({0x17, 3, 3, 0, static_cast<char>(piece.size() + 16)});
  std::string sealed(piece.size() + 16, '\0');
  const auto bytes = [](auto& text) { return reinterpret_cast<unsigned char*>(const_cast<char*>(text.data())); };
  const std::unique_ptr<EVP_CIPHER_CTX, openssl::Freer<&EVP_CIPHER_CTX_free>> cipher(EVP_CIPHER_CTX_new());
  int size = 0;
  EXPECT_EQ(EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytes(key), bytes(nonce)), 1);
  EXPECT_EQ(EVP_EncryptUpdate(cipher.get(), nullptr, &size, bytes(record), static_cast<int>(record.size())), 1);
  EXPECT_EQ(EVP_EncryptUpdate(cipher.get(), bytes(sealed), &size, bytes(piece), static_cast<int>(piece.size())), 1);
  EXPECT_EQ(EVP_EncryptFinal_ex(cipher.get(), bytes(sealed) + size, &size), 1);
  EXPECT_EQ(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_GET_TAG, 16, bytes(sealed) + piece.size()), 1);
  return record + sealed;
}
std::string& DiallersSecret() {
  static std::string secret;
  return secret;
}
void KeepSecret(SSL_CTX* context) {
  SSL_CTX_set_keylog_callback(context, [](const SSL*, const char* line) {
    const std::string text(line);
    if (text.rfind("CLIENT_TRAFFIC_SECRET_0", 0) != 0) return;
    DiallersSecret() = absl::HexStringToBytes(text.substr(text.rfind(' ') + 1));
  });
}

// OpenSSL writes nothing while a message of TLS is half received. The socket has room meanwhile, so a thread that
// waited for that would spin.
TEST_F(LinksTest, AFrameWaitsForTheRestOfAKeyUpdateAndNotForTheSocket) {
  tls_test::SocketPair sockets;
  const TlsMaterial material = Node("n2");
  RawPeer peer(&material, sockets.dialler.get(), tls_test::Side::kDialler, &KeepSecret);
  const int other_end = sockets.dialler.get();
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {};
  const int fd = sockets.acceptor.get();
  SocketConnection connection({std::move(sockets.acceptor), "there", false, absl::InfiniteFuture()},
                              Context(Node("n1")), epoll.get(), 1);
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event), 0);
  for (bool done = false; !connection.open(); done = peer.Step()) ASSERT_TRUE(connection.Open().ok()) << done;
  const auto events = [&] { return epoll_wait(epoll.get(), &event, 1, 0) == 1 ? event.events : 0; };
  const auto give = [&](const std::string& bytes) {
    ASSERT_EQ(send(other_end, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(events(), uint32_t{EPOLLIN});
    const absl::StatusOr<bool> read = connection.Read();
    EXPECT_TRUE(read.ok() && !*read);
  };
  give(HandshakeRecord(DiallersSecret(), 0, std::string("\x18\0\0\1", 4)));
  EXPECT_TRUE(connection.Write(std::make_shared<const std::string>("frame")));
  EXPECT_TRUE(connection.write_wants_read());
  EXPECT_EQ(events(), 0u);
  ASSERT_TRUE(connection.Flush().ok());
  EXPECT_EQ(events(), 0u);
  give(HandshakeRecord(DiallersSecret(), 1, std::string(1, '\0')));
  ASSERT_TRUE(connection.Flush().ok());
  EXPECT_EQ(events(), 0u);
  char got[64] = {};
  EXPECT_EQ(SSL_read(peer.ssl(), got, sizeof(got)), static_cast<int>(kLinkPreface.size() + 5));
}

TEST_F(LinksTest, AFrameGoesOutWithTheRestOfAKeyUpdate) {
  StartWithTls();
  const UniqueFd fd = Connect();
  const auto peer = MeetTls(fd, &KeepSecret);  // in record 0
  Send(fd, HandshakeRecord(DiallersSecret(), 1, std::string("\x18\0\0\1", 4)));
  ASSERT_TRUE(recorder.PassesATurn());
  EXPECT_TRUE(recorder.opened[0]->Write(std::make_shared<const std::string>("frame")));
  char got[64] = {};
  EXPECT_EQ(recv(fd.get(), got, 1, MSG_PEEK | MSG_DONTWAIT), -1);
  Send(fd, HandshakeRecord(DiallersSecret(), 2, std::string(1, '\0')));
  EXPECT_EQ(SSL_read(peer->ssl(), got, sizeof(got)), static_cast<int>(kLinkPreface.size() + 5));
}

}  // namespace
}  // namespace railsd
