// The receiving half of one peer: frames from the connection that it dialled into the zones, and the acknowledgements.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_RECEIVER_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_RECEIVER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_context.h"

namespace railsd::tcp {

// Owned by the rail's thread. Holds no socket: the transport lends it. Trusts nothing that it reads.
class TcpReceiver {
 public:
  enum class Outcome {
    kDrained,   // the socket is empty: wait until it is readable
    kMore,      // the budget, or the events of one turn, are used up
    kPaused,    // events must be taken, or acknowledgements read by the peer, first
    kClosed,    // the peer is gone; *error_number says how
    kProtocol,  // the peer broke the protocol
  };

  // `generation`: of the connection.
  TcpReceiver(Context* context, PeerIndex peer, uint64_t generation)
      : context_(context), peer_(peer), generation_(generation) {}

  // One turn: receives up to about `budget_bytes` from `socket` (see kLeastCharge), and makes about kEventsPerTurn
  // events at most, because all peers share the room for events.
  Outcome Receive(int socket, uint64_t budget_bytes, int* error_number);

  // Acknowledges on `socket` the frames that ended since the last call. Returns 0, EAGAIN (call again when writable) or
  // an errno.
  int SendAcks(int socket);
  bool HasAcks() const { return acks_begin_ < acks_end_ || told_ < frames_; }
  // True if the sender may be waiting for acknowledgements: there is a fence, a refusal, many frames or many bytes.
  bool AcksAreDue() const {
    return hurry_ || acks_begin_ < acks_end_ || frames_ - told_ >= kFramesPerAck || untold_bytes_ >= kBytesPerAck;
  }

 private:
  static constexpr size_t kMaxStatuses = 256;
  static constexpr uint64_t kFramesPerAck = 4;
  static constexpr uint64_t kBytesPerAck = 1 << 20;  // the least window of a sender is a few chunks
  static constexpr uint64_t kEventsPerTurn = 64;

  enum class Phase { kHeader, kPayload, kTrailer };
  enum class Mode {
    kLand,   // into the zone
    kDrain,  // discard: the zone is not open
    kFault,  // discard: a page of the zone is bad
  };

  const ReceiveZone* EnterZone() { return context_->options.zones->Enter(header_.zone); }
  void LeaveZone();
  bool BeginFrame();
  FrameStatus TakeFence(const ReceiveZone& zone);
  bool EndData();
  void EndFrame(FrameStatus status);
  size_t BuildIovecs(const ReceiveZone* zone, uint64_t* bytes);
  bool OnBytes(uint64_t bytes);
  ssize_t Drain(int socket, uint64_t* wanted_bytes);
  ssize_t ReceiveOnce(int socket, uint64_t* wanted_bytes);
  void OnFault();

  Context* const context_;
  const PeerIndex peer_;
  const uint64_t generation_;

  Phase phase_ = Phase::kHeader;
  Mode mode_ = Mode::kLand;
  FrameHeader header_;          // fits its zone, if that was open when the frame began
  uint64_t payload_bytes_ = 0;  // received of this frame
  // A trailer and the header behind it are read in one piece.
  std::array<std::byte, kTrailerBytes + kHeaderBytes> edge_;
  size_t edge_have_ = kTrailerBytes;  // the first header has no trailer before it

  uint64_t frames_ = 0;        // ended: what they carried is in memory, published or refused
  uint64_t told_ = 0;          // of those, acknowledged in acks_
  uint64_t untold_bytes_ = 0;  // payload of ended frames that are not
  bool hurry_ = false;
  struct Status {
    uint64_t number = 0;
    FrameStatus status = FrameStatus::kOk;
  };
  std::array<Status, kMaxStatuses> statuses_;  // of ended frames, if not kOk
  size_t status_count_ = 0;
  std::array<std::byte, (kMaxStatuses + 1) * kAckBytes> acks_;
  size_t acks_begin_ = 0;
  size_t acks_end_ = 0;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_RECEIVER_H_
