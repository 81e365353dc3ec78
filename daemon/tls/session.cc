#include "daemon/tls/session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/config/units.h"
#include "daemon/tls/openssl_objects.h"

namespace railsd {
namespace {

constexpr size_t kMaxNodeName = 253;
constexpr size_t kMaxErrorText = 200;  // bytes of an OpenSSL text in an error
// Key updates and tickets that the other end may send in a row without data. Each costs this end about as much as a
// record, so the limit bounds the work of one Read().
constexpr int kMaxControls = 32;
// AES-GCM is safe for 2^24.5 records of full size with one key (RFC 8446, 5.5).
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 24;

// Returns the alert (SSL_AD_*) that the other end sent; 0 if the error arose at this end.
int AlertOf(unsigned long error) {  // NOLINT(google-runtime-int): OpenSSL's type
  const int reason = ERR_GET_REASON(error);
  return reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256 ? reason - SSL_AD_REASON_OFFSET : 0;
}

enum class Cause { kOther, kTheirCertificate, kOwnCertificate, kVersion };

// Alerts by which the other end refuses this end's certificate, or its version of the protocol.
constexpr int kOwnCertificateAlerts[] = {SSL_AD_BAD_CERTIFICATE,     SSL_AD_UNSUPPORTED_CERTIFICATE,
                                         SSL_AD_CERTIFICATE_REVOKED, SSL_AD_CERTIFICATE_EXPIRED,
                                         SSL_AD_CERTIFICATE_UNKNOWN, SSL_AD_UNKNOWN_CA,
                                         SSL_AD_ACCESS_DENIED,       SSL_AD_CERTIFICATE_REQUIRED};
constexpr int kVersionAlerts[] = {SSL_AD_PROTOCOL_VERSION, SSL_AD_NO_APPLICATION_PROTOCOL, SSL_AD_HANDSHAKE_FAILURE,
                                  SSL_AD_INSUFFICIENT_SECURITY};
// Reasons for which this end refuses the other.
constexpr int kTheirCertificateReasons[] = {SSL_R_CERTIFICATE_VERIFY_FAILED,
                                            SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE,
                                            SSL_R_BAD_SIGNATURE,
                                            SSL_R_WRONG_SIGNATURE_TYPE,
                                            SSL_R_EE_KEY_TOO_SMALL,
                                            SSL_R_CA_KEY_TOO_SMALL,
                                            SSL_R_CA_MD_TOO_WEAK,
                                            SSL_R_UNKNOWN_CERTIFICATE_TYPE,
                                            SSL_R_UNABLE_TO_FIND_PUBLIC_KEY_PARAMETERS};
constexpr int kVersionReasons[] = {
    SSL_R_NO_APPLICATION_PROTOCOL, SSL_R_UNSUPPORTED_PROTOCOL,  SSL_R_WRONG_VERSION_NUMBER,
    SSL_R_WRONG_SSL_VERSION,       SSL_R_UNKNOWN_PROTOCOL,      SSL_R_UNKNOWN_SSL_VERSION,
    SSL_R_VERSION_TOO_LOW,         SSL_R_VERSION_TOO_HIGH,      SSL_R_NO_SHARED_CIPHER,
    SSL_R_NO_SHARED_GROUPS,        SSL_R_NO_SUITABLE_KEY_SHARE, SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM};

Cause CauseOf(unsigned long error) {  // NOLINT(google-runtime-int): OpenSSL's type
  const auto in = [](const auto& list, int value) {
    return std::find(std::begin(list), std::end(list), value) != std::end(list);
  };
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return Cause::kOther;
  const int alert = AlertOf(error), reason = ERR_GET_REASON(error);
  if (in(kOwnCertificateAlerts, alert)) return Cause::kOwnCertificate;
  if (alert == 0 && in(kTheirCertificateReasons, reason)) return Cause::kTheirCertificate;
  return in(kVersionAlerts, alert) || (alert == 0 && in(kVersionReasons, reason)) ? Cause::kVersion : Cause::kOther;
}

std::string ReasonText(unsigned long error) {  // NOLINT(google-runtime-int): OpenSSL's type
  const char* const text = ERR_reason_error_string(error);
  if (text == nullptr) return absl::StrCat("OpenSSL's error ", ERR_GET_REASON(error));
  return absl::CEscape(absl::string_view(text).substr(0, kMaxErrorText));
}

absl::Status OtherVersion(absl::string_view reason) {
  return absl::FailedPreconditionError(
      absl::StrCat("tls: the other daemon is of another version, or has other tls settings (", reason,
                   "): run one version of railsd on all nodes, with the same tls.mode"));
}

absl::Status Unusable(absl::string_view what) {
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat("tls: ", what, error == 0 ? "" : ": ", error == 0 ? "" : ReasonText(error)));
  ERR_clear_error();
  return status;
}

// TLS's form: the length before the name.
std::string AlpnList(const std::string& alpn) {
  return absl::StrCat(std::string(1, static_cast<char>(alpn.size())), alpn);
}

// Refuses a dialler that names no protocol, at the acceptor. OpenSSL calls ChooseAlpn() only if it names some.
int RequireAlpn(SSL* ssl, int* alert, void*) {
  const unsigned char* bytes = nullptr;
  size_t size = 0;
  if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &bytes, &size) == 1) {
    return SSL_CLIENT_HELLO_SUCCESS;
  }
  ERR_raise(ERR_LIB_SSL, SSL_R_NO_APPLICATION_PROTOCOL);
  *alert = SSL_AD_NO_APPLICATION_PROTOCOL;
  return SSL_CLIENT_HELLO_ERROR;
}

