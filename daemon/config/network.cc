#include "daemon/config/network.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

using AddressBytes = std::array<uint8_t, 16>;

constexpr uint32_t kMappedBits = 96;  // in front of an IPv4 address

struct Address {
  AddressBytes bytes{};
  bool v4 = false;
};

std::optional<Address> ParseAddress(const std::string& text) {
  if (text.find('\0') != std::string::npos) return std::nullopt;
  Address out;
  in_addr four = {};
  if (inet_pton(AF_INET, text.c_str(), &four) == 1) {
    out.v4 = true;
    out.bytes[10] = out.bytes[11] = 0xff;
    std::memcpy(out.bytes.data() + kMappedBits / 8, &four, sizeof(four));
    return out;
  }
  if (inet_pton(AF_INET6, text.c_str(), out.bytes.data()) == 1) return out;
  return std::nullopt;
}

}  // namespace

absl::StatusOr<IpNetwork> IpNetwork::Parse(absl::string_view text) {
  const absl::Status wrong =
      absl::InvalidArgumentError("not a network; write an address and the length of its prefix, as in 10.16.0.0/12");
  const size_t slash = text.find('/');
  if (slash == absl::string_view::npos) return wrong;
  const std::optional<Address> address = ParseAddress(std::string(text.substr(0, slash)));
  uint32_t bits = 0;
  const absl::string_view length = text.substr(slash + 1);
  if (!address.has_value() || !std::all_of(length.begin(), length.end(), absl::ascii_isdigit)) return wrong;
  if (!absl::SimpleAtoi(length, &bits) || bits > (address->v4 ? 32 : 128)) return wrong;
  IpNetwork network;
  network.bytes_ = address->bytes;
  network.bits_ = bits + (address->v4 ? kMappedBits : 0);
  return network;
}

std::string IpNetwork::Text() const {
  AddressBytes bytes = bytes_;
  for (uint32_t bit = bits_; bit < 8 * bytes.size(); ++bit)
    bytes[bit / 8] &= static_cast<uint8_t>(~(0x80u >> (bit % 8)));
  constexpr AddressBytes kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool v4 = bits_ >= kMappedBits && std::memcmp(bytes.data(), kMapped.data(), kMappedBits / 8) == 0;
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(v4 ? AF_INET : AF_INET6, bytes.data() + (v4 ? kMappedBits / 8 : 0), text, sizeof(text));
  return absl::StrCat(text, "/", v4 ? bits_ - kMappedBits : bits_);
}

bool IpNetwork::Contains(const std::string& address) const {
  const std::optional<Address> parsed = ParseAddress(address.substr(0, address.find('%')));
  return parsed.has_value() && Contains(parsed->bytes);
}

bool IpNetwork::Contains(const std::array<uint8_t, 16>& address) const {
  const size_t whole = bits_ / 8;
  if (std::memcmp(address.data(), bytes_.data(), whole) != 0) return false;
  const uint32_t rest = bits_ % 8;
  return rest == 0 || ((address[whole] ^ bytes_[whole]) >> (8 - rest)) == 0;
}

}  // namespace railsd
