// Any bytes as certificate, key and CA files: refused with a message that names the file, or accepted with an expiry in
// the future. The first byte says whether the parts are PEM or DER, which is put into PEM here so that changed bytes
// reach what is inside; then come the lengths of the first two (2 bytes each).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/tls/certificate.h"

namespace {

using absl::string_view;

string_view TakePart(string_view* rest, size_t length) {
  const string_view part = rest->substr(0, length);
  rest->remove_prefix(part.size());
  return part;
}

std::string Pem(string_view kind, string_view der) {
  std::string out = absl::StrCat("-----BEGIN ", kind, "-----\n");
  const std::string text = absl::Base64Escape(der);
  for (size_t at = 0; at < text.size(); at += 64) absl::StrAppend(&out, text.substr(at, 64), "\n");
  return absl::StrCat(out, "-----END ", kind, "-----\n");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 5) return 0;
  string_view rest(reinterpret_cast<const char*>(data) + 5, size - 5);
  const string_view certificate = TakePart(&rest, size_t{data[1]} | size_t{data[2]} << 8);
  const string_view key = TakePart(&rest, size_t{data[3]} | size_t{data[4]} << 8);
  railsd::TlsMaterial material;
  if (data[0] == 'D') {
    material = {Pem("CERTIFICATE", certificate), Pem("PRIVATE KEY", key), Pem("CERTIFICATE", rest)};
  } else {
    material = {std::string(certificate), std::string(key), std::string(rest)};
  }
  railsd::TlsConfig config;
  config.certificate = "/n1.pem";
  config.key = "/n1.key";
  config.ca = "/ca.pem";
  const absl::Time now = absl::FromUnixSeconds(1795500000);  // that of the stored inputs is valid then
  const absl::StatusOr<absl::Time> expires = railsd::CheckTlsMaterial(material, config, "n1", now);
  if (expires.ok()) {
    if (*expires <= now) abort();
  } else if (!absl::StrContains(expires.status().message(), "tls")) {
    abort();
  }
  return 0;
}
