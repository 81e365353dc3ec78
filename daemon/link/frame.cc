#include "daemon/link/frame.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/config/config.h"

namespace railsd {
namespace {

// Initial buffer: holds a few usual messages. The first long frame makes it grow.
constexpr size_t kBufferBytes = 8 << 10;
constexpr size_t kLengthBytes = 4;

template <typename T>
void Put(T value, char* out) {
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<char>(value >> (8 * i));
}

template <typename T>
T Get(const char* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(T{static_cast<uint8_t>(in[i])} << (8 * i));
  return value;
}

}  // namespace

void SetHeader(FrameKind kind, uint64_t number, std::string* frame) {
  Put(static_cast<uint32_t>(frame->size() - kLengthBytes), frame->data());
  (*frame)[kLengthBytes] = static_cast<char>(kind);
  Put(number, frame->data() + kLengthBytes + 1);
}

std::string FrameOf(FrameKind kind, uint64_t number, absl::string_view body) {
  std::string frame = FrameWithoutHeader();
  absl::StrAppend(&frame, body);
  SetHeader(kind, number, &frame);
  return frame;
}

FrameReader::FrameReader() : buffer_(kBufferBytes) {}

char* FrameReader::Space(size_t* size) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, have_ - begin_);
    have_ -= begin_;
    begin_ = 0;
  }
  *size = buffer_.size() - have_;
  return buffer_.data() + have_;
}

absl::Status FrameReader::CheckPreface() const {
  const absl::string_view bytes(buffer_.data(), std::min(have_, kLinkPreface.size()));
  if (absl::StartsWith(kLinkPreface, bytes)) return absl::OkStatus();
  if (absl::StartsWith("\x16\x03", bytes.substr(0, 2)) || absl::StartsWith("\x15\x03", bytes.substr(0, 2))) {
    return absl::FailedPreconditionError(kTlsModesDiffer);
  }
  const bool grpc = absl::StartsWith("PRI * HTTP/2.0", bytes.substr(0, 14)) || (bytes.size() > 3 && bytes[3] == '\4');
  return absl::FailedPreconditionError(absl::StrCat(
      "the other end speaks ", grpc ? "gRPC, as a railsd before this protocol does" : "another protocol", ", not ",
      kLinkProtocol, " (it begins with \"", absl::CEscape(bytes), "\"): run the same version of railsd on all nodes"));
}

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  if (!broken_.ok()) return broken_;
  if (!begun_) {
    if (broken_ = CheckPreface(); !broken_.ok()) return broken_;
    if (have_ < kLinkPreface.size()) return std::nullopt;
    begun_ = true;
    begin_ = kLinkPreface.size();
  }
  if (have_ - begin_ < kLengthBytes) return std::nullopt;
  const char* const frame = buffer_.data() + begin_;
  const size_t rest = Get<uint32_t>(frame), least = kFrameHeaderBytes - kLengthBytes;
  if (rest < least || rest > least + kMaxFrameBody) {
    return broken_ = absl::InvalidArgumentError(
               absl::StrCat("a frame of ", rest, " bytes, outside ", least, " to ", least + kMaxFrameBody));
  }
  if (have_ - begin_ < kLengthBytes + rest) {
    if (buffer_.size() < kLengthBytes + rest) buffer_.resize(kLengthBytes + rest);
    return std::nullopt;
  }
  const uint8_t kind = static_cast<uint8_t>(frame[kLengthBytes]);
  if (kind < static_cast<uint8_t>(FrameKind::kHello) || kind > static_cast<uint8_t>(FrameKind::kStopping)) {
    return broken_ = absl::InvalidArgumentError(absl::StrCat("a frame of kind ", kind));
  }
  begin_ += kLengthBytes + rest;
  return Frame{static_cast<FrameKind>(kind), Get<uint64_t>(frame + kLengthBytes + 1),
               absl::string_view(frame + kFrameHeaderBytes, rest - least)};
}

}  // namespace railsd
