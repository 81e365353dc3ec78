// The files of `railsctl pki`: DIR/ca.pem, DIR/ca.key, and NAME.pem, NAME.key of each node.
#ifndef RAILS_RAILSCTL_PKI_FILES_H_
#define RAILS_RAILSCTL_PKI_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/railsctl/pki/certificate.h"

namespace rails::ctl::pki {

inline constexpr char kAuthorityName[] = "ca";  // base name of the files; no node may have this name

// Options for making files.
struct Choices {
  Validity validity;
  bool force = false;  // replaces files that exist
};

// Makes the folder (0700) if it is missing, and a certificate authority in it. The certificate has mode 0644, the key
// 0600. ALREADY_EXISTS: a file exists and `force` is false. Other errors come from the system.
absl::Status InitFolder(const std::string& folder, const Choices& choices);

// Issues a certificate for each node, signed by the authority in the folder. Issues none if one of the files exists.
// Replaces each file whole. INVALID_ARGUMENT: a name. NOT_FOUND: no authority. ALREADY_EXISTS: a file exists.
absl::Status IssueInto(const std::string& folder, const std::vector<std::string>& nodes, const Choices& choices);

std::string CertificatePath(const std::string& folder, const std::string& name);
std::string KeyPath(const std::string& folder, const std::string& name);

// Reads a file of at most 1 MiB.
absl::StatusOr<std::string> ReadPem(const std::string& path);

}  // namespace rails::ctl::pki

#endif  // RAILS_RAILSCTL_PKI_FILES_H_