int ChooseAlpn(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
               unsigned int offered_size, void* own) {
  const std::string list = AlpnList(*static_cast<const std::string*>(own));
  unsigned char* chosen = nullptr;
  const int found = SSL_select_next_proto(&chosen, out_size, offered, offered_size,
                                          reinterpret_cast<const unsigned char*>(list.data()),
                                          static_cast<unsigned int>(list.size()));
  *out = chosen;  // in `offered`
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Make(const TlsMaterial& material, std::string alpn) {
  ERR_clear_error();
  openssl::Context context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) return absl::ResourceExhaustedError("tls: out of memory");
  const std::shared_ptr<TlsContext> made(new TlsContext(context.release(), std::move(alpn)));
  if (absl::Status status = made->Take(material); !status.ok()) return status;
  return made;
}

TlsContext::TlsContext(SSL_CTX* context, std::string alpn) : context_(context), alpn_(std::move(alpn)) {}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

absl::Status TlsContext::Take(const TlsMaterial& material) {
  const openssl::CertificateList certificates = openssl::CertificatesOf(material.certificate);
  if (certificates == nullptr) return Unusable("the certificate is no whole certificate in PEM");
  const openssl::CertificateList ca = openssl::CertificatesOf(material.ca);
  if (ca == nullptr) return Unusable("the CA is no whole certificate in PEM");
  const openssl::Key key = openssl::KeyOf(material.key);
  if (key == nullptr) return Unusable("the key is no private key in PEM that has no password");

  if (SSL_CTX_use_certificate(context_, sk_X509_value(certificates.get(), 0)) != 1) {
    return Unusable("TLS does not use the certificate");
  }
  for (int i = 1; i < sk_X509_num(certificates.get()); ++i) {
    if (SSL_CTX_add1_chain_cert(context_, sk_X509_value(certificates.get(), i)) != 1) {
      return Unusable("TLS does not use a certificate between the node's and the CA");
    }
  }
  if (SSL_CTX_use_PrivateKey(context_, key.get()) != 1) return Unusable("TLS does not use the key");
  X509_STORE* const store = SSL_CTX_get_cert_store(context_);
  for (int i = 0; i < sk_X509_num(ca.get()); ++i) {
    if (X509_STORE_add_cert(store, sk_X509_value(ca.get(), i)) != 1) return Unusable("TLS does not use the CA");
  }

  X509_VERIFY_PARAM* const checks = SSL_CTX_get0_param(context_);
  X509_VERIFY_PARAM_set_flags(checks, openssl::kVerifyFlags);
  X509_VERIFY_PARAM_set_depth(checks, openssl::kMaxChain);
  // OpenSSL checks the certificate's purpose as well: server at the dialler, client at the acceptor.
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);

  // Overrides OpenSSL's own configuration file, which may allow other versions.
  if (SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION) != 1) {
    return Unusable("TLS 1.3 cannot be set");
  }
  SSL_CTX_set_options(context_, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(context_, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_ENABLE_KTLS);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF | SSL_SESS_CACHE_NO_INTERNAL);
  if (SSL_CTX_set_num_tickets(context_, 0) != 1 || SSL_CTX_set_max_early_data(context_, 0) != 1 ||
      SSL_CTX_set_recv_max_early_data(context_, 0) != 1) {
    return Unusable("tickets cannot be turned off");
  }

  const std::string list = AlpnList(alpn_);
  if (SSL_CTX_set_alpn_protos(context_, reinterpret_cast<const unsigned char*>(list.data()),
                              static_cast<unsigned int>(list.size())) != 0) {  // 0 is success
    return Unusable("TLS does not use the protocol's name");
  }
  SSL_CTX_set_alpn_select_cb(context_, &ChooseAlpn, const_cast<std::string*>(&alpn_));
  SSL_CTX_set_client_hello_cb(context_, &RequireAlpn, nullptr);

  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_read_ahead(context_, 1);  // one recv() a record instead of two, or one for several short records
  ERR_clear_error();
  return absl::OkStatus();
}

