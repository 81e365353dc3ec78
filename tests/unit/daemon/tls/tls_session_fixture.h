// Sessions of TLS over pairs of sockets, stepped in one thread.
#ifndef RAILSD_TESTS_UNIT_DAEMON_TLS_TLS_SESSION_FIXTURE_H_
#define RAILSD_TESTS_UNIT_DAEMON_TLS_TLS_SESSION_FIXTURE_H_

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/base/unique_fd.h"
#include "daemon/tls/openssl_objects.h"
#include "daemon/tls/session.h"
#include "tests/unit/daemon/tls/tls_test_files.h"

namespace railsd::tls_test {

namespace pki = rails::ctl::pki;
using Side = TlsSession::Side;
using Progress = TlsSession::Progress;
using Code = absl::StatusCode;

inline constexpr char kProtocol[] = "railsd-link/2";
inline constexpr char kOtherVersion[] = "the other daemon is of another version";

struct SocketPair {
  explicit SocketPair(int buffer_bytes = 0) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    dialler.Reset(fds[0]);
    acceptor.Reset(fds[1]);
    for (const int fd : fds) {
      if (buffer_bytes == 0) continue;
      EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes)), 0);
    }
  }
  UniqueFd dialler, acceptor;
};

// Outcome of a handshake at each end. OK: done, and a later Read() returned no refusal.
struct Verdicts {
  absl::Status dialler, acceptor;
};

// An end that uses OpenSSL directly, for behaviour that a session never shows.
class RawPeer {
 public:
  RawPeer(const TlsMaterial* material, int fd, Side side, const std::function<void(SSL_CTX*)>& change)
      : context_(SSL_CTX_new(TLS_method())) {
    if (material != nullptr) {
      const openssl::CertificateList own = openssl::CertificatesOf(material->certificate);
      EXPECT_EQ(SSL_CTX_use_certificate(context_.get(), sk_X509_value(own.get(), 0)), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey(context_.get(), openssl::KeyOf(material->key).get()), 1);
    }
    const std::string alpn = absl::StrCat(std::string(1, static_cast<char>(sizeof(kProtocol) - 1)), kProtocol);
    if (side == Side::kDialler) {
      SSL_CTX_set_alpn_protos(context_.get(), reinterpret_cast<const unsigned char*>(alpn.data()),
                              static_cast<unsigned int>(alpn.size()));
    } else {
      SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
      SSL_CTX_set_alpn_select_cb(context_.get(), &TakeFirst, nullptr);
    }
    change(context_.get());
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd);
    side == Side::kDialler ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
  }

  SSL* ssl() const { return ssl_.get(); }
  // One handshake step. True: done or failed.
  bool Step() {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl());
    if (result == 1) return true;
    const int error = SSL_get_error(ssl(), result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return false;
    const char* const text = ERR_reason_error_string(ERR_peek_error());
    failure = text == nullptr ? "lost" : text;
    return true;
  }
  void Write(const std::string& text) {
    EXPECT_EQ(SSL_write(ssl(), text.data(), static_cast<int>(text.size())), static_cast<int>(text.size()));
  }
  std::string failure;

 private:
  static int TakeFirst(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* in, unsigned int,
                       void*) {
    *out = in + 1;
    *size = in[0];
    return SSL_TLSEXT_ERR_OK;
  }
  openssl::Context context_;
  std::unique_ptr<SSL, openssl::Freer<&SSL_free>> ssl_;
};

class TlsSessionTest : public ::testing::Test {
 protected:
  TlsSessionTest() { std::signal(SIGPIPE, SIG_DFL); }  // so that a SIGPIPE ends the program

