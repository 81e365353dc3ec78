#include "client/railsctl/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace rails::ctl {
namespace {

TEST(ParseBytes, KnowsUnits) {
  EXPECT_EQ(*ParseBytes("0"), 0u);
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_EQ(*ParseBytes("512B"), 512u);
  EXPECT_EQ(*ParseBytes("16MiB"), 16u << 20);
  EXPECT_EQ(*ParseBytes("16 mib"), 16u << 20);
  EXPECT_EQ(*ParseBytes("1.5k"), 1536u);
  EXPECT_EQ(*ParseBytes("2GB"), 2'000'000'000u);
}

TEST(ParseBytes, RefusesTheRestAndNamesIt) {
  for (const char* text : {"", "MiB", "-1", "+1", "nan", "inf", "1e400", "16Mibit", "12 34", "99999999TiB", "0x10"}) {
    const auto bytes = ParseBytes(text);
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(bytes.status().message().find(text), absl::string_view::npos) << text;
  }
}

TEST(ParseRate, KnowsBitsAndBytes) {
  EXPECT_EQ(*ParseRate("200mbit"), 25'000'000u);
  EXPECT_EQ(*ParseRate("200Mbit/s"), 25'000'000u);
  EXPECT_EQ(*ParseRate("1.6gbit"), 200'000'000u);
  EXPECT_EQ(*ParseRate("25MB/s"), 25'000'000u);
  for (const char* text : {"", "200", "0mbit", "-1mbit", "1parsec", "nanmbit", "400Gb/s", "400gb"})
    EXPECT_FALSE(ParseRate(text).ok()) << text;
}

TEST(ParseTimeout, TakesSecondsAndUnits) {
  EXPECT_EQ(*ParseTimeout("5"), absl::Seconds(5));
  EXPECT_EQ(*ParseTimeout("0.25"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseTimeout("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseTimeout("2m"), absl::Minutes(2));
  for (const char* text : {"", "0", "-1", "nan", "inf", "soon"}) EXPECT_FALSE(ParseTimeout(text).ok()) << text;
}

TEST(Format, ScalesForPeople) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(16u << 20), "16.0 MiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
  EXPECT_EQ(FormatBitRate(25e6), "200 Mbit/s");
  EXPECT_EQ(FormatBitRate(0), "-");
  EXPECT_EQ(FormatByteRate(4.5e9), "4.50 GB/s");
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatSeconds(0.1e-9), "<1 ns") << "the bound of a job of a few bytes";
  EXPECT_EQ(FormatSeconds(250e-9), "250 ns");
  EXPECT_EQ(FormatSeconds(12.5e-6), "12.5 us");
  EXPECT_EQ(FormatSeconds(3.2e-3), "3.20 ms");
  EXPECT_EQ(FormatSeconds(1.25), "1.25 s");
  EXPECT_EQ(FormatSeconds(125), "2m 05s");
  EXPECT_EQ(FormatSeconds(11040), "3h 04m");
  EXPECT_EQ(FormatSeconds(183600), "2d 03h");
  EXPECT_EQ(FormatSeconds(-1), "-");
  EXPECT_EQ(FormatRatio(1.0136), "1.014");
  EXPECT_EQ(FormatRatio(3'125'000.4), "3125000") << "a job of a few bytes";
  EXPECT_EQ(FormatRatio(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(FormatCount(1, "rank"), "1 rank");
  EXPECT_EQ(FormatCount(0, "rank"), "0 ranks");
}

TEST(Format, NumbersBelowZeroAreSeenBeforeTheyAreUnsigned) {
  EXPECT_EQ(NotBelowZero("7"), "");
  EXPECT_EQ(NotBelowZero("-1"), "'-1' is below zero");
}

}  // namespace
}  // namespace rails::ctl