struct TlsSession::Bio {
  static int Read(BIO* bio, char* to, int size) {
    auto* const self = static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (self->controls_ > kMaxControls) return -1;
    ssize_t got = 0;
    do {
      got = ::recv(self->fd_, to, static_cast<size_t>(size), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      BIO_set_retry_read(bio);
    } else if (got < 0) {
      self->socket_error_ = errno;
    } else if (got == 0) {
      self->at_end_ = true;
    } else if (!std::exchange(self->received_, true)) {
      // A handshake begins with a record of one of these types.
      self->speaks_tls_ = to[0] == SSL3_RT_HANDSHAKE || to[0] == SSL3_RT_ALERT;
    }
    return static_cast<int>(got);
  }

  static int Write(BIO* bio, const char* from, int size) {
    auto* const self = static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    ssize_t sent = 0;
    do {
      sent = ::send(self->fd_, from, static_cast<size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      BIO_set_retry_write(bio);
    } else if (sent < 0) {
      self->socket_error_ = errno;
    }
    return static_cast<int>(sent);
  }

  static long Control(BIO* bio, int what, long, void*) {  // NOLINT(google-runtime-int): OpenSSL's type
    if (what == BIO_CTRL_EOF) return static_cast<TlsSession*>(BIO_get_data(bio))->at_end_ ? 1 : 0;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
  }

  // Made once and kept until the process exits. Null: out of memory.
  static const BIO_METHOD* Method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
      if (made == nullptr) return made;
      BIO_meth_set_read(made, &Read);
      BIO_meth_set_write(made, &Write);
      BIO_meth_set_ctrl(made, &Control);
      return made;
    }();
    return method;
  }
};

