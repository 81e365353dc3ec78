#include "daemon/tls/certificate.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/tls/openssl_objects.h"
#include "daemon/tls/session.h"

namespace railsd {
namespace {

absl::Status Wrong(absl::string_view key, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tls.", key, ": ", path, ": ", what));
}

std::string TimeText(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone()); }

absl::Time TimeFrom(const ASN1_TIME* time) {
  std::tm parts = {};
  // A time that cannot be read counts as long past, so the certificate is refused.
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::UnixEpoch();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

absl::StatusOr<std::string> ReadFile(absl::string_view key, const std::string& path, bool secret) {
  // Non-blocking: a pipe in the file's place must not block the daemon.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("tls.", key, ": ", path, ": cannot open"));
  const std::unique_ptr<FILE, openssl::Freer<&fclose>> file(fdopen(fd, "r"));
  struct stat about = {};
  if (file == nullptr || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return Wrong(key, path, "not a file");
  if (secret && (about.st_mode & 0007) != 0) {
    return Wrong(
        key, path,
        absl::StrFormat(
            "mode %04o lets every user of this machine use the key; chmod 0600, or 0640 with a group of its own",
            about.st_mode & 07777));
  }
  // Reads one byte more than expected, to detect a file that is too large or grows meanwhile.
  std::string text(std::min<size_t>(static_cast<size_t>(about.st_size), kMaxTlsFileBytes) + 1, '\0');
  text.resize(fread(text.data(), 1, text.size(), file.get()));
  if (ferror(file.get()) != 0) return Wrong(key, path, "cannot be read");
  if (text.size() > kMaxTlsFileBytes) return Wrong(key, path, "larger than 1MiB: no certificate or key");
  return text;
}

absl::Status CheckTimes(const X509* certificate, absl::string_view key, const std::string& path, absl::Time now) {
  const absl::Time from = TimeFrom(X509_get0_notBefore(certificate)), to = TimeFrom(X509_get0_notAfter(certificate));
  if (now < from) {
    return Wrong(key, path,
                 absl::StrCat("not valid before ", TimeText(from), "; it is ", TimeText(now),
                              ": wait, or set this machine's clock"));
  }
  if (now >= to) return Wrong(key, path, absl::StrCat("expired at ", TimeText(to), "; issue a new one"));
  return absl::OkStatus();
}

// Checks that the certificates lead to the CA for this use. Returns the earliest expiry in the chain.
absl::StatusOr<absl::Time> CheckChain(STACK_OF(X509) * certificates, STACK_OF(X509) * ca, const char* use,
                                      const TlsConfig& config, absl::Time now) {
  const openssl::Store store(X509_STORE_new());
  const openssl::StoreContext context(X509_STORE_CTX_new());
  if (store == nullptr || context == nullptr) return absl::ResourceExhaustedError("tls: out of memory");
  for (int i = 0; i < sk_X509_num(ca); ++i) X509_STORE_add_cert(store.get(), sk_X509_value(ca, i));
  X509_STORE_set_flags(store.get(), openssl::kVerifyFlags);
  if (X509_STORE_CTX_init(context.get(), store.get(), sk_X509_value(certificates, 0), certificates) != 1 ||
      X509_STORE_CTX_set_default(context.get(), use) != 1) {
    return absl::InternalError("tls: the certificate cannot be checked");
  }
  X509_VERIFY_PARAM_set_depth(X509_STORE_CTX_get0_param(context.get()), openssl::kMaxChain);
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()), absl::ToTimeT(now));
  if (X509_verify_cert(context.get()) != 1) {
    return Wrong("certificate", config.certificate,
                 absl::StrCat("does not prove this node to its peers (", use,
                              "): ", X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())),
                              "; it must be signed by tls.ca, ", config.ca));
  }
  absl::Time expires = absl::InfiniteFuture();
  STACK_OF(X509)* const chain = X509_STORE_CTX_get0_chain(context.get());
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    expires = std::min(expires, TimeFrom(X509_get0_notAfter(sk_X509_value(chain, i))));
  }
  return expires;
}

}  // namespace

std::string PrintableNames(const std::vector<std::string>& names) {
  if (names.empty()) return "no node (it has no DNS names)";
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 8); ++i)
    shown.push_back(absl::CEscape(names[i].substr(0, 253)));
  return absl::StrCat(absl::StrJoin(shown, ", "), names.size() > shown.size() ? ", ..." : "");
}

absl::StatusOr<TlsMaterial> ReadTlsMaterial(const TlsConfig& config) {
  absl::StatusOr<std::string> certificate = ReadFile("certificate", config.certificate, false);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key = ReadFile("key", config.key, true);
  if (!key.ok()) return key.status();
  absl::StatusOr<std::string> ca = ReadFile("ca", config.ca, false);
  if (!ca.ok()) return ca.status();
  return TlsMaterial{*std::move(certificate), *std::move(key), *std::move(ca)};
}

absl::StatusOr<absl::Time> CheckTlsMaterial(const TlsMaterial& material, const TlsConfig& config,
                                            const std::string& node, absl::Time now) {
  const openssl::CertificateList certificates = openssl::CertificatesOf(material.certificate);
  if (certificates == nullptr) return Wrong("certificate", config.certificate, "holds no whole certificate in PEM");
  const openssl::CertificateList ca = openssl::CertificatesOf(material.ca);
  if (ca == nullptr) return Wrong("ca", config.ca, "holds no whole certificate in PEM");
  const openssl::Key key = openssl::KeyOf(material.key);
  if (key == nullptr) return Wrong("key", config.key, "holds no private key in PEM that has no password");
  X509* const own = sk_X509_value(certificates.get(), 0);
  const bool fits = X509_check_private_key(own, key.get()) == 1;
  ERR_clear_error();
  if (!fits) return Wrong("key", config.key, absl::StrCat("is not the key of the certificate ", config.certificate));
  // OpenSSL's security level may forbid the keys' lengths and the digests.
  if (const auto context = TlsContext::Make(material, "railsd"); !context.ok()) {
    return Wrong("certificate", config.certificate, absl::StripPrefix(context.status().message(), "tls: "));
  }
  if (absl::Status status = CheckTimes(own, "certificate", config.certificate, now); !status.ok()) return status;
  absl::Time earliest = absl::InfiniteFuture();
  for (const char* use : {"ssl_server", "ssl_client"}) {
    const absl::StatusOr<absl::Time> expires = CheckChain(certificates.get(), ca.get(), use, config, now);
    ERR_clear_error();
    if (!expires.ok()) return expires.status();
    earliest = std::min(earliest, *expires);
  }
  const std::vector<std::string> names = openssl::DnsNames(own);
  if (std::find(names.begin(), names.end(), node) == names.end()) {
    return Wrong("certificate", config.certificate,
                 absl::StrCat("is of ", PrintableNames(names), ", not of this node, ", node,
                              ": the node's name must be among its DNS names (subject alternative name)"));
  }
  return earliest;
}

}  // namespace railsd
