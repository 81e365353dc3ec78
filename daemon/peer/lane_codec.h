// What goes over a lane (lanes.h), byte by byte: how it begins, and its frames. Pure: no sockets, no threads.
//
// Greeting, 72 bytes, of who dials: kLaneMagic (8), the dialler's key share (32), HMAC (32). Answer, 40 bytes:
// kLaneMagic, HMAC. Frames, from the dialler only: the length of what follows (4 bytes, little-endian), a message;
// under mutual TLS it is sealed with AES-256-GCM, the 16 bytes of the tag behind it; with another length the tag would
// be elsewhere.
#ifndef RAILSD_DAEMON_PEER_LANE_CODEC_H_
#define RAILSD_DAEMON_PEER_LANE_CODEC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/base/data_key.h"
#include "agent/base/record_key.h"
#include "daemon/service/beginning.h"

struct evp_cipher_ctx_st;

namespace railsd {

inline constexpr size_t kLaneAnswerBytes = 40;
// Longer messages go over the stream.
inline constexpr size_t kMaxLaneMessageBytes = 64 << 10;
inline constexpr size_t kLaneHeaderBytes = 4;
inline constexpr size_t kLaneTagBytes = 16;

// What both ends of a lane have agreed on with the shares of one control stream. Secret.
struct LaneKeys {
  PublicShare dialler{};  // names the lane
  DataKey key{};
  bool sealed = false;  // frames are encrypted

  std::string Greeting() const;
  std::string Answer() const;
};

// The share that a greeting names; nothing when `bytes` are none. kLaneGreetingBytes long.
std::optional<PublicShare> ShareOfGreeting(absl::string_view bytes);

// AES-256-GCM with the number of the frame in the nonce, as TLS 1.3 numbers records (RFC 8446, 5.3).
class LaneCipher {
 public:
  // `sealing`: encrypts. Aborts when out of memory.
  LaneCipher(const RecordKey& key, bool sealing);
  // `body` in place; the tag behind `length` bytes is written, or checked. False: it is not what was sealed. After 2^64
  // frames no key is safe any more; no lane lives to see it.
  bool Next(char* body, size_t length, char* tag);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  const bool sealing_;
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::array<uint8_t, 12> nonce_;
  uint64_t number_ = 0;
};

// The dialler's side: makes frames.
class LaneSealer {
 public:
  explicit LaneSealer(const LaneKeys& keys);
  // Appends the frame of `size` bytes, of kMaxLaneMessageBytes at most, that `fill` writes where it is told.
  template <typename Fill>
  void Append(size_t size, Fill fill, std::string* out) {
    const size_t begin = out->size();
    out->resize(begin + kLaneHeaderBytes + size + (cipher_ ? kLaneTagBytes : 0));
    fill(out->data() + begin + kLaneHeaderBytes);
    Finish(size, out->data() + begin);
  }

 private:
  void Finish(size_t size, char* frame);

  std::optional<LaneCipher> cipher_;
};

// The other side: cuts what has arrived into frames.
class LaneOpener {
 public:
  explicit LaneOpener(const LaneKeys& keys);
  // Where up to `size` bytes that arrive next may be written, and how many were.
  char* Space(size_t* size);
  void Arrived(size_t size) { have_ += size; }
  // The next message, which stays where it is until the next call of any method; nothing when more must arrive first.
  // INVALID_ARGUMENT: too long, or not what was sealed; nothing comes after that.
  absl::StatusOr<std::optional<absl::string_view>> Next();

 private:
  std::optional<LaneCipher> cipher_;
  std::vector<char> buffer_;
  size_t begin_ = 0, have_ = 0;  // of what has arrived and was not given out
  absl::Status broken_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_LANE_CODEC_H_
