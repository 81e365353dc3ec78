// The seam between rails and a network: one RailTransport is one rail of this node.
//
// One thread calls all methods but Wake() and Info(). A transport owns its endpoints (connections, queue pairs) to
// every peer of its rail and builds them in the background. It never blocks outside Poll(), and never allocates, locks
// or logs per order. The same suite, tests/conformance, runs against every implementation.
#ifndef RAILSD_AGENT_TRANSPORT_TRANSPORT_H_
#define RAILSD_AGENT_TRANSPORT_TRANSPORT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/base/data_key.h"
#include "agent/base/ids.h"
#include "agent/base/rail_mask.h"
#include "agent/memory/memory_ranges.h"
#include "agent/memory/registration.h"
#include "agent/transport/rail_counters.h"
#include "agent/transport/zone_table.h"

namespace railsd {

// Where an exchange lands, for transports that write into remote memory: from the receiver's grant. Empty for others.
struct RemoteZone {
  struct Piece {
    uint64_t offset_bytes = 0;  // in the stream
    uint64_t address = 0;       // in the receiver's daemon
    uint64_t length_bytes = 0;
  };
  std::vector<Piece> pieces;  // in order of offset, without gaps
  // By rail: one key for every piece. The keys of a rail change only while nothing of the exchange is posted to it.
  std::vector<std::vector<uint32_t>> keys;
};

class RailRecords;
class Sending;

// One exchange as its sender sees it. Owned by the job; outlives every order that names it.
struct SendStream {
  JobTag job;
  PeerIndex peer;
  MemoryRanges memory;  // the gather table, addressed by the offset in the stream
  ZoneRef zone;         // from the receiver's grant
  RemoteZone remote = {};
  Sending* sending = nullptr;      // the engine's; rails only carry it in their reports
  uint16_t number = 0;             // names the exchange on the RailBoard
  RailRecords* records = nullptr;  // by rail; null: none are kept
  // By rail: bytes that the engine has given to it and that it has not posted.
  mutable std::array<std::atomic<uint64_t>, kMaxMaskedRails> unposted_bytes = {};
  // A page of it could not be read (kMemoryFault): no rail sends a fence of it any more.
  mutable std::atomic<bool> unreadable{false};
};

// One chunk to send: bytes [offset, offset + length) of a stream. Every order that Post() took ends in exactly one
// kSendDone event.
struct SendOrder {
  const SendStream* stream = nullptr;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;  // 0: a fence and nothing else
  uint64_t cookie = 0;        // comes back in the event
  // The connection that it is meant for (RailEvent::connection). Over another one nothing of it is sent: it ends
  // kNotSent.
  uint64_t connection = 0;
  // Not 0: a fence of this weight follows the bytes. It arrives after all orders of the exchange that were posted to
  // this rail before it, and says that their bytes are in memory.
  uint8_t weight = 0;
  uint32_t round = 0;  // of the fence
};

// The weights of one round's fences add up to this.
inline constexpr uint32_t kWholeWeight = 255;

// A peer's end of this rail, as its HELLO on the link told it.
struct RailPeer {
  PeerIndex peer;
  std::string node;     // for messages and for the check in the rail's own HELLO
  BootId boot;          // of the peer's daemon; another boot id is refused
  std::string address;  // transport-specific; for TCP "ip:port" or "[ip6]:port"
  DataKey key = {};     // that both daemons have, for transports whose connections do not come by the link
  uint64_t link = 0;    // numbers the links to the peer; comes back in events, which may tell of an earlier one
  // The connection, as RailEvent::connection, under which the peer's end has lost its link. Transports whose ends do
  // not hear of that otherwise end it, if it is still the present one.
  uint64_t ended = 0;
};

enum class SendResult : uint8_t {
  kAcknowledged,  // the bytes are in the receiver's memory; the fence, if any, is at the receiver
  kZoneClosed,    // the receiver has closed the zone (exchange complete or aborted there)
  kStopped,       // StopSends() or RemovePeer() came first
  kMemoryFault,   // a page of the stream could not be read
  kNotSent,       // the connection broke before anything of the order was sent
  kRailFailed,    // the connection broke; the bytes may or may not have arrived, or arrive yet
};

struct RailEvent {
  enum class Kind : uint8_t {
    kSendDone,      // cookie, result, length_bytes: the stream's memory is not touched any more
    kReceiveFault,  // peer, zone: a page of the zone could not be written
    kZoneOpened,    // peer, zone, connection: this rail's keys are in the zone, good for that connection. error_number:
                    // they are not; ENOTCONN: because the peer is not up on this rail, and others may do without it
    kZoneClosed,    // zone: the answer to Unbind(): nothing that the rail has bound opens it any more
    kZoneQuiet,     // zone: it was closed in the table while the rail was inside, which is out now
    kFence,     // peer, zone, weight, round: all that the peer sent of the exchange over this rail before is in memory
    kPeerUp,    // peer, cookie (RailPeer::link), connection: orders may be posted
    kPeerDown,  // peer, cookie (RailPeer::link), connection, error_number: it has ended. All orders posted to it have
                // come back, and all fences that it brought were published, before this event
    kLinkDown,  // error_number: this end of the rail is cut off (ENETDOWN: no carrier, or switched off; EADDRNOTAVAIL:
                // no interface has its address). Before the kPeerDown of the connections that it ends
    kLinkUp,    // and it works again
    kPeerStalled,  // peer, cookie (RailPeer::link): nothing of what was sent has been acknowledged by its network for a
                   // while (error_number not 0), or it has been again
    kBadPeer,      // peer: it broke the protocol (its connection was closed); see counters
    // Reports that the rail's thread makes of kSendDone for the engine (agent/rails/rail_sender.h). `stream` in all of
    // them but the last two; `settled` in any: so many of the engine's assignments, and requests to release, are done
    // with.
    kCarried,    // offset_bytes, length_bytes: acknowledged
    kFenceDone,  // weight, round: acknowledged
    kReturned,   // offset_bytes, length_bytes, weight, round: not posted, and not here any more; released, or given for
                 // a connection that has ended
    kReleased,   // everything that was asked back has been returned, as far as it could be
    kLost,       // offset_bytes, length_bytes: posted, the connection ended, nobody knows
    kShareEnded,  // connection, weight, round: it has ended, and all of the exchange that the rail had has come back.
                  // `doubtful`: what the rail posted may be missing, and the weight stays behind
    kSettled,     // nothing of the exchange is left here, although no fence says so
    kSendFault,   // result, offset_bytes: an order was refused, or stopped, or its memory could not be read
    kDry,         // nothing is left to be posted, and another rail lags
    kStretch,     // length_bytes, nanoseconds: the rail has carried so much in a time in which it was never idle
  };
  Kind kind = Kind::kSendDone;
  SendResult result = SendResult::kAcknowledged;
  PeerIndex peer = {};
  bool doubtful = false;
  uint32_t settled = 0;
  const SendStream* stream = nullptr;
  int32_t error_number = 0;  // errno, or 0
  ZoneRef zone = {};
  JobTag job = {};
  uint64_t cookie = 0;
  // Numbers the connections of the rail to that peer, rising. Both ends number alike if the transport binds zones.
  uint64_t connection = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  int64_t nanoseconds = 0;
  uint8_t weight = 0;
  uint32_t round = 0;
};

// The port of an RDMA device under a rail, for people.
struct RailDevice {
  std::string name;  // "mlx5_0"; empty: the rail has no device
  uint32_t port = 0;
  std::string state;       // of the link: "active", "down", ...
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string gid;         // as an address; of InfiniBand without a GRH "lid N"
  uint32_t gid_index = 0;
  uint32_t mtu_bytes = 0;
  bool windows = false;  // zones have keys of their own
};

// Properties of a transport that never change.
struct TransportTraits {
  bool binds_zones = false;  // TransportInfo::binder is there
  // Zones that may be open at once: one fence of each may be under way.
  uint32_t zone_room = UINT32_MAX;
  // Rounds of one exchange that fences can tell apart.
  uint32_t max_rounds = UINT32_MAX;
};

// A second role of transports whose peers write into this node's memory by themselves: zones are bound to keys, which
// the grant carries, segments must be registered, and the bytes that have landed are not seen (ReceiveZone::landed).
// Called by the thread that calls the transport.
class ZoneBinder {
 public:
  virtual ~ZoneBinder() = default;

