// Owners of OpenSSL's objects, and parsers of PEM. Only for files that include OpenSSL anyway.
#ifndef RAILSD_DAEMON_TLS_OPENSSL_OBJECTS_H_
#define RAILSD_DAEMON_TLS_OPENSSL_OBJECTS_H_

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

namespace railsd::openssl {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
inline void FreeCertificates(STACK_OF(X509) * list) { sk_X509_pop_free(list, &X509_free); }

using Bio = std::unique_ptr<BIO, Freer<&BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<&EVP_PKEY_free>>;
using CertificateList = std::unique_ptr<STACK_OF(X509), Freer<&FreeCertificates>>;
using Store = std::unique_ptr<X509_STORE, Freer<&X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freer<&X509_STORE_CTX_free>>;
using Context = std::unique_ptr<SSL_CTX, Freer<&SSL_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freer<&GENERAL_NAMES_free>>;

// Flags of the check against the CA: any certificate in the CA file ends a chain, as in gRPC.
inline constexpr unsigned long kVerifyFlags =  // NOLINT(google-runtime-int): OpenSSL's type
    X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST;

// Most certificates between the node's and the CA's.
inline constexpr int kMaxChain = 10;

// All certificates of a PEM text, in order. Null if one is broken or the text has none.
CertificateList CertificatesOf(const std::string& text);

// Null if the text holds no private key, or a key with a password.
Key KeyOf(const std::string& text);

// The DNS names of a certificate, unchecked: any length, any bytes.
std::vector<std::string> DnsNames(const X509* certificate);

}  // namespace railsd::openssl

#endif  // RAILSD_DAEMON_TLS_OPENSSL_OBJECTS_H_
