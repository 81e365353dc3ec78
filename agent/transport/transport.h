// The seam between the sprayer and a network: one RailTransport is one rail of this node.
//
// One thread calls all methods but Wake(). A transport owns its endpoints (connections, queue pairs) to every peer of
// its rail and builds them in the background; it never blocks outside Poll(), and never allocates, locks or logs per
// order. The same suite, tests/conformance, runs against every implementation.
#ifndef RAILSD_AGENT_TRANSPORT_TRANSPORT_H_
#define RAILSD_AGENT_TRANSPORT_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/base/data_key.h"
#include "agent/base/ids.h"
#include "agent/memory/memory_ranges.h"
#include "agent/memory/registration.h"
#include "agent/transport/receive_gate.h"

namespace railsd {

// Where a flow lands, for transports that write into remote memory: what the receiver's READY said. Empty for others.
struct RemoteZone {
  struct Piece {
    uint64_t offset_bytes = 0;  // in the flow
    uint64_t address = 0;       // in the receiver's daemon
    uint64_t length_bytes = 0;
    uint32_t first_key = 0;  // keys[first_key + rail] opens it on that rail
  };
  std::vector<Piece> pieces;  // in order of offset, without gaps
  std::vector<uint32_t> keys;
  FenceSlot fence;
};

// One flow as its sender sees it. Owned by the job; outlives every order that names it.
struct SendFlow {
  JobTag job;
  PeerIndex peer;       // node of the destination rank
  MemoryRanges memory;  // where the bytes are
  RemoteZone remote = {};
  // Bytes of the exchange (all flows to the peer) that are not acknowledged, over all rails: each counts its orders
  // down. Only a hint of when to look. May be null.
  std::atomic<uint64_t>* left_bytes = nullptr;
};

// One chunk to send: bytes [offset, offset + length) of a flow. Every order that Post() took ends in exactly one
// kSendDone event.
struct SendOrder {
  const SendFlow* flow = nullptr;
  ZoneRef zone;  // the receiver's answer in READY
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;  // more than 0, unless it is a fence
  uint64_t cookie = 0;        // comes back in the event
  // Not 0: a fence, for transports that write into remote memory. It lands after all orders of the flow that were
  // posted to this rail before it, and tells the receiver that so many rails send one in this round.
  uint8_t fences = 0;
  uint8_t round = 0;  // 4 bits
};

// The zones that one READY opened: for each flow of the peer's OFFER, in its order, where the bytes land.
struct ReceiveSet {
  PeerIndex peer;  // only this peer may write here
  uint32_t slot = 0;
  uint32_t generation = 0;
  // With a gate: read inside it only. Whoever closes it empty may clear them.
  mutable std::vector<MemoryRanges> zones;
  // For transports that write into remote memory; empty for others. `fences`: by zone; a zone without bytes has none,
  // whatever stands there. `keys`: by rail; each has an
  // entry of the set's making, and rail r fills keys[r] with one key for every range of every zone, in order, before
  // its kZonesOpened.
  std::vector<FenceSlot> fences;
  mutable std::vector<std::vector<uint32_t>> keys;
  // Bytes that have not arrived, over all rails: each counts its frames down. Only a hint of when to look (a hostile
  // peer can make it wrong); what has arrived is counted by kReceived.
  mutable std::atomic<uint64_t> left_bytes{0};
  // Of transports that place the bytes themselves: what the rails pass through on their way to the memory.
  mutable ReceiveGate gate;
};

// A peer's end of this rail, as its HELLO on the link told it.
struct RailPeer {
  PeerIndex peer;
  std::string node;     // for messages and for the check in the rail's own HELLO
  BootId boot;          // of the peer's daemon; another boot id is refused
  std::string address;  // transport-specific; for TCP "ip:port" or "[ip6]:port"
  DataKey key = {};     // that both daemons have, for transports whose connections do not come by the link
};

enum class SendResult : uint8_t {
  kAcknowledged,  // the bytes are in the receiver's memory
  kZoneClosed,    // the receiver has closed the zone (job complete or aborted there)
  kStopped,       // StopSends() or RemovePeer() came first
  kMemoryFault,   // a page of the flow could not be read
  kReturned,      // the connection broke; what the event names has not arrived and never will, the order's bytes
                  // before it have
  kRailFailed,    // the connection broke; the bytes may or may not have arrived
};

struct RailEvent {
  enum class Kind : uint8_t {
    kSendDone,      // cookie, result, length_bytes, job: the flow's memory is not touched any more
    kReceived,      // peer, zone, offset_bytes, length_bytes: in memory, whole frames only
    kReceiveFault,  // peer, zone: a page of the zone could not be written
    kZonesOpened,   // peer, zone.slot, zone.generation: this rail's keys are in the set. error_number: they are not;
                    // ENOTCONN: because the peer is not up on this rail, and the others may do without it
    kZonesClosed,   // peer, zone.slot, zone.generation: nothing of this rail touches them any more
    kFence,         // peer, zone, fences, round: all that the peer sent of the flow over this rail is in memory
    kPeerUp,        // peer, cookie (its boot id): orders may be posted
    kPeerDown,      // peer, cookie (its boot id), error_number: fences that it had sent over this connection were
                    // published, and orders posted to it came back, or do when its end has said what arrived
    kLinkDown,  // error_number: this end of the rail is cut off (ENETDOWN: no carrier, or switched off; EADDRNOTAVAIL:
                // no interface has its address). Before the kPeerDown of the connections that it ends
    kLinkUp,    // and it works again
    kPeerStalled,  // peer, cookie (its boot id): nothing of what was sent has been acknowledged by its network for a
                   // while (error_number not 0), or it has been again
    kBadPeer,      // peer: it broke the protocol (its connection was closed); see counters
  };
  Kind kind = Kind::kSendDone;
  SendResult result = SendResult::kAcknowledged;
  PeerIndex peer;
  bool last = false;  // kReceived: nothing of the set is left to come; kSendDone: nothing of the exchange is left to be
                      // acknowledged. Worth a look at once
  int32_t error_number = 0;  // errno, or 0
  ZoneRef zone;
  JobTag job;
  uint64_t cookie = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint8_t fences = 0, round = 0;
};

// For RailEvent::last: counts an acknowledged order down.
inline bool AcknowledgesLast(const SendOrder& order) {
  std::atomic<uint64_t>* const left = order.flow->left_bytes;
  return left == nullptr || left->fetch_sub(order.length_bytes, std::memory_order_relaxed) == order.length_bytes;
}

// Written by the rail's thread only, read by anybody (relaxed).
struct RailCounters {
  using Counter = std::atomic<uint64_t>;
  Counter tx_payload_bytes{0}, rx_payload_bytes{0};  // acknowledged; arrived whole
  Counter tx_chunks{0}, rx_chunks{0};                // orders acknowledged; frames arrived whole
  // System calls that moved payload; of verbs: posts of chains of work requests, sleeps until the next completion.
  Counter tx_frames{0}, tx_system_calls{0}, rx_system_calls{0}, polls{0};
  Counter rx_discarded_bytes{0};   // for zones closed or unknown
  Counter protocol_errors{0};      // connections closed for what they sent
  Counter refused_connections{0};  // HELLO of the wrong version, node, boot id or rail
  Counter connects{0}, disconnects{0}, connect_failures{0};
  Counter posted_bytes{0};  // gauge: taken by Post(), not done yet
  // Of transports that write into remote memory; 0 for others.
  Counter work_requests{0}, completions{0};  // posted; polled
  Counter tx_fences{0}, rx_fences{0};
  Counter weak_zones{0};       // opened with a key that opens the whole segment
  Counter endpoint_errors{0};  // queue pairs that went into error
  Counter queue_pairs{0};      // gauge
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

// Carries what the two ends of a rail have to tell each other outside of it (how to connect, what arrived before a
// connection broke), over the link: in order, each once, dropped while the peer is not up. Any thread; never
// blocks. A connection that has ended is told to the
// engine (kPeerDown taken out of Poll()) before anything is sent to make the next one.
class SignalSink {
 public:
  virtual ~SignalSink() = default;
  virtual void Send(PeerIndex peer, std::string bytes) = 0;
};

class RailTransport {
 public:
  virtual ~RailTransport() = default;

