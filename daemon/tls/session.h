// Mutual TLS 1.3 over one socket, for the links between daemons.
#ifndef RAILSD_DAEMON_TLS_SESSION_H_
#define RAILSD_DAEMON_TLS_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/tls/certificate.h"

// OpenSSL's own names, so that its headers stay out of this one.
struct ssl_ctx_st;
struct ssl_st;

namespace railsd {

// Settings for handshakes with one set of files. Any thread may share one. Make a new one when the files change:
// sessions keep the context they began with.
class TlsContext {
 public:
  // TLS 1.3 only. Both ends must show a certificate that the CA signed for their role. Both must name `alpn` (1 to 255
  // bytes), for example "railsd-link/1", or the handshake fails. No tickets, no resumption, no early data.
  // INVALID_ARGUMENT: OpenSSL cannot use a part of `material`, or `alpn`.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Make(const TlsMaterial& material, std::string alpn);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  TlsContext(ssl_ctx_st* context, std::string alpn);
  absl::Status Take(const TlsMaterial& material);

  ssl_ctx_st* const context_;  // owned
  const std::string alpn_;
};

// One TLS connection over a non-blocking socket. The caller owns the socket, which outlives the session. Not
// thread-safe. Never raises SIGPIPE. After an error every call returns that error.
class TlsSession {
 public:
  enum class Side { kDialler, kAcceptor };
  static absl::StatusOr<std::unique_ptr<TlsSession>> Begin(std::shared_ptr<const TlsContext> context, int fd,
                                                           Side side);
  ~TlsSession();  // sends nothing
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  enum class Progress { kDone, kWantRead, kWantWrite };
  // Continues the handshake. The caller limits its time. After kDone at the dialler the acceptor may still refuse the
  // dialler's certificate: the first Read() or Write() then returns the error.
  // UNAUTHENTICATED: one end refuses the other's certificate. FAILED_PRECONDITION: the other end speaks no TLS, or
  // another version. UNAVAILABLE: the connection is lost, or the other end breaks the protocol.
  absl::StatusOr<Progress> Handshake();

  struct Io {
    size_t bytes = 0;
    Progress want = Progress::kDone;  // event to wait for when `bytes` is 0
  };
  // Read() and Write() work after the handshake, and move at most one record (16 KiB) a call. Call again until `want`
  // is not kDone.
  // UNAVAILABLE: the connection has ended ("closed": orderly), or the other end breaks the protocol. UNAUTHENTICATED:
  // the other end refuses this end's certificate. After an error of Write() alone, Read() first returns what came
  // before the connection was lost.
  absl::StatusOr<Io> Read(char* to, size_t size);
  // Offer bytes that were not taken again: the same bytes, at least as many, from any address.
  absl::StatusOr<Io> Write(const char* from, size_t size);

  // True if Read() may return bytes although the socket is not readable, also after Handshake(). False after a Read()
  // that waits for the socket.
  bool pending() const;

  // Encrypts with a new key from the next Write() on. Write() calls this itself every kRecordsPerKey records.
  void RenewKey();

  // The other end has begun with something that is no TLS.
  bool other_end_is_plain() const { return received_ && !speaks_tls_; }

  // DNS names of the certificate whose key the other end has proven to hold. Empty until the handshake is done. Only
  // valid node names (no wildcards), at most kMaxPeerNames.
  std::vector<std::string> PeerNames() const;

  static constexpr size_t kMaxPeerNames = 64;

 private:
  struct Bio;  // OpenSSL's view of the socket
  TlsSession(std::shared_ptr<const TlsContext> context, int fd, ssl_st* ssl);
  static void OnState(const ssl_st* ssl, int where, int value);
  absl::Status CheckPeer() const;
  absl::StatusOr<Io> Outcome(int error);
  absl::Status Failure(int error);
  absl::Status End(absl::Status why);

  const std::shared_ptr<const TlsContext> context_;
  const int fd_;
  ssl_st* const ssl_;  // owned
  bool established_ = false;
  bool starved_ = false;     // the last Read() waits for the socket
  bool received_ = false;    // at least one byte
  bool speaks_tls_ = false;  // the first received byte begins a TLS record
  bool at_end_ = false;      // the other end has closed the socket
  int socket_error_ = 0;     // errno of the last socket call that failed
  int controls_ = 0;         // key updates and tickets received since the last data
  uint64_t records_ = 0;     // written with the present key
  absl::Status ended_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_TLS_SESSION_H_
