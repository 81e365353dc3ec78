#include "daemon/tls/openssl_objects.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <cstddef>

namespace railsd::openssl {
namespace {

// Most certificates that this process parses from one file.
constexpr int kMaxCertificates = 100;

Bio Reader(const std::string& text) {
  ERR_clear_error();
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

int NoPassword(char*, int, int, void*) { return -1; }  // never ask the terminal

}  // namespace

CertificateList CertificatesOf(const std::string& text) {
  const Bio in = Reader(text);
  CertificateList list(sk_X509_new_null());
  while (in != nullptr && list != nullptr && sk_X509_num(list.get()) < kMaxCertificates) {
    X509* const certificate = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr);
    if (certificate == nullptr) break;
    sk_X509_push(list.get(), certificate);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!at_end || list == nullptr || sk_X509_num(list.get()) == 0) return nullptr;
  return list;
}

Key KeyOf(const std::string& text) {
  const Bio in = Reader(text);
  Key key(in == nullptr ? nullptr : PEM_read_bio_PrivateKey(in.get(), nullptr, &NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

std::vector<std::string> DnsNames(const X509* certificate) {
  std::vector<std::string> out;
  const Names names(static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    // Uses the stored length: a name with a zero byte must not pass for the part before that byte.
    out.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                     static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
  }
  return out;
}

}  // namespace railsd::openssl
