// Texts with units: sizes, rates, durations, addresses. Pure.
#ifndef RAILSD_DAEMON_CONFIG_UNITS_H_
#define RAILSD_DAEMON_CONFIG_UNITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace railsd {

// "0", "4096": whole numbers.
absl::StatusOr<uint64_t> ParseNumber(absl::string_view text);
std::string FormatNumber(uint64_t number);

// "65536", "64KiB", "1MB": bytes. Units: B, KB, MB, GB, TB (decimal), KiB, MiB, GiB, TiB (binary).
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);
std::string FormatBytes(uint64_t bytes);

// "200mbit", "2.5gbit": bytes per second. Units: bit, kbit, mbit, gbit, tbit (decimal, per second).
absl::StatusOr<uint64_t> ParseRate(absl::string_view text);
std::string FormatRate(uint64_t bytes_per_s);

// "500ms", "10s", "1h30m": not negative, finite.
absl::StatusOr<absl::Duration> ParseTime(absl::string_view text);

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};
// "host:port", "1.2.3.4:7", "[::1]:7"; with `port_optional` also without the port (0 then).
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, bool port_optional);
// With brackets where the host needs them.
std::string FormatHostPort(const HostPort& address);
// True for an IPv4 or IPv6 address, false for a name.
bool IsNumericAddress(const std::string& host);

struct RdmaDeviceName {
  std::string name;   // may be a pattern
  uint32_t port = 0;  // 0: not said
  bool pattern() const { return name.find_first_of("*?[") != std::string::npos; }
};
// Whether a shell pattern has a '[' without a ']' behind it.
bool HasOpenBracket(absl::string_view pattern);
// "mlx5_0", "mlx5_0/1", "mlx5_*/1": an RDMA device as the kernel names it, or a shell pattern for such names.
absl::StatusOr<RdmaDeviceName> ParseRdmaDevice(absl::string_view text);
// "verbs:mlx5_0/1": the address of a rail over verbs in a HELLO.
inline constexpr absl::string_view kVerbsScheme = "verbs:";
bool IsVerbsAddress(absl::string_view text);

// A name of a node or rail: 1 to 63 of a-z, A-Z, 0-9, '.', '_', '-'; node names reach 253.
bool IsName(absl::string_view text, size_t max_length);

// The number of a group of the system, given by name or number.
std::optional<uint32_t> GroupNumber(const std::string& name);

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_UNITS_H_