  TlsMaterial Material(const pki::Pair& pair) const {
    return {pair.certificate, pair.key, files.authority.certificate};
  }
  TlsMaterial Node(const std::string& node) const {
    return Material(files.Issue(node, ValidFor(absl::Hours(1), absl::Hours(24))));
  }
  static std::shared_ptr<const TlsContext> Context(const TlsMaterial& material, const std::string& alpn = kProtocol) {
    absl::StatusOr<std::shared_ptr<const TlsContext>> made = TlsContext::Make(material, alpn);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  static std::unique_ptr<TlsSession> Begin(const std::shared_ptr<const TlsContext>& context, int fd, Side side) {
    absl::StatusOr<std::unique_ptr<TlsSession>> made = TlsSession::Begin(context, fd, side);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  // A certificate of n1 whose extension of this kind is replaced.
  pki::Pair WithExtension(int kind, const std::function<X509_EXTENSION*()>& make) const {
    pki::Pair pair = files.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(24)));
    const openssl::CertificateList list = openssl::CertificatesOf(pair.certificate);
    X509* const certificate = sk_X509_value(list.get(), 0);
    X509_EXTENSION_free(X509_delete_ext(certificate, X509_get_ext_by_NID(certificate, kind, -1)));
    X509_EXTENSION* const extension = make();
    EXPECT_EQ(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
    EXPECT_NE(X509_sign(certificate, openssl::KeyOf(files.authority.key).get(), EVP_sha256()), 0);
    const openssl::Bio out(BIO_new(BIO_s_mem()));
    EXPECT_EQ(PEM_write_bio_X509(out.get(), certificate), 1);
    char* bytes = nullptr;
    const auto size = BIO_get_mem_data(out.get(), &bytes);
    pair.certificate.assign(bytes, static_cast<size_t>(size));
    return pair;
  }
  pki::Pair ForPurpose(const char* purpose) const {
    return WithExtension(NID_ext_key_usage,
                         [&] { return X509V3_EXT_conf_nid(nullptr, nullptr, NID_ext_key_usage, purpose); });
  }
  pki::Pair WithNames(const std::vector<std::string>& names) const {
    return WithExtension(NID_subject_alt_name, [&] {
      const openssl::Names list(sk_GENERAL_NAME_new_null());
      for (const std::string& name : names) {
        GENERAL_NAME* const entry = GENERAL_NAME_new();
        ASN1_IA5STRING* const text = ASN1_IA5STRING_new();
        ASN1_STRING_set(text, name.data(), static_cast<int>(name.size()));
        GENERAL_NAME_set0_value(entry, GEN_DNS, text);
        sk_GENERAL_NAME_push(list.get(), entry);
      }
      return X509V3_EXT_i2d(NID_subject_alt_name, 0, list.get());
    });
  }

  // One handshake step of a session. True: done or failed.
  static bool Step(TlsSession& session, absl::Status* status) {
    const absl::StatusOr<Progress> progress = session.Handshake();
    *status = progress.status();
    return !progress.ok() || *progress == Progress::kDone;
  }
  // Steps both ends in turns. An end that fails closes its socket, as daemons do.
  static Verdicts Meet(SocketPair& sockets, TlsSession& dialler, TlsSession& acceptor) {
    Verdicts verdicts;
    bool dialler_done = false, acceptor_done = false;
    for (int round = 0; !dialler_done || !acceptor_done; ++round) {
      if (round == 100) {
        ADD_FAILURE() << "no end";
        break;
      }
      dialler_done = dialler_done || Step(dialler, &verdicts.dialler);
      if (!verdicts.dialler.ok()) sockets.dialler.Reset();
      acceptor_done = acceptor_done || Step(acceptor, &verdicts.acceptor);
      if (!verdicts.acceptor.ok()) sockets.acceptor.Reset();
    }
    if (verdicts.dialler.ok() && !verdicts.acceptor.ok()) {
      char byte = 0;
      verdicts.dialler = dialler.Read(&byte, 1).status();
    }
    return verdicts;
  }
  static Verdicts Meet(const std::shared_ptr<const TlsContext>& dials,
                       const std::shared_ptr<const TlsContext>& accepts) {
    SocketPair sockets;
    const auto dialler = Begin(dials, sockets.dialler.get(), Side::kDialler);
    const auto acceptor = Begin(accepts, sockets.acceptor.get(), Side::kAcceptor);
    return Meet(sockets, *dialler, *acceptor);
  }

  // Steps a session and an end of OpenSSL.
  static absl::Status Meet(TlsSession& session, RawPeer& raw) {
    absl::Status status;
    bool session_done = false, raw_done = false;
    for (int round = 0; round < 100 && !(session_done && raw_done); ++round) {
      session_done = session_done || Step(session, &status);
      raw_done = raw_done || raw.Step();
      if (session_done && !status.ok() && !raw_done) raw_done = raw.Step();
      if (raw_done && !raw.failure.empty() && !session_done) session_done = Step(session, &status);
    }
    EXPECT_TRUE(session_done);
    return status;
  }

  static std::string ReadText(TlsSession& session) {
    char text[64] = {};
    const auto io = session.Read(text, sizeof(text));
    return io.ok() ? std::string(text, io->bytes) : std::string(io.status().message());
  }
  static void WriteText(TlsSession& session, const std::string& text) {
    const auto io = session.Write(text.data(), text.size());
    ASSERT_TRUE(io.ok()) << io.status();
    ASSERT_EQ(io->bytes, text.size());
  }

  TlsTestFiles files;
};

// Two sessions after the handshake.
class TlsLinkTest : public TlsSessionTest {
 protected:
  explicit TlsLinkTest(int buffer_bytes = 0) : sockets(buffer_bytes) {
    dialler = Begin(Context(Node("n1")), sockets.dialler.get(), Side::kDialler);
    acceptor = Begin(Context(Node("n2")), sockets.acceptor.get(), Side::kAcceptor);
    const Verdicts verdicts = Meet(sockets, *dialler, *acceptor);
    EXPECT_TRUE(verdicts.dialler.ok()) << verdicts.dialler;
    EXPECT_TRUE(verdicts.acceptor.ok()) << verdicts.acceptor;
  }
  SocketPair sockets;
  std::unique_ptr<TlsSession> dialler, acceptor;
};

}  // namespace railsd::tls_test

#endif  // RAILSD_TESTS_UNIT_DAEMON_TLS_TLS_SESSION_FIXTURE_H_
