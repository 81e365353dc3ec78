// The sending half of one peer: its orders, cut into frames, and their acknowledgements.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_SENDER_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_SENDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_context.h"

namespace railsd::tcp {

// Owned by the rail's thread. Holds no socket: the transport lends it.
class TcpSender {
 public:
  enum class Outcome {
    kIdle,     // nothing left to send
    kBlocked,  // the socket is full: wait until it is writable
    kMore,     // the budget is used up
    kFailed,   // *error_number says why
  };

  explicit TcpSender(Context* context) : context_(context), frames_(kMaxFramesInFlight) {}

  // A fresh connection is up; no order is held.
  void Start(uint64_t generation, uint32_t max_frame_bytes);
  // Takes an order that the context has room for.
  void Add(const SendOrder& order);
  bool HasOrders() const { return first_ != kNoOrder; }
  bool HasWork() const;

  // Sends up to about `budget_bytes` (see kLeastCharge) on `socket`.
  Outcome Send(int socket, uint64_t budget_bytes, int* error_number);
  // Applies acknowledgements that arrived on the socket. False when they break the protocol.
  bool OnAckBytes(absl::Span<const std::byte> bytes);

  // Ends the job's orders as kStopped. Their memory is not read after it.
  void Stop(JobTag job);
  // The connection is not used any more: all orders end as kStopped.
  void StopAll();
  // The connection broke: all orders end, as kNotSent or kRailFailed.
  void Break(int error_number);

 private:
  static constexpr uint32_t kMaxFramesInFlight = 1024;
  static constexpr size_t kMaxFramesPerCall = 64;

  struct Frame {
    FrameHeader header;
    uint32_t order = kNoOrder;              // kNoOrder once the order has ended
    FrameStatus status = FrameStatus::kOk;  // of the trailer, or what the receiver said of it
  };
  // The contents of one sendmsg(), of which the socket may take only a part.
  struct Batch {
    size_t iovecs = 0;
    uint64_t bytes = 0;
    size_t frames = 0;  // of `planned_`
    std::array<std::array<std::byte, kHeaderBytes>, kMaxFramesPerCall + 1> headers;
    std::array<std::array<std::byte, kTrailerBytes>, kMaxFramesPerCall + 1> trailers;
    std::array<Frame, kMaxFramesPerCall> planned;
  };

  Frame& FrameAt(uint64_t number) { return frames_[number % kMaxFramesInFlight]; }
  void AddBytes(const void* data, size_t length);
  bool AddFrame(const Frame& frame, uint64_t skip_bytes, size_t slot);
  bool AddPayload(const Frame& frame, uint64_t skip_bytes);
  void BuildBatch(uint64_t budget_bytes);
  void PlanFrames(uint64_t budget_bytes);
  void Commit(uint64_t bytes);
  bool OnFault();
  bool OnAck(const AckRecord& ack);
  void SettleFrame(Frame& frame);
  template <typename Wanted>
  void EndAll(SendResult result, int error_number, Wanted wanted);
  void End(uint32_t index, SendResult result, int error_number);
  void Unlink(uint32_t index);

  Context* const context_;
  std::vector<Frame> frames_;  // ring by frame number: [acked_, begun_)
  uint64_t generation_ = 0;
  uint32_t frame_limit_bytes_ = 0;
  uint64_t acked_ = 0;         // frames below are done with
  uint64_t sent_ = 0;          // frames below are wholly in the socket
  uint64_t begun_ = 0;         // sent_, or sent_ + 1 while one is half sent
  uint64_t wire_bytes_ = 0;    // of the half-sent frame: header, payload and trailer bytes in the socket
  bool careful_ = false;       // one piece per call, to find the frame with the bad page
  uint32_t first_ = kNoOrder;  // orders in the order of posting
  uint32_t last_ = kNoOrder;
  uint32_t uncut_ = kNoOrder;  // first order that is not wholly cut into frames
  Batch batch_;
  std::array<std::byte, kAckBytes> ack_buffer_;
  size_t ack_have_ = 0;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_SENDER_H_
