// The secret that two daemons share for their data connections, and proofs made with it. One of the two draws it and
// tells the other over their link (daemon/peer/hub_greeting.cc), so it is as secret as the link.
#ifndef RAILSD_AGENT_BASE_DATA_KEY_H_
#define RAILSD_AGENT_BASE_DATA_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace railsd {

using DataKey = std::array<uint8_t, 32>;  // secret, never logged
using Mac = std::array<std::byte, 32>;

// 32 random bytes that cannot be guessed. Both functions abort when the system cannot give any.
std::array<std::byte, 32> DrawNonce();
DataKey DrawDataKey();

// HMAC-SHA256 (RFC 2104) of a label, which says what is proven, and of the parts one after the other; the parts are of
// fixed size. Aborts when out of memory.
Mac Authenticate(const DataKey& key, absl::string_view label, std::initializer_list<absl::Span<const std::byte>> parts);
// Both compare in a time that does not depend on where the two differ.
bool SameMac(const Mac& a, const Mac& b);
bool SameKey(const DataKey& a, const DataKey& b);

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_DATA_KEY_H_
