// The bytes of a link's connection. Pure, of hostile input.
//
// Each direction begins with kLinkPreface. Frames follow: the length of the rest (4 bytes, little-endian), a kind (1),
// a number (8), a body. Without a connection's length limit no frame could be read; a longer message goes in parts.
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

// Also the name that TLS agrees on (ALPN). It changes with the layout of frames.
inline constexpr absl::string_view kLinkProtocol = "railsd-link/1";
inline constexpr absl::string_view kLinkPreface = "railsd-link/1\r\n";

enum class FrameKind : uint8_t {
  kHello = 1,     // body: rails.peer.v1.Hello; the first frame of each direction, and only that
  kKey = 2,       // body: the link's key for data connections; from the lower name, the next after its HELLO
  kMessage = 3,   // number; body: rails.peer.v1.Message
  kPart = 4,      // number; body: bytes of a longer message
  kLastPart = 5,  // number; body: the rest of it
  kTaken = 6,     // number: every numbered frame up to it has been taken; also the heartbeat
  kEnd = 7,       // body: why the sender closes the connection
  kStopping = 8,  // the sender's daemon ends
};

struct Frame {
  FrameKind kind;
  uint64_t number = 0;
  absl::string_view body;
};

inline constexpr size_t kFrameHeaderBytes = 4 + 1 + 8;
inline constexpr size_t kMaxFrameBody = 64 << 10;

// A whole frame. `body` has kMaxFrameBody bytes at most.
std::string FrameOf(FrameKind kind, uint64_t number, absl::string_view body = {});

// Room for the header at the beginning of a frame whose body is written behind it, of any length.
inline std::string FrameWithoutHeader() { return std::string(kFrameHeaderBytes, '\0'); }
// Writes the header into that room; the frame has kFrameHeaderBytes + kMaxFrameBody bytes at most.
void SetHeader(FrameKind kind, uint64_t number, std::string* frame);

// Cuts what has arrived into frames.
class FrameReader {
 public:
  FrameReader();
  // Where up to `size` bytes that arrive next may be written, and how many were.
  char* Space(size_t* size);
  void Arrived(size_t size) { have_ += size; }
  bool anything_came() const { return begun_ || have_ > 0; }
  // The next frame, which stays where it is until the next call of any method; nothing when more must arrive first.
  // INVALID_ARGUMENT: too long, or of no kind. FAILED_PRECONDITION: the other end does not speak this protocol.
  // Nothing comes after an error.
  absl::StatusOr<std::optional<Frame>> Next();

 private:
  absl::Status CheckPreface() const;

  std::vector<char> buffer_;
  size_t begin_ = 0, have_ = 0;  // of what has arrived and was not given out
  bool begun_ = false;
  absl::Status broken_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_FRAME_H_
