// Reads and checks the files of mutual TLS before anything uses them. Pure except for the reading.
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

// The contents of the files, as PEM. The key is a secret: never print or log it.
struct TlsMaterial {
  std::string certificate;  // the node's certificate, then the intermediate ones
  std::string key;
  std::string ca;  // one or more trusted certificates
  friend bool operator==(const TlsMaterial&, const TlsMaterial&) = default;
};

// Reads the three files. INVALID_ARGUMENT, NOT_FOUND or PERMISSION_DENIED: the configuration's key, the file and the
// reason. A key file that others than its owner and group may use is an error.
absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsConfig& config);

// Checks that a handshake with `material` works now and proves that this is `node`: the certificate parses, belongs to
// the key, is signed by the CA for servers and clients, is valid at `now`, and has `node` among its DNS names. `config`
// gives the file names for errors. Returns the earliest expiry in the chain. INVALID_ARGUMENT as above.
absl::StatusOr<absl::Time> CheckTlsMaterial(const TlsMaterial& material, const TlsConfig& config,
                                            const std::string& node, absl::Time now);

// The names of a certificate, for a message: the first ones, none longer than a name of DNS.
std::string PrintableNames(const std::vector<std::string>& names);

}  // namespace railsd

#endif  // RAILSD_DAEMON_TLS_CERTIFICATE_H_
