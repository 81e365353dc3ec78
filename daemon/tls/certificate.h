// The files of mutual TLS, read and checked before anything uses them. Pure but for the reading; knows no gRPC.
#ifndef RAILSD_DAEMON_TLS_CERTIFICATE_H_
#define RAILSD_DAEMON_TLS_CERTIFICATE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/config/config.h"

namespace railsd {

// Largest certificate, key or CA file that is read.
inline constexpr size_t kMaxTlsFileBytes = 1 << 20;

// What the files hold, as PEM. The key is a secret: never print or log it.
struct TlsMaterial {
  std::string certificate;  // the node's, then those between it and the CA
  std::string key;
  std::string ca;  // one or more certificates that are trusted
  friend bool operator==(const TlsMaterial&, const TlsMaterial&) = default;
};

// What a check found out about them.
struct TlsFacts {
  std::vector<std::string> names;  // DNS names of the node's certificate
  absl::Time expires;              // the first of the certificate and of those that signed it
};

// Reads the three files. Error: INVALID_ARGUMENT, NOT_FOUND or PERMISSION_DENIED with the configuration's key, the file
// and what is wrong with it, also for a key that others than its owner and group may read.
absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsConfig& config);

// Would a handshake with them work now, and prove that this is `node`? The certificate parses, belongs to the key, is
// signed by the CA for servers and clients, is valid at `now`, and has `node` among its DNS names. `config` is for the
// error's file names: INVALID_ARGUMENT, as above.
absl::StatusOr<TlsFacts> CheckTlsMaterial(const TlsMaterial& material, const TlsConfig& config, const std::string& node,
                                          absl::Time now);

}  // namespace railsd

#endif  // RAILSD_DAEMON_TLS_CERTIFICATE_H_
