#include "daemon/service/beginning.h"

#include <algorithm>
#include <cstdint>

namespace railsd {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";  // RFC 9113, 3.4
constexpr size_t kFrameHeader = 9;
constexpr uint8_t kSettings = 4;
constexpr size_t kRecordHeader = 5;
constexpr uint8_t kHandshakeRecord = 22;

Beginning LookAtHttp2(absl::string_view bytes) {
  const size_t known = std::min(bytes.size(), kPreface.size());
  if (bytes.substr(0, known) != kPreface.substr(0, known)) return Beginning::kWrong;
  if (bytes.size() < kPreface.size() + kFrameHeader) return Beginning::kMore;
  return static_cast<uint8_t>(bytes[kPreface.size() + 3]) == kSettings ? Beginning::kWhole : Beginning::kWrong;
}

Beginning LookAtTls(absl::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (!bytes.empty() && byte(0) != kHandshakeRecord) return Beginning::kWrong;
  if (bytes.size() > 1 && byte(1) != 3) return Beginning::kWrong;  // all of SSL 3 and TLS
  if (bytes.size() < kRecordHeader) return Beginning::kMore;
  const size_t length = size_t{byte(3)} << 8 | byte(4);
  if (length == 0 || length > kMaxBeginning - kRecordHeader) return Beginning::kWrong;
  return bytes.size() < kRecordHeader + length ? Beginning::kMore : Beginning::kWhole;
}

Beginning LookAtLane(absl::string_view bytes) {
  const size_t known = std::min(bytes.size(), kLaneMagic.size());
  if (bytes.substr(0, known) != kLaneMagic.substr(0, known)) return Beginning::kWrong;
  return bytes.size() < kLaneGreetingBytes ? Beginning::kMore : Beginning::kLane;
}

}  // namespace

Beginning LookAtBeginning(absl::string_view bytes, bool tls, bool lanes) {
  if (lanes && !bytes.empty() && bytes[0] == kLaneMagic[0]) return LookAtLane(bytes);
  return tls ? LookAtTls(bytes) : LookAtHttp2(bytes);
}

}  // namespace railsd