  // Binds keys for the zone, which is open in the table, on the present connection to its peer. Yields kZoneOpened.
  virtual void Bind(std::shared_ptr<const ReceiveZone> zone) = 0;
  // Takes the keys back, or ends the binding that was lost with its connection. Yields kZoneClosed once nothing can
  // land in the zone over this rail any more. `writers_stopped` false: the peer has not said that it has stopped; the
  // transport then makes sure by itself, at the cost of the connection.
  virtual void Unbind(ZoneRef zone, bool writers_stopped) = 0;
  // Takes what the peer's end of this rail has sent through its SignalSink; hostile.
  virtual void OnSignal(PeerIndex peer, const std::string& bytes) = 0;
};

struct TransportInfo {
  TransportTraits traits() const { return {binder != nullptr, zone_room, max_rounds}; }

  // The address that peers dial, with the port that was really bound; of a device "verbs:NAME/PORT".
  std::string address;
  ZoneBinder* binder = nullptr;  // lives as long as the transport; null where nothing is bound
  uint32_t zone_room = TransportTraits().zone_room;
  uint32_t max_rounds = TransportTraits().max_rounds;
  const RailCounters* counters = nullptr;  // lives as long as the transport
  // Makes segments known to the device; null where that is not needed. Outlives the transport if it must.
  std::shared_ptr<MemoryRegistrar> registrar = {};
  RailDevice device = {};  // as it is now
};

// Carries what the two ends of a rail have to tell each other outside of it to connect, over the link: in order, each
// once, dropped while the peer is not up. Any thread; never blocks. A connection that has ended is told to the engine
// (kPeerDown taken out of Poll()) before anything is sent to make the next one.
class SignalSink {
 public:
  virtual ~SignalSink() = default;
  virtual void Send(PeerIndex peer, std::string bytes) = 0;
};

class RailTransport {
 public:
  virtual ~RailTransport() = default;

