#include "daemon/peer/lane_codec.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace railsd {
namespace {

constexpr absl::string_view kGreetingLabel = "railsd lane greeting";
constexpr absl::string_view kAnswerLabel = "railsd lane answer";
// Room for some of the usual messages; it grows with the first long one.
constexpr size_t kBufferBytes = 8 << 10;

absl::Span<const std::byte> BytesOf(const PublicShare& share) {
  return {reinterpret_cast<const std::byte*>(share.data()), share.size()};
}

void AppendMac(const LaneKeys& keys, absl::string_view label, std::string* out) {
  const std::byte sealed{static_cast<uint8_t>(keys.sealed)};
  const Mac mac = Authenticate(keys.key, label, {BytesOf(keys.dialler), {&sealed, 1}});
  out->append(reinterpret_cast<const char*>(mac.data()), mac.size());
}

std::optional<LaneCipher> CipherOf(const LaneKeys& keys, bool sealing) {
  if (!keys.sealed) return std::nullopt;
  // The key is of this lane alone, so that the shares say nothing more as a salt.
  return std::optional<LaneCipher>(std::in_place, DeriveRecordKeys(keys.key, BytesOf(keys.dialler), {}).to_acceptor,
                                   sealing);
}

uint32_t LengthOf(const char* header) {
  uint8_t bytes[kLaneHeaderBytes];
  std::memcpy(bytes, header, sizeof(bytes));
  return bytes[0] | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 | uint32_t{bytes[3]} << 24;
}

}  // namespace

std::string LaneKeys::Greeting() const {
  std::string out(kLaneMagic);
  out.append(reinterpret_cast<const char*>(dialler.data()), dialler.size());
  AppendMac(*this, kGreetingLabel, &out);
  return out;
}

std::string LaneKeys::Answer() const {
  std::string out(kLaneMagic);
  AppendMac(*this, kAnswerLabel, &out);
  return out;
}

std::optional<PublicShare> ShareOfGreeting(absl::string_view bytes) {
  if (bytes.size() != kLaneGreetingBytes || bytes.substr(0, kLaneMagic.size()) != kLaneMagic) return std::nullopt;
  PublicShare share;
  std::memcpy(share.data(), bytes.data() + kLaneMagic.size(), share.size());
  return share;
}

void LaneCipher::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

LaneCipher::LaneCipher(const RecordKey& key, bool sealing) : sealing_(sealing), context_(EVP_CIPHER_CTX_new()) {
  std::copy(key.salt.begin(), key.salt.end(), nonce_.begin());
  std::copy(key.iv.begin(), key.iv.end(), nonce_.begin() + key.salt.size());
  if (context_ == nullptr ||
      EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, key.key.data(), nonce_.data(), sealing_) != 1) {
    std::abort();
  }
}

bool LaneCipher::Next(char* body, size_t length, char* tag) {
  std::array<uint8_t, 12> nonce = nonce_;
  for (size_t i = 0; i < sizeof(number_); ++i) nonce[11 - i] ^= static_cast<uint8_t>(number_ >> (8 * i));
  ++number_;
  auto* const bytes = reinterpret_cast<unsigned char*>(body);
  EVP_CIPHER_CTX* const context = context_.get();
  int done = 0;
  bool good = EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), -1) == 1;
  if (!sealing_) good = good && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kLaneTagBytes, tag) == 1;
  good = good && EVP_CipherUpdate(context, bytes, &done, bytes, static_cast<int>(length)) == 1;
  good = good && EVP_CipherFinal_ex(context, bytes + length, &done) == 1;  // writes nothing: GCM is a stream
  if (sealing_) good = good && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kLaneTagBytes, tag) == 1;
  return good;
}

LaneSealer::LaneSealer(const LaneKeys& keys) : cipher_(CipherOf(keys, true)) {}

void LaneSealer::Finish(size_t size, char* frame) {
  const size_t length = size + (cipher_ ? kLaneTagBytes : 0);
  for (size_t i = 0; i < kLaneHeaderBytes; ++i) frame[i] = static_cast<char>(length >> (8 * i));
  char* const body = frame + kLaneHeaderBytes;
  if (cipher_ && !cipher_->Next(body, size, body + size)) std::abort();  // out of memory
}

LaneOpener::LaneOpener(const LaneKeys& keys) : cipher_(CipherOf(keys, false)), buffer_(kBufferBytes) {}

char* LaneOpener::Space(size_t* size) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, have_ - begin_);
    have_ -= begin_;
    begin_ = 0;
  }
  *size = buffer_.size() - have_;
  return buffer_.data() + have_;
}

absl::StatusOr<std::optional<absl::string_view>> LaneOpener::Next() {
  if (!broken_.ok()) return broken_;
  if (have_ - begin_ < kLaneHeaderBytes) return std::nullopt;
  char* const frame = buffer_.data() + begin_;
  const size_t length = LengthOf(frame), tag = cipher_ ? kLaneTagBytes : 0;
  if (length < tag || length - tag > kMaxLaneMessageBytes) {
    return broken_ = absl::InvalidArgumentError(
               absl::StrCat("a frame of ", length, " bytes, outside ", tag, " to ", tag + kMaxLaneMessageBytes));
  }
  if (have_ - begin_ < kLaneHeaderBytes + length) {
    if (buffer_.size() < kLaneHeaderBytes + length) buffer_.resize(kLaneHeaderBytes + length);
    return std::nullopt;
  }
  begin_ += kLaneHeaderBytes + length;
  char* const body = frame + kLaneHeaderBytes;
  if (cipher_ && !cipher_->Next(body, length - tag, body + length - tag)) {
    return broken_ = absl::InvalidArgumentError("a frame that was changed on the way, or sealed by somebody else");
  }
  return absl::string_view(body, length - tag);
}

}  // namespace railsd
