// The files of `railsctl pki`: DIR/ca.pem, DIR/ca.key, and NAME.pem, NAME.key of each node.
#ifndef RAILS_RAILSCTL_PKI_FILES_H_
#define RAILS_RAILSCTL_PKI_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/railsctl/pki/certificate.h"

namespace rails::ctl::pki {

inline constexpr char kAuthorityName[] = "ca";  // of the files; no node may be called so

// What may be said of the making of files.
struct Choices {
  Validity validity;
  bool force = false;  // replaces files that exist
};

// Makes the folder (0700) when it is missing, and a certificate authority in it. The certificate has mode 0644, the key
// 0600. Error: ALREADY_EXISTS, a file is there and `force` is not; what the system says.
absl::Status InitFolder(const std::string& folder, const Choices& choices);

// Issues a certificate for each node by the authority in the folder; all or none when one of the files exists. Each
// file is replaced whole. Error: INVALID_ARGUMENT, a name; NOT_FOUND, no authority; ALREADY_EXISTS.
absl::Status IssueInto(const std::string& folder, const std::vector<std::string>& nodes, const Choices& choices);

std::string CertificatePath(const std::string& folder, const std::string& name);
std::string KeyPath(const std::string& folder, const std::string& name);

// Bounded: no PEM file is larger than 1 MiB.
absl::StatusOr<std::string> ReadPem(const std::string& path);

}  // namespace rails::ctl::pki

#endif  // RAILS_RAILSCTL_PKI_FILES_H_
