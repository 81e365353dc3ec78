// The secret that two daemons share for their data connections, and what is proven with it.
//
// Each daemon draws one key share for its life and tells the public half in its HELLO on the control streams. Two
// halves give a key that nobody else has (X25519, RFC 7748), so no secret travels, and a third member of the cluster
// does not know it either. It is worth what the control streams are worth: with mutual TLS the public halves are
// authentic.
#ifndef RAILSD_AGENT_BASE_DATA_KEY_H_
#define RAILSD_AGENT_BASE_DATA_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/base/ids.h"

namespace railsd {

using PublicShare = std::array<uint8_t, 32>;
using DataKey = std::array<uint8_t, 32>;  // secret, never logged
using Mac = std::array<std::byte, 32>;

// Whose half a public share is.
struct ShareHolder {
  std::string node;
  BootId boot;
  PublicShare share{};
};

// Immutable once drawn; any thread.
class KeyShare {
 public:
  // INTERNAL when the system gives no random numbers.
  static absl::StatusOr<KeyShare> Draw();
  ~KeyShare();
  KeyShare(const KeyShare&) = default;
  KeyShare& operator=(const KeyShare&) = default;

  const PublicShare& share() const { return public_; }
  // The key that `own`, whose share this is, has with `peer`: the same at both ends, another for every pair of lives.
  // INVALID_ARGUMENT names the peer when its share is none.
  absl::StatusOr<DataKey> Agree(const ShareHolder& own, const ShareHolder& peer) const;

 private:
  KeyShare() = default;
  std::array<uint8_t, 32> private_{};
  PublicShare public_{};
};

// 32 bytes that nobody can guess. Aborts when the system has none.
std::array<std::byte, 32> DrawNonce();

// HMAC-SHA256 (RFC 2104) of a label, which says what is proven, and of the parts one after the other; the parts are of
// fixed size. Aborts when out of memory.
Mac Authenticate(const DataKey& key, absl::string_view label, std::initializer_list<absl::Span<const std::byte>> parts);
// In a time that does not depend on where they differ.
bool SameMac(const Mac& a, const Mac& b);

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_DATA_KEY_H_
