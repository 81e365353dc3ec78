#include "agent/base/data_key.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace railsd {
namespace {

// RFC 4231 has no vector with this form of message; this one was computed with `openssl mac`.
TEST(DataKeyTest, TheLabelAndAZeroComeFirst) {
  DataKey key;
  key.fill(0x0b);
  const std::array<std::byte, 2> part{std::byte('h'), std::byte('i')};
  const Mac mac = Authenticate(key, "label", {part});
  EXPECT_EQ(absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(mac.data()), mac.size())),
            "151b006bf6f78c7214231945343218d981cea2cded5017a8e4fd09d11cb2da50");
  EXPECT_TRUE(SameMac(mac, mac));
  Mac other = mac;
  other[31] ^= std::byte(1);
  EXPECT_FALSE(SameMac(mac, other));
}

TEST(DataKeyTest, NoncesAndKeysDiffer) {
  EXPECT_NE(DrawNonce(), DrawNonce());
  const DataKey key = DrawDataKey();
  EXPECT_TRUE(SameKey(key, key));
  EXPECT_FALSE(SameKey(key, DrawDataKey()));
}

}  // namespace
}  // namespace railsd