absl::StatusOr<std::unique_ptr<TlsSession>> TlsSession::Begin(std::shared_ptr<const TlsContext> context, int fd,
                                                              Side side) {
  ERR_clear_error();
  SSL* const ssl = SSL_new(context->context_);
  if (ssl == nullptr) return absl::ResourceExhaustedError("tls: out of memory");
  std::unique_ptr<TlsSession> session(new TlsSession(std::move(context), fd, ssl));
  BIO* const bio = Bio::Method() == nullptr ? nullptr : BIO_new(Bio::Method());
  if (bio == nullptr) return absl::ResourceExhaustedError("tls: out of memory");
  BIO_set_data(bio, session.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);  // owns it
  SSL_set_app_data(ssl, session.get());
  SSL_set_info_callback(ssl, &OnState);
  if (side == Side::kDialler) {
    SSL_set_connect_state(ssl);
  } else {
    SSL_set_accept_state(ssl);
  }
  return session;
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int fd, SSL* ssl)
    : context_(std::move(context)), fd_(fd), ssl_(ssl) {}

TlsSession::~TlsSession() { SSL_free(ssl_); }

void TlsSession::OnState(const SSL* ssl, int where, int) {
  if ((where & SSL_CB_LOOP) == 0) return;
  auto* const self = static_cast<TlsSession*>(SSL_get_app_data(ssl));
  if (!self->established_) return;
  switch (SSL_get_state(ssl)) {
    case TLS_ST_CR_KEY_UPDATE:
    case TLS_ST_SR_KEY_UPDATE:
    case TLS_ST_CR_SESSION_TICKET:
      ++self->controls_;
      break;
    default:
      break;
  }
}

absl::StatusOr<TlsSession::Progress> TlsSession::Handshake() {
  if (!ended_.ok()) return ended_;
  if (established_) return Progress::kDone;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) {
    if (absl::Status status = CheckPeer(); !status.ok()) return End(std::move(status));
    established_ = true;
    return Progress::kDone;
  }
  const absl::StatusOr<Io> outcome = Outcome(SSL_get_error(ssl_, result));
  if (!outcome.ok()) return outcome.status();
  return outcome->want;
}

absl::Status TlsSession::CheckPeer() const {
  const unsigned char* alpn = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl_, &alpn, &size);
  if (absl::string_view(reinterpret_cast<const char*>(alpn), size) != context_->alpn_) {
    return OtherVersion("it names no application protocol");
  }
  // Second check: OpenSSL has already refused these cases.
  if (SSL_version(ssl_) != TLS1_3_VERSION || SSL_get0_peer_certificate(ssl_) == nullptr ||
      SSL_get_verify_result(ssl_) != X509_V_OK || SSL_session_reused(ssl_) != 0) {
    return absl::UnauthenticatedError("tls: the handshake did not authenticate the other end");
  }
  return absl::OkStatus();
}

absl::StatusOr<TlsSession::Io> TlsSession::Read(char* to, size_t size) {
  if (!ended_.ok()) return ended_;
  if (!established_) return absl::FailedPreconditionError("tls: Read() before the handshake is done");
  if (size == 0) return Io{};
  ERR_clear_error();
  Io io;
  const int result = SSL_read_ex(ssl_, to, size, &io.bytes);
  if (controls_ > kMaxControls) {
    return End(absl::UnavailableError(
        absl::StrCat("tls: the other end sends over ", kMaxControls, " key updates or tickets in a row, and no data")));
  }
  if (result == 1) {
    controls_ = 0;
    starved_ = false;
    return io;
  }
  const int error = SSL_get_error(ssl_, result);
  starved_ = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  return Outcome(error);
}

absl::StatusOr<TlsSession::Io> TlsSession::Write(const char* from, size_t size) {
  if (!ended_.ok()) return ended_;
  if (!established_) return absl::FailedPreconditionError("tls: Write() before the handshake is done");
  if (size == 0) return Io{};
  ERR_clear_error();
  Io io;
  const int result = SSL_write_ex(ssl_, from, size, &io.bytes);
  if (result == 1) {
    if (++records_ >= kRecordsPerKey) RenewKey();
    return io;
  }
  const int error = SSL_get_error(ssl_, result);
  if (error != SSL_ERROR_SYSCALL) return Outcome(error);
  absl::Status lost = Failure(error);
  // The other end may have sent an alert before it closed.
  ERR_clear_error();
  char byte = 0;
  size_t peeked = 0;
  const int peek = SSL_peek_ex(ssl_, &byte, 1, &peeked);
  if (peek == 1) return lost;  // Read() delivers what had come before, and ends the session behind it
  absl::Status said = Failure(SSL_get_error(ssl_, peek));
  if (absl::IsUnauthenticated(said)) lost = std::move(said);
  return End(std::move(lost));
}

