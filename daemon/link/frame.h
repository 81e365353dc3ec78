// The byte format of a link's connection. Pure. The input is hostile.
//
// Each direction begins with kLinkPreface. Frames follow: the length of the rest (4 bytes, little-endian), a kind (1),
// a number (8), a body of at most kMaxFrameBody bytes. A longer message goes in parts.
#ifndef RAILSD_DAEMON_LINK_FRAME_H_
#define RAILSD_DAEMON_LINK_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace railsd {

// Also the ALPN name of TLS. Changes with the layout of frames.
inline constexpr absl::string_view kLinkProtocol = "railsd-link/1";
inline constexpr absl::string_view kLinkPreface = "railsd-link/1\r\n";

enum class FrameKind : uint8_t {
  kHello = 1,     // body: rails.peer.v1.Hello; the first frame of each direction, and no other
  kKey = 2,       // body: the link's key for data connections; the lower node name sends it right after its HELLO
  kMessage = 3,   // number; body: rails.peer.v1.Message
  kPart = 4,      // number; body: bytes of a longer message
  kLastPart = 5,  // number; body: the last bytes of that message
  kTaken = 6,     // number: all numbered frames up to this one have been taken; also the heartbeat
  kEnd = 7,       // body: why the sender closes the connection
  kStopping = 8,  // the sender's daemon is stopping; body: why
};

struct Frame {
  FrameKind kind;
  uint64_t number = 0;
  absl::string_view body;
};

inline constexpr size_t kFrameHeaderBytes = 4 + 1 + 8;
inline constexpr size_t kMaxFrameBody = 64 << 10;

// Returns a whole frame. `body` has at most kMaxFrameBody bytes.
std::string FrameOf(FrameKind kind, uint64_t number, absl::string_view body = {});

// Returns room for a header. The caller appends the body, which may have any length.
inline std::string FrameWithoutHeader() { return std::string(kFrameHeaderBytes, '\0'); }
// Writes the header into that room. The frame has at most kFrameHeaderBytes + kMaxFrameBody bytes.
void SetHeader(FrameKind kind, uint64_t number, std::string* frame);

// Cuts the received bytes into frames.
class FrameReader {
 public:
  FrameReader();
  // Space() returns room for `*size` bytes to receive. Arrived() says how many of them were filled.
  char* Space(size_t* size);
  void Arrived(size_t size) { have_ += size; }
  bool anything_came() const { return begun_ || have_ > 0; }
  // Returns the next frame, or nullopt until more bytes arrive. The body is valid until the next call of any method.
  // INVALID_ARGUMENT: bad length or unknown kind. FAILED_PRECONDITION: the other end does not speak this protocol.
  // After an error every call returns that error.
  absl::StatusOr<std::optional<Frame>> Next();

 private:
  absl::Status CheckPreface() const;

  std::vector<char> buffer_;
  size_t begin_ = 0, have_ = 0;  // [begin_, have_): received, not yet returned
  bool begun_ = false;
  absl::Status broken_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_FRAME_H_
