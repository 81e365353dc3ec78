// The receiving half of one peer: frames from its bulk connection into the zones, and the acknowledgements of them.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_RECEIVER_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_RECEIVER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_context.h"

namespace railsd::tcp {

// Of the rail's thread. Holds no socket: the transport lends them. Trusts nothing that it reads.
class TcpReceiver {
 public:
  enum class Outcome {
    kDrained,   // the socket is empty: wait until it is readable
    kMore,      // the budget is used up
    kPaused,    // events must be taken, or acknowledgements read by the peer, first
    kParked,    // the zone is not open: look again in the next Poll()
    kClosed,    // the peer is gone; *error_number says how
    kProtocol,  // the peer broke the protocol
  };

  TcpReceiver(Context* context, PeerIndex peer, uint64_t generation)
      : context_(context), peer_(peer), generation_(generation) {}

  // Receives up to about `budget_bytes` from `bulk`.
  Outcome Receive(int bulk, uint64_t budget_bytes, int* error_number);

  // From here on nothing is written into the set's zones; a frame under way for them is drained.
  void Close(const ReceiveSet* set);

  // Whole frames that have ended, from the first on: their bytes are in memory, or were refused.
  uint64_t frames() const { return frames_; }

  // Acknowledges on `small` what was finished since the last time. Returns 0, EAGAIN (call again when writable) or an
  // errno.
  int SendAcks(int small);
  bool HasAcks() const { return acks_begin_ < acks_end_ || told_ < frames_; }
  // Somebody may be waiting for them: the last of a set, a refusal, or many.
  bool AcksAreDue() const { return hurry_ || acks_begin_ < acks_end_ || frames_ - told_ >= kFramesPerAck; }

 private:
  static constexpr size_t kMaxStatuses = 256;
  static constexpr uint64_t kFramesPerAck = 4;

  enum class Phase { kHeader, kPayload, kTrailer };
  enum class Mode {
    kLook,   // the zone was not looked up yet
    kLand,   // into the zone
    kDrain,  // the zone is closed
    kFault,  // a page of the zone is bad
  };

  Outcome LookUp();
  Outcome BeginFrame();
  bool EndFrame();
  size_t BuildIovecs(uint64_t* bytes);
  Outcome OnBytes(uint64_t bytes);
  ssize_t ReceiveOnce(int bulk, uint64_t* wanted_bytes);
  void OnFault();

  Context* const context_;
  const PeerIndex peer_;
  const uint64_t generation_;

  Phase phase_ = Phase::kHeader;
  Mode mode_ = Mode::kLook;
  FrameHeader header_;
  const ReceiveSet* set_ = nullptr;  // of the frame under way, while mode_ is kLand; the context owns it
  uint64_t payload_bytes_ = 0;       // received of this frame
  uint64_t parked_at_ = 0;           // number of the Poll() that first looked for the zone
  // A trailer and the header behind it are read in one piece.
  std::array<std::byte, kTrailerBytes + kHeaderBytes> edge_;
  size_t edge_have_ = kTrailerBytes;  // the first header has no trailer before it

  uint64_t frames_ = 0;  // ended
  uint64_t told_ = 0;    // of them, in acks_
  bool hurry_ = false;
  struct Status {
    uint64_t number = 0;
    FrameStatus status = FrameStatus::kOk;
  };
  std::array<Status, kMaxStatuses> statuses_;  // of ended frames that were not plainly received
  size_t status_count_ = 0;
  std::array<std::byte, (kMaxStatuses + 1) * kAckBytes> acks_;
  size_t acks_begin_ = 0;
  size_t acks_end_ = 0;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_RECEIVER_H_
