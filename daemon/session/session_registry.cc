#include "daemon/session/session_registry.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/escaping.h"

namespace railsd {
namespace {

constexpr size_t kTokenBytes = 32;

std::array<uint8_t, 32> DigestOf(absl::string_view token) {
  std::array<uint8_t, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

}  // namespace

std::string SessionRegistry::Add(SessionIdentity identity) {
  unsigned char random[kTokenBytes];
  // Without random numbers the daemon cannot protect sessions from each other, and there is no fallback.
  if (RAND_bytes(random, sizeof(random)) != 1) abort();
  std::string token = absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(random), sizeof(random)));
  OPENSSL_cleanse(random, sizeof(random));
  absl::MutexLock lock(&mutex_);
  sessions_.emplace(DigestOf(token), std::move(identity));
  return token;
}

void SessionRegistry::Remove(SessionId session) {
  absl::MutexLock lock(&mutex_);
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (it->second.id != session) continue;
    sessions_.erase(it);
    return;
  }
}

std::optional<SessionIdentity> SessionRegistry::Find(absl::string_view token) const {
  const Digest digest = DigestOf(token);
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(digest);
  if (it == sessions_.end() || CRYPTO_memcmp(it->first.data(), digest.data(), digest.size()) != 0) return std::nullopt;
  return it->second;
}

size_t SessionRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return sessions_.size();
}

}  // namespace railsd
