// Makes a certificate authority for tests and small clusters, and certificates of nodes: EC keys (P-256), signed with
// SHA-256. Makes and reads only texts; the command handles files.
#ifndef RAILS_RAILSCTL_PKI_CERTIFICATE_H_
#define RAILS_RAILSCTL_PKI_CERTIFICATE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rails::ctl::pki {

struct Validity {
  absl::Time from, to;  // cut to whole seconds
};

// Certificate and key as PEM. The key is a secret.
struct Pair {
  std::string certificate, key;
};

// Makes a certificate that signs others, with its key. INTERNAL: OpenSSL's error.
absl::StatusOr<Pair> MakeAuthority(const std::string& name, const Validity& validity);

// Makes a certificate for both ends of TLS with the DNS name `node`, signed by `authority`. It expires no later than
// the certificate of `authority`. INVALID_ARGUMENT: the node's name, or the contents of `authority`, is not valid.
absl::StatusOr<Pair> IssueCertificate(const Pair& authority, const std::string& node, const Validity& validity);

// Checks a node name as the daemon's configuration does: 1 to 253 letters, digits, '.', '_' and '-'.
absl::Status CheckNodeName(absl::string_view node);

// The time when a certificate expires. INVALID_ARGUMENT: the text is no certificate.
absl::StatusOr<absl::Time> ExpiryOf(const std::string& certificate);

}  // namespace rails::ctl::pki

#endif  // RAILS_RAILSCTL_PKI_CERTIFICATE_H_
