// Lanes: plain connections beside the control streams that carry their short messages, in one direction each.
//
// A message over gRPC costs some twenty thousand instructions at each end, twice as many under TLS, and the wake-ups of
// gRPC's threads; every job waits for four of them. A lane is a socket: one system call at each end. It belongs to the
// stream whose HELLOs brought the key shares (peer.proto), and is worth as much as that: under mutual TLS its messages
// are sealed (lane_codec.h).
#ifndef RAILSD_DAEMON_PEER_LANES_H_
#define RAILSD_DAEMON_PEER_LANES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/base/unique_fd.h"
#include "daemon/peer/lane_codec.h"

namespace railsd {

using LaneId = uint64_t;  // 0: none

// Called on the lanes' thread (OnLaneOpen() also by Take()), without any lock of theirs; a lane that was closed
// meanwhile may still be named.
class LaneHandler {
 public:
  virtual ~LaneHandler() = default;
  // The other end has shown that it has the key. Of a lane that was expected, before the other end knows.
  virtual void OnLaneOpen(LaneId lane) = 0;
  // What a lane that was expected has brought, in order. Valid during the call.
  virtual void OnLaneMessage(LaneId lane, absl::string_view message) = 0;
  // After Write() said kBusy: there is room again.
  virtual void OnLaneWritable(LaneId lane) = 0;
  // The last call for this lane, unless it was closed from here. `malformed`: for what it brought.
  virtual void OnLaneEnd(LaneId lane, const std::string& why, bool malformed) = 0;
};

// A thread of its own ("lanes"). All methods: any thread.
class Lanes {
 public:
  // Writes the message where it is told.
  using Fill = absl::FunctionRef<void(char* out)>;
  enum class Written {
    kTaken,
    kBusy,  // what was written before is still on its way into the socket
    kGone,  // not open
  };

  // `handshake`: so long may a lane take to open. `silence`: what the other end's kernel has not acknowledged for so
  // long ends it. `handler` outlives the lanes. Error: no descriptors are left.
  static absl::StatusOr<std::unique_ptr<Lanes>> Start(absl::Duration handshake, absl::Duration silence,
                                                      LaneHandler* handler);
  virtual ~Lanes() = default;  // joins the thread, closes everything

  // Dials "ip:port".
  virtual LaneId Dial(const std::string& address, const LaneKeys& keys) = 0;
  // A lane that a peer is about to dial. It may come once.
  virtual LaneId Expect(const LaneKeys& keys) = 0;
  // A connection whose first kLaneGreetingBytes bytes have come. False: it is closed, nobody expects it.
  virtual bool Take(UniqueFd connection) = 0;
  // One message of `size` bytes, of kMaxLaneMessageBytes at most, over a lane that was dialled here. Does not wait.
  virtual Written Write(LaneId lane, size_t size, Fill fill) = 0;
  // Forgets a lane; nothing for 0 and one that has ended.
  virtual void Close(LaneId lane) = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_LANES_H_
