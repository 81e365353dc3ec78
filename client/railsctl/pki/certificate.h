// Makes a certificate authority for tests and small clusters, and the certificates of nodes: EC keys (P-256), signed
// with SHA-256. Only makes and reads texts; files are the command's.
#ifndef RAILS_RAILSCTL_PKI_CERTIFICATE_H_
#define RAILS_RAILSCTL_PKI_CERTIFICATE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rails::ctl::pki {

struct Validity {
  absl::Time from, to;  // whole seconds; what is between is cut
};

// As PEM. The key is a secret.
struct Pair {
  std::string certificate, key;
};

// A certificate that signs others, with its key. Error: INTERNAL, of OpenSSL.
absl::StatusOr<Pair> MakeAuthority(const std::string& name, const Validity& validity);

// A certificate for both ends of TLS whose DNS name is `node`, signed by `authority`; it ends with that at the latest.
// Error: INVALID_ARGUMENT, the node's name or what `authority` holds.
absl::StatusOr<Pair> IssueCertificate(const Pair& authority, const std::string& node, const Validity& validity);

// May a node be called so? As in the daemon's configuration: 1 to 253 of letters, digits, '.', '_' and '-'.
absl::Status CheckNodeName(absl::string_view node);

// When a certificate ends. Error: INVALID_ARGUMENT, it is none.
absl::StatusOr<absl::Time> ExpiryOf(const std::string& certificate);

}  // namespace rails::ctl::pki

#endif  // RAILS_RAILSCTL_PKI_CERTIFICATE_H_
