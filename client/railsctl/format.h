// Quantities as people write and read them. Nothing here depends on the locale.
#ifndef RAILS_RAILSCTL_FORMAT_H_
#define RAILS_RAILSCTL_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rails::ctl {

// "16MiB", "4KiB", "1.5GiB", "1MB" (decimal), "512", "512B". Error: INVALID_ARGUMENT with the text.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

// Bytes per second from "200mbit", "10Gbit/s", "25MB/s", "1GiB/s". The unit is required.
absl::StatusOr<uint64_t> ParseRate(absl::string_view text);

// "500ms", "5s", "2m", or seconds without a unit. Must be above zero and finite.
absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text);

// An error text for a number below zero, "" for any other text. Needed because CLI11 reads -1 as 2^64 - 1.
std::string NotBelowZero(const std::string& text);

// "1 rank", "2 ranks".
std::string FormatCount(uint64_t count, absl::string_view noun);
// "0 B", "1.50 KiB", "16.0 MiB": three figures from KiB on.
std::string FormatBytes(uint64_t bytes);
// A link's speed in bits: "200 Mbit/s", "1.60 Gbit/s"; "-" for 0.
std::string FormatBitRate(double bytes_per_second);
// A throughput: "24.8 MB/s", "4.50 GB/s"; "-" for 0.
std::string FormatByteRate(double bytes_per_second);
// "250 ns", "12.5 us", "3.20 ms", "1.25 s", "2m 05s", "3h 04m", "2d 03h".
std::string FormatSeconds(double seconds);
// Times over their bounds that are less than this mean rails that are faster than their configured speeds.
constexpr double kLeastRatio = 0.95;
// "1.014"; "-" when not finite or 0.
std::string FormatRatio(double ratio);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_FORMAT_H_