  // The address that peers dial, with the port that was really bound; of a device "verbs:NAME/PORT".
  virtual std::string LocalAddress() const = 0;

  // Keeps endpoints to `peer` (replacing those to an older boot id or address) until RemovePeer(): connects, says
  // HELLO, reconnects with back-off. kPeerUp and kPeerDown tell the state.
  virtual void SetPeer(const RailPeer& peer) = 0;
  // Orders still posted to it yield kStopped; no kPeerDown follows.
  virtual void RemovePeer(PeerIndex peer) = 0;

  // Takes orders from the front of `orders`; returns how many. Fewer than all when a queue is full. Orders for a peer
  // that is not up are taken and come back kReturned (kRailFailed when WritesRemotely()).
  virtual size_t Post(absl::Span<const SendOrder> orders) = 0;

  // Ends the job's orders early: each still yields its kSendDone (kStopped unless it was done already), and after it
  // the flow's memory is not read any more.
  virtual void StopSends(JobTag job) = 0;

  // Lets frames for these zones land until CloseZones(). Frames for other zones are drained and answered kZoneClosed.
  // Yields kZonesOpened when WritesRemotely().
  virtual void OpenZones(std::shared_ptr<const ReceiveSet> zones) = 0;
  // Yields kZonesClosed once nothing can land in the set any more. A frame that is half received is drained from here
  // on. `writers_stopped` false: the peer has not said that it has stopped; a transport that writes into remote memory
  // then makes sure by itself, at the cost of its connection.
  virtual void CloseZones(uint32_t slot, uint32_t generation, bool writers_stopped) = 0;

