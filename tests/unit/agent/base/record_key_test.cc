#include "agent/base/record_key.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"

namespace railsd {
namespace {

using Nonce = std::array<std::byte, 32>;

template <size_t N>
std::string Hex(const std::array<uint8_t, N>& bytes) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), N));
}

Nonce NonceOf(uint8_t value) {
  Nonce nonce;
  nonce.fill(std::byte(value));
  return nonce;
}

DataKey KeyOf(uint8_t value) {
  DataKey key;
  key.fill(value);
  return key;
}

// openssl kdf -keylen 44 -kdfopt digest:SHA256 -kdfopt hexkey:0b.. -kdfopt hexsalt:01..02.. -kdfopt info:... HKDF
TEST(RecordKeyTest, IsHkdfOfKeyNoncesAndDirection) {
  const RecordKeys keys = DeriveRecordKeys(KeyOf(0x0b), NonceOf(1), NonceOf(2));
  EXPECT_EQ(Hex(keys.to_acceptor.key), "3b107832d6a912eb1a8e37bb8c477fef36873137dad285666cc2b8f52d273236");
  EXPECT_EQ(Hex(keys.to_acceptor.salt), "2b45fc94");
  EXPECT_EQ(Hex(keys.to_acceptor.iv), "eafe2d0d90fa42ea");
  EXPECT_EQ(Hex(keys.to_dialler.key), "4e9bf4383b19d2765b55250b37675163cdf0e1bf1cd881e0a1f0c440ef6c8162");
  EXPECT_EQ(Hex(keys.to_dialler.salt), "98033498");
  EXPECT_EQ(Hex(keys.to_dialler.iv), "0bf2eb9ac2b6d77f");
}

TEST(RecordKeyTest, DependsOnEverything) {
  const std::string one = Hex(DeriveRecordKeys(KeyOf(1), NonceOf(1), NonceOf(2)).to_acceptor.key);
  EXPECT_NE(one, Hex(DeriveRecordKeys(KeyOf(2), NonceOf(1), NonceOf(2)).to_acceptor.key));
  EXPECT_NE(one, Hex(DeriveRecordKeys(KeyOf(1), NonceOf(3), NonceOf(2)).to_acceptor.key));
  EXPECT_NE(one, Hex(DeriveRecordKeys(KeyOf(1), NonceOf(1), NonceOf(3)).to_acceptor.key));
  EXPECT_NE(one, Hex(DeriveRecordKeys(KeyOf(1), NonceOf(2), NonceOf(1)).to_acceptor.key));
}

}  // namespace
}  // namespace railsd
