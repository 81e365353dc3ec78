// The seam between rails and a network: one RailTransport is one rail of this node.
//
// One thread calls all methods but Wake() and Info(). A transport owns its endpoints (connections, queue pairs) to
// every peer of its rail and builds them in the background. It never blocks outside Poll(), and never allocates, locks
// or logs per order. The same suite, tests/conformance, runs against every implementation.
#ifndef RAILSD_AGENT_TRANSPORT_TRANSPORT_H_
#define RAILSD_AGENT_TRANSPORT_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/fixed_array.h"
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

// The zone of an exchange as the receiver's grant describes it, for transports that write into remote memory. Empty for
// other transports.
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
  using CountByRail = absl::FixedArray<std::atomic<uint64_t>, kUsualRails>;
  JobTag job;
  PeerIndex peer;
  MemoryRanges memory;  // the gather table, addressed by the offset in the stream
  ZoneRef zone;         // from the receiver's grant
  RemoteZone remote = {};
  Sending* sending = nullptr;      // the engine's; rails only carry it in their reports
  uint32_t inflow_ppm = 0;         // of the bytes that the job brings to the receiver; 0: not known
  uint16_t number = 0;             // names the exchange on the RailBoard
  bool urgent = false;             // goes before other jobs of its tenant
  RailRecords* records = nullptr;  // by rail; null: none are kept
  // By rail: bytes that the engine has given to the rail and the rail has not posted.
  mutable CountByRail unposted_bytes = CountByRail(kMaxMaskedRails);
  // Set when a page of the stream could not be read (kMemoryFault). Rails then send no fence of the stream.
  mutable std::atomic<bool> unreadable{false};
};

// One chunk to send: bytes [offset, offset + length) of a stream. Every order that Post() took ends in exactly one
// kSendDone event.
struct SendOrder {
  const SendStream* stream = nullptr;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;  // 0: a fence and nothing else
  uint64_t cookie = 0;        // comes back in the event
  // The connection that the order is for (RailEvent::connection). Unless this one is up, the order ends as kNotSent.
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
  DataKey key = {};     // shared by both daemons; authenticates connections that are not set up over the link
  uint64_t link = 0;    // numbers the links to the peer; an event carries the number of the link that it belongs to
  // The connection (RailEvent::connection) that was up when the peer's end of the rail lost its network link. A
  // transport whose ends do not detect that by themselves ends the connection if it is still the present one.
  uint64_t ended = 0;
};

enum class SendResult : uint8_t {
  kAcknowledged,  // the bytes are in the receiver's memory; the fence, if any, is at the receiver
  kZoneClosed,    // the receiver has closed the zone (exchange complete or aborted there)
  kStopped,       // StopSends() or RemovePeer() came first
  kMemoryFault,   // a page of the stream could not be read
  kNotSent,       // the connection broke before anything of the order was sent
  kRailFailed,    // the connection broke; the bytes may have arrived, may still arrive, or are lost
};