bool TlsSession::pending() const { return established_ && ended_.ok() && !starved_ && SSL_has_pending(ssl_) == 1; }

void TlsSession::RenewKey() {
  ERR_clear_error();
  // SSL_key_update() fails while a record is half written. The next Write() that succeeds tries again.
  if (established_ && ended_.ok() && SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) records_ = 0;
  ERR_clear_error();
}

std::vector<std::string> TlsSession::PeerNames() const {
  std::vector<std::string> names;
  if (!established_) return names;
  ERR_clear_error();
  for (std::string& name : openssl::DnsNames(SSL_get0_peer_certificate(ssl_))) {
    if (names.size() == kMaxPeerNames) break;
    if (IsName(name, kMaxNodeName)) names.push_back(std::move(name));
  }
  ERR_clear_error();
  return names;
}

// `error`: SSL_get_error() after a call that did not succeed.
absl::StatusOr<TlsSession::Io> TlsSession::Outcome(int error) {
  if (error == SSL_ERROR_WANT_READ) return Io{0, Progress::kWantRead};
  if (error == SSL_ERROR_WANT_WRITE) return Io{0, Progress::kWantWrite};
  return End(Failure(error));
}

absl::Status TlsSession::Failure(int error) {
  if (error == SSL_ERROR_ZERO_RETURN) return absl::UnavailableError("tls: closed by the other end");
  if (other_end_is_plain()) {
    ERR_clear_error();
    return absl::FailedPreconditionError(kTlsModesDiffer);
  }
  // Takes the first error with a known cause; if there is none, the last error, which is the outermost.
  unsigned long reason = 0;  // NOLINT(google-runtime-int): OpenSSL's type
  Cause cause = Cause::kOther;
  while (cause == Cause::kOther) {
    const unsigned long next = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
    if (next == 0) break;
    reason = next;
    cause = CauseOf(next);
  }
  ERR_clear_error();
  switch (cause) {
    case Cause::kTheirCertificate: {
      const long result = SSL_get_verify_result(ssl_);  // NOLINT(google-runtime-int): OpenSSL's type
      return absl::UnauthenticatedError(
          absl::StrCat("tls: this node refuses the other end: ", ReasonText(reason), result == X509_V_OK ? "" : " (",
                       result == X509_V_OK ? "" : X509_verify_cert_error_string(result), result == X509_V_OK ? "" : ")",
                       "; look at tls.certificate there and tls.ca here"));
    }
    case Cause::kOwnCertificate:
      return absl::UnauthenticatedError(
          absl::StrCat("tls: the other end refuses this node's certificate: ", ReasonText(reason),
                       "; look at tls.certificate here and tls.ca there"));
    case Cause::kVersion:
      if (!established_) return OtherVersion(ReasonText(reason));
      break;
    case Cause::kOther:
      break;
  }
  const absl::string_view when = established_ ? "" : " in the handshake";
  if (at_end_) {
    return absl::UnavailableError(absl::StrCat("tls: connection lost", when, ": closed without close_notify"));
  }
  // With any other `error`, socket_error_ means only that this end's alert could not be sent.
  if (error == SSL_ERROR_SYSCALL && socket_error_ != 0) {
    return absl::UnavailableError(absl::StrCat("tls: connection lost", when, ": ", std::strerror(socket_error_)));
  }
  return absl::UnavailableError(
      absl::StrCat("tls: connection broken", when, ": ", reason == 0 ? "unknown reason" : ReasonText(reason)));
}

absl::Status TlsSession::End(absl::Status why) {
  ended_ = std::move(why);
  return ended_;
}

}  // namespace railsd
