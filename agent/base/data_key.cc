#include "agent/base/data_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <cstdlib>
#include <memory>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

constexpr absl::string_view kKeyLabel = "railsd data connection key";

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* handle) const {
    Free(handle);
  }
};
using EvpKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using EvpKeyContext = std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX_free>>;
using EvpMac = std::unique_ptr<EVP_MAC, Freed<EVP_MAC_free>>;
using EvpMacContext = std::unique_ptr<EVP_MAC_CTX, Freed<EVP_MAC_CTX_free>>;

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// What one half says of itself, of fixed size.
std::string Describe(const ShareHolder& holder) {
  std::string out = holder.node;
  out.resize(256, '\0');
  const uint64_t boot = holder.boot.value();
  out.append(reinterpret_cast<const char*>(&boot), sizeof(boot));
  out.append(reinterpret_cast<const char*>(holder.share.data()), holder.share.size());
  return out;
}

}  // namespace

absl::StatusOr<KeyShare> KeyShare::Draw() {
  const EvpKeyContext context(EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, nullptr));
  EVP_PKEY* made = nullptr;
  if (context == nullptr || EVP_PKEY_keygen_init(context.get()) <= 0 || EVP_PKEY_keygen(context.get(), &made) <= 0) {
    return absl::InternalError("no key for data connections could be drawn (X25519)");
  }
  const EvpKey key(made);
  KeyShare out;
  size_t secret = out.private_.size();
  size_t open = out.public_.size();
  if (EVP_PKEY_get_raw_private_key(key.get(), out.private_.data(), &secret) <= 0 ||
      EVP_PKEY_get_raw_public_key(key.get(), out.public_.data(), &open) <= 0) {
    return absl::InternalError("no key for data connections could be drawn (X25519)");
  }
  return out;
}

KeyShare::~KeyShare() { OPENSSL_cleanse(private_.data(), private_.size()); }

absl::StatusOr<DataKey> KeyShare::Agree(const ShareHolder& own, const ShareHolder& peer) const {
  const EvpKey mine(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, private_.data(), private_.size()));
  const EvpKey theirs(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, peer.share.data(), peer.share.size()));
  const EvpKeyContext context(mine == nullptr ? nullptr : EVP_PKEY_CTX_new(mine.get(), nullptr));
  DataKey shared{};
  size_t length = shared.size();
  // Fails for shares of low order, with which the result would not depend on the own half.
  if (theirs == nullptr || context == nullptr || EVP_PKEY_derive_init(context.get()) <= 0 ||
      EVP_PKEY_derive_set_peer(context.get(), theirs.get()) <= 0 ||
      EVP_PKEY_derive(context.get(), shared.data(), &length) <= 0 || length != shared.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", peer.node, ": what its HELLO gives as data_key_share is no key share (X25519)"));
  }
  const bool first = std::tie(own.node, own.boot) < std::tie(peer.node, peer.boot);
  const std::string a = Describe(first ? own : peer);
  const std::string b = Describe(first ? peer : own);
  const Mac mac = Authenticate(shared, kKeyLabel, {Bytes(a), Bytes(b)});
  OPENSSL_cleanse(shared.data(), shared.size());
  DataKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = std::to_integer<uint8_t>(mac[i]);
  return key;
}

std::array<std::byte, 32> DrawNonce() {
  std::array<std::byte, 32> nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1) std::abort();
  return nonce;
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

}  // namespace railsd
