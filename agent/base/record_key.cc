#include "agent/base/record_key.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace railsd {
namespace {

constexpr absl::string_view kToAcceptor = "railsd data records to acceptor";
constexpr absl::string_view kToDialler = "railsd data records to dialler";

struct FreeKdf {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

void Derive(const DataKey& key, std::string salt, std::string info, RecordKey* out) {
  const std::unique_ptr<EVP_KDF, FreeKdf> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, FreeKdf> context(kdf == nullptr ? nullptr : EVP_KDF_CTX_new(kdf.get()));
  char digest[] = "SHA256";
  DataKey input = key;
  const OSSL_PARAM settings[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                                 OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, input.data(), input.size()),
                                 OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
                                 OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
                                 OSSL_PARAM_construct_end()};
  std::array<uint8_t, sizeof(out->key) + sizeof(out->salt) + sizeof(out->iv)> bytes;
  if (context == nullptr || EVP_KDF_derive(context.get(), bytes.data(), bytes.size(), settings) != 1) std::abort();
  const uint8_t* next = bytes.data();
  std::copy_n(next, out->key.size(), out->key.begin());
  std::copy_n(next += out->key.size(), out->salt.size(), out->salt.begin());
  std::copy_n(next += out->salt.size(), out->iv.size(), out->iv.begin());
  OPENSSL_cleanse(bytes.data(), bytes.size());
  OPENSSL_cleanse(input.data(), input.size());
}

}  // namespace

RecordKey::~RecordKey() {
  OPENSSL_cleanse(key.data(), key.size());
  OPENSSL_cleanse(salt.data(), salt.size());
  OPENSSL_cleanse(iv.data(), iv.size());
}

RecordKeys DeriveRecordKeys(const DataKey& key, absl::Span<const std::byte> dialler,
                            absl::Span<const std::byte> acceptor) {
  std::string salt(reinterpret_cast<const char*>(dialler.data()), dialler.size());
  salt.append(reinterpret_cast<const char*>(acceptor.data()), acceptor.size());
  RecordKeys keys;
  Derive(key, salt, std::string(kToAcceptor), &keys.to_acceptor);
  Derive(key, salt, std::string(kToDialler), &keys.to_dialler);
  return keys;
}

}  // namespace railsd
