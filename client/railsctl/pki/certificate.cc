#include "client/railsctl/pki/certificate.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace rails::ctl::pki {
namespace {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<&BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<&EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<&X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<&X509_EXTENSION_free>>;

constexpr size_t kMaxNodeName = 253;
constexpr size_t kMaxCommonName = 64;  // X.509's limit
constexpr int kSerialBytes = 16;

absl::Status OpenSslError(absl::string_view what) {
  char text[256] = {};
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

int NoPassword(char*, int, int, void*) { return -1; }  // never ask the terminal

template <typename Write>
std::string PemOf(const Write& write) {
  const Bio out(BIO_new(BIO_s_mem()));
  if (out == nullptr || write(out.get()) != 1) return "";
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out.get(), &bytes);  // NOLINT(google-runtime-int): OpenSSL's type
  return std::string(bytes, static_cast<size_t>(size));
}

Certificate CertificateFrom(const std::string& text) {
  const Bio in(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  Certificate out(in == nullptr ? nullptr : PEM_read_bio_X509(in.get(), nullptr, &NoPassword, nullptr));
  ERR_clear_error();
  return out;
}

Key KeyFrom(const std::string& text) {
  const Bio in(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  Key out(in == nullptr ? nullptr : PEM_read_bio_PrivateKey(in.get(), nullptr, &NoPassword, nullptr));
  ERR_clear_error();
  return out;
}

absl::Time TimeFrom(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::UnixEpoch();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

bool SetSerial(X509* certificate) {
  unsigned char bytes[kSerialBytes];
  if (RAND_bytes(bytes, kSerialBytes) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x3f) | 0x40);  // positive, and full length
  BIGNUM* const number = BN_bin2bn(bytes, kSerialBytes, nullptr);
  const bool done = number != nullptr && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return done;
}

bool SetName(X509* certificate, const std::string& name) {
  const std::string common = name.substr(0, kMaxCommonName);
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(common.data()),
                                    static_cast<int>(common.size()), -1, 0) == 1;
}

bool SetValidity(X509* certificate, const Validity& validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(validity.from)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(validity.to)) != nullptr;
}

// Adds an extension. `value`: as in OpenSSL's configuration files.
bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// A new certificate with a new key, still without extensions and signature.
absl::StatusOr<std::pair<Certificate, Key>> Begin(const std::string& name, const Validity& validity) {
  Key key(EVP_EC_gen("P-256"));
  Certificate certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return OpenSslError("cannot make a key");
  if (X509_set_version(certificate.get(), X509_VERSION_3) != 1 || !SetSerial(certificate.get()) ||
      !SetName(certificate.get(), name) || !SetValidity(certificate.get(), validity) ||
      X509_set_pubkey(certificate.get(), key.get()) != 1) {
    return OpenSslError("cannot make a certificate");
  }
  return std::pair(std::move(certificate), std::move(key));
}

absl::StatusOr<Pair> End(X509* certificate, EVP_PKEY* key, EVP_PKEY* signer) {
  if (X509_sign(certificate, signer, EVP_sha256()) == 0) return OpenSslError("cannot sign a certificate");
  Pair pair;
  pair.certificate = PemOf([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
  pair.key = PemOf([&](BIO* out) {
    return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);  // without a password
  });
  if (pair.certificate.empty() || pair.key.empty()) return OpenSslError("cannot write a certificate");
  return pair;
}

}  // namespace

absl::Status CheckNodeName(absl::string_view node) {
  const auto fits = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  if (!node.empty() && node.size() <= kMaxNodeName && std::all_of(node.begin(), node.end(), fits)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", node.substr(0, kMaxNodeName), "': not a node's name: 1 to 253 of letters, digits, '.', '_' and '-'"));
}

absl::StatusOr<Pair> MakeAuthority(const std::string& name, const Validity& validity) {
  absl::StatusOr<std::pair<Certificate, Key>> made = Begin(name, validity);
  if (!made.ok()) return made.status();
  X509* const certificate = made->first.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  if (!AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(certificate, certificate, NID_subject_key_identifier, "hash")) {
    return OpenSslError("cannot make a certificate authority");
  }
  return End(certificate, made->second.get(), made->second.get());
}

absl::StatusOr<Pair> IssueCertificate(const Pair& authority, const std::string& node, const Validity& validity) {
  if (absl::Status status = CheckNodeName(node); !status.ok()) return status;
  const Certificate issuer = CertificateFrom(authority.certificate);
  const Key signer = KeyFrom(authority.key);
  const bool fits = issuer != nullptr && signer != nullptr && X509_check_private_key(issuer.get(), signer.get()) == 1;
  ERR_clear_error();
  if (!fits) return absl::InvalidArgumentError("no certificate in PEM with the key that belongs to it");
  Validity bounded = validity;
  bounded.to = std::min(bounded.to, TimeFrom(X509_get0_notAfter(issuer.get())));
  absl::StatusOr<std::pair<Certificate, Key>> made = Begin(node, bounded);
  if (!made.ok()) return made.status();
  X509* const certificate = made->first.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer.get()));
  if (!AddExtension(certificate, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(certificate, issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(certificate, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(certificate, issuer.get(), NID_subject_alt_name, absl::StrCat("DNS:", node)) ||
      !AddExtension(certificate, issuer.get(), NID_subject_key_identifier, "hash") ||
      !AddExtension(certificate, issuer.get(), NID_authority_key_identifier, "keyid")) {
    return OpenSslError(absl::StrCat("cannot make a certificate for node ", node));
  }
  return End(certificate, made->second.get(), signer.get());
}

absl::StatusOr<absl::Time> ExpiryOf(const std::string& certificate) {
  const Certificate parsed = CertificateFrom(certificate);
  if (parsed == nullptr) return absl::InvalidArgumentError("no certificate in PEM");
  return TimeFrom(X509_get0_notAfter(parsed.get()));
}

}  // namespace rails::ctl::pki