struct RailEvent {
  enum class Kind : uint8_t {
    kSendDone,      // cookie, result, length_bytes: the stream's memory is not touched any more
    kReceiveFault,  // peer, zone: a page of the zone could not be written. error_number not 0: it is not known whether
                    // bytes in the memory of a device have arrived there
    kZoneOpened,    // peer, zone, connection: this rail's keys are in the zone and are good for that connection.
                    // error_number not 0: they are not; ENOTCONN: the peer is not up on this rail, and other rails may
                    // carry the exchange
    kZoneClosed,    // zone: the answer to Unbind(): no key of this rail opens the zone any more
    kZoneQuiet,     // zone: the zone was closed in the table, and this rail was the last to leave it
    kFence,   // peer, zone, weight, round: all bytes of the exchange that the peer sent over this rail before the fence
              // are in memory
    kPeerUp,  // peer, cookie (RailPeer::link), connection: orders may be posted
    kPeerDown,  // peer, cookie (RailPeer::link), connection, error_number: the connection has ended. All orders posted
                // to it have come back, and all fences that it brought were published, before this event
    kLinkDown,  // error_number: this end of the rail has no network (ENETDOWN: no carrier, or switched off;
                // EADDRNOTAVAIL: no interface has its address). Comes before the kPeerDown of each connection that it
                // ends
    kLinkUp,    // this end of the rail works again
    kPeerStalled,  // peer, cookie (RailPeer::link). error_number not 0: the network has acknowledged no bytes sent to
                   // the peer for a while; 0: it acknowledges them again
    kBadPeer,      // peer: it broke the protocol (its connection was closed); see counters
    // Reports that the rail's thread makes from kSendDone for the engine (agent/rails/rail_sender.h). All but the last
    // two have `stream`. `settled`, in any of them: how many of the engine's assignments and release requests are done.
    kCarried,    // offset_bytes, length_bytes: acknowledged
    kFenceDone,  // weight, round: acknowledged; offset_bytes, length_bytes as of kCarried, unless there is nothing to
                 // tell
    kReturned,   // offset_bytes, length_bytes, weight, round: the rail gives them back, not posted, after a release or
                 // because the connection has ended
    kReleased,   // all that the rail could return for a release request has been returned
    kLost,  // offset_bytes, length_bytes: posted, and the connection has ended; the bytes may or may not have arrived
    kShareEnded,  // connection, weight, round: the connection has ended, and the whole share has come back. `doubtful`:
                  // posted bytes may be missing, so the weight does not go to other rails
    kSettled,     // the rail has nothing left of the exchange, and no kFenceDone has said so
    kSendFault,   // result, offset_bytes: an order was refused, or stopped, or its memory could not be read
    kDry,         // the rail has posted all its bytes, and another rail lags
    kStretch,     // length_bytes, nanoseconds: bytes that the rail carried in a time in which it was never idle
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
  // Numbers the connections of the rail to the peer in rising order. Both ends use the same number if the transport
  // binds zones.
  uint64_t connection = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  int64_t nanoseconds = 0;
  uint8_t weight = 0;
  uint32_t round = 0;
};

// The RDMA port of a rail, for display.
struct RailDevice {
  std::string name;  // "mlx5_0"; empty: the rail has no device
  uint32_t port = 0;
  std::string state;       // of the link: "active", "down", ...
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string gid;         // as an address; "lid N" on InfiniBand
  uint32_t gid_index = 0;
  uint32_t mtu_bytes = 0;
  bool windows = false;   // zones have keys of their own
  bool dma_bufs = false;  // registers memory of other devices
};

// Properties of a transport that never change.
struct TransportTraits {
  bool binds_zones = false;  // TransportInfo::binder is there
  // Zones that may be open at once: one fence of each may be under way.
  uint32_t zone_room = UINT32_MAX;
  // Rounds of one exchange that fences can tell apart.
  uint32_t max_rounds = UINT32_MAX;
};

// A second interface of transports whose peers write into this node's memory by RDMA. Zones are bound to keys, which
// the grant carries, and segments must be registered. The transport does not see which bytes have landed and leaves
// ReceiveZone::landed empty. Called by the thread that calls the transport.
class ZoneBinder {
 public:
  virtual ~ZoneBinder() = default;

  // Binds keys for the zone, which is open in the table, on the present connection to its peer. Yields kZoneOpened.
  virtual void Bind(std::shared_ptr<const ReceiveZone> zone) = 0;
  // Takes the keys back, or ends the binding that was lost with its connection. Yields kZoneClosed once nothing can
  // land in the zone over this rail any more. `writers_stopped` false: the peer has not said that it has stopped, so
  // the transport ends the connection to make sure.
  virtual void Unbind(ZoneRef zone, bool writers_stopped) = 0;
  // Takes a signal that the peer's end of this rail has sent through its SignalSink. The bytes are hostile.
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
  // Registers segments with the device; null if the transport needs no registration. May outlive the transport.
  std::shared_ptr<MemoryRegistrar> registrar = {};
  RailDevice device = {};  // as it is now
};

// Carries signals, by which the two ends of a rail connect, over the link: in order, each once, dropped while the peer
// is not up. Any thread; never blocks. A transport sends signals for a new connection only after the kPeerDown of the
// last one was taken out of Poll().
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
  // `out` nothing but Wake() or `max_wait` ends the wait. Every frame finds a zone that was opened in the table before
  // its grant was sent.
  virtual size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) = 0;
  // Ends a waiting Poll(), or else the next wait before it begins. Any thread.
  virtual void Wake() = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_TRANSPORT_H_