  // Any thread, now and then; may lock.
  virtual TransportInfo Info() = 0;

  // Keeps endpoints to `peer` (replacing those to an older boot id or address) until RemovePeer(): connects, says
  // HELLO, reconnects with back-off. kPeerUp and kPeerDown tell the state.
  virtual void SetPeer(const RailPeer& peer) = 0;
  // Orders still posted to it yield kStopped; no kPeerDown follows.
  virtual void RemovePeer(PeerIndex peer) = 0;

  // Takes orders from the front of `orders`; returns how many. Fewer than all when a queue is full. Orders for a peer
  // that is not up are taken and come back kNotSent.
  virtual size_t Post(absl::Span<const SendOrder> orders) = 0;
  // Ends the job's orders early: each still yields its kSendDone (kStopped unless it was done already), and after it
  // the stream's memory is not read any more.
  virtual void StopSends(JobTag job) = 0;

  // Makes progress and fills `out` with up to its size of events; returns how many. Waits up to `max_wait` when there
  // is nothing to do. Events that do not fit stay for the next call, and receiving pauses meanwhile. With an empty
  // `out` nothing but Wake() or `max_wait` ends the wait. A zone that is opened in the table before anybody is told of
  // it is there for every frame that comes for it.
  virtual size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) = 0;
  // Ends a waiting Poll(), or else the next wait before it begins. Any thread.
  virtual void Wake() = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_TRANSPORT_H_
