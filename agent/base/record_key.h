// Keys for the TLS records of one data connection, from the secret of the pair of daemons (data_key.h).
#ifndef RAILSD_AGENT_BASE_RECORD_KEY_H_
#define RAILSD_AGENT_BASE_RECORD_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "agent/base/data_key.h"

namespace railsd {

// The input of AES-256-GCM for one direction. Secret; the destructor wipes it.
struct RecordKey {
  std::array<uint8_t, 32> key{};
  std::array<uint8_t, 4> salt{};  // the first bytes of every record's nonce
  std::array<uint8_t, 8> iv{};    // the rest, before the record's number comes in
  ~RecordKey();
};

struct RecordKeys {
  RecordKey to_acceptor, to_dialler;
};

// HKDF-SHA256 (RFC 5869): `key` is the input, the nonces of the dialling and of the accepting end are the salt, and the
// direction is the info. Each connection draws both nonces, so that no two connections share a key. Aborts when out of
// memory.
RecordKeys DeriveRecordKeys(const DataKey& key, absl::Span<const std::byte> dialler,
                            absl::Span<const std::byte> acceptor);

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_RECORD_KEY_H_
