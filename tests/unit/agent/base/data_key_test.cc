#include "agent/base/data_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace railsd {
namespace {

TEST(DataKeyTest, BothEndsAgreeAndEveryPairOfLivesDiffers) {
  const KeyShare a = KeyShare::Draw().value();
  const KeyShare b = KeyShare::Draw().value();
  const ShareHolder of_a{"n0", BootId(1), a.share()};
  const ShareHolder of_b{"n1", BootId(2), b.share()};
  const DataKey key = a.Agree(of_a, of_b).value();
  EXPECT_EQ(b.Agree(of_b, of_a).value(), key);
  ShareHolder again = of_b;
  again.boot = BootId(3);
  EXPECT_NE(a.Agree(of_a, again).value(), key);
  ShareHolder renamed = of_b;
  renamed.node = "n2";
  EXPECT_NE(a.Agree(of_a, renamed).value(), key);
  const KeyShare c = KeyShare::Draw().value();
  EXPECT_NE(c.share(), b.share());
  EXPECT_NE(a.Agree(of_a, {"n1", BootId(2), c.share()}).value(), key);
  // A third one knows all that is public, and has a half of its own.
  EXPECT_NE(c.Agree(of_b, of_a).value(), key);
}

TEST(DataKeyTest, SharesOfLowOrderAreRefused) {
  const KeyShare a = KeyShare::Draw().value();
  for (const uint8_t first : {uint8_t{0}, uint8_t{1}}) {
    PublicShare low{};
    low[0] = first;
    const auto key = a.Agree({"n0", BootId(1), a.share()}, {"n1", BootId(2), low});
    EXPECT_EQ(key.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(key.status().message()), ::testing::HasSubstr("node n1"));
  }
}

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

TEST(DataKeyTest, NoncesDiffer) { EXPECT_NE(DrawNonce(), DrawNonce()); }

}  // namespace
}  // namespace railsd
