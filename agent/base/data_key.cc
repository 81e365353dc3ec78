#include "agent/base/data_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <cstdlib>
#include <memory>

namespace railsd {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* handle) const {
    Free(handle);
  }
};
using EvpMac = std::unique_ptr<EVP_MAC, Freed<EVP_MAC_free>>;
using EvpMacContext = std::unique_ptr<EVP_MAC_CTX, Freed<EVP_MAC_CTX_free>>;

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

std::array<std::byte, 32> DrawNonce() {
  std::array<std::byte, 32> nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1) std::abort();
  return nonce;
}

DataKey DrawDataKey() {
  DataKey key;
  if (RAND_bytes(key.data(), static_cast<int>(key.size())) != 1) std::abort();
  return key;
}

Mac Authenticate(const DataKey& key, absl::string_view label,
                 std::initializer_list<absl::Span<const std::byte>> parts) {
  const EvpMac hmac(EVP_MAC_fetch(nullptr, "HMAC", nullptr));
  const EvpMacContext context(hmac == nullptr ? nullptr : EVP_MAC_CTX_new(hmac.get()));
  char digest[] = "SHA256";
  const OSSL_PARAM settings[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
  bool good = context != nullptr && EVP_MAC_init(context.get(), key.data(), key.size(), settings) == 1;
  const auto add = [&](absl::Span<const std::byte> part) {
    good = good && EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(part.data()), part.size()) == 1;
  };
  const std::byte end{0};
  add(Bytes(label));
  add({&end, 1});
  for (const absl::Span<const std::byte> part : parts) add(part);
  Mac mac{};
  size_t length = 0;
  good = good && EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(mac.data()), &length, mac.size()) == 1;
  if (!good || length != mac.size()) std::abort();
  return mac;
}

bool SameMac(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

bool SameKey(const DataKey& a, const DataKey& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace railsd