  // True: peers write into this node's memory by themselves. Then READY waits for kZonesOpened of every rail and
  // carries their keys, orders need SendFlow::remote, fences say what has arrived (there is no kReceived), and segments
  // must be registered.
  virtual bool WritesRemotely() const { return false; }
  // Fences that can be under way to this rail at once. READYs wait until theirs have room; one alone may go past it.
  virtual uint32_t FenceRoom() const { return UINT32_MAX; }
  // Makes segments known to the device; null where that is not needed. Outlives the transport if it must.
  virtual std::shared_ptr<MemoryRegistrar> registrar() const { return nullptr; }
  // What the peer's end of this rail has sent through its SignalSink; hostile.
  virtual void OnSignal(PeerIndex /*peer*/, const std::string& /*bytes*/) {}

  // Makes progress and fills `out` with up to its size of events; returns how many. Waits up to `max_wait` when there
  // is nothing to do. What does not fit stays for the next call, and receiving pauses meanwhile. With an empty `out`
  // nothing but Wake() or `max_wait` ends the wait.
  // A frame for a zone that is not open is not judged by the Poll() that first sees it: that call returns (perhaps with
  // no event), and only if the zone is still not open at the next call is the frame drained as kZoneClosed. So a
  // caller that opens a zone before telling anybody of it, and looks at what it owes between two calls, loses no frame.
  virtual size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) = 0;
  // Ends a waiting Poll(), or else the next wait before it begins. Any thread.
  virtual void Wake() = 0;

  virtual const RailCounters& counters() const = 0;
  // As it is now. Any thread, now and then; may lock.
  virtual RailDevice Device() const { return {}; }
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_TRANSPORT_H_
