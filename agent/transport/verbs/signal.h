// Signals: messages on the link by which the two ends of a rail connect their queue pairs.
//
// A message is at most kMaxSignalBytes: magic (4), version (2), kind (1), state (1), then the fields below in order,
// little-endian, strings with a length byte before them, lists with a count byte. Nothing may follow. Bytes come from a
// peer and are hostile: DecodeSignal() checks every length, count and range.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_SIGNAL_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_SIGNAL_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/base/ids.h"

namespace railsd::verbs {

inline constexpr uint16_t kSignalVersion = 1;
inline constexpr size_t kMaxSignalBytes = 4096;
inline constexpr size_t kMaxQueuePairsPerPeer = 64;

enum class LinkLayer : uint8_t { kInfiniBand = 1, kEthernet = 2 };

// The address of an end, to which the other end connects its queue pairs.
struct EndpointAddress {
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;  // 0 on Ethernet
  LinkLayer link_layer = LinkLayer::kEthernet;
  uint32_t mtu_bytes = 0;  // 256, 512, 1024, 2048 or 4096: the most that this end takes
  uint8_t max_dest_rd_atomic = 0;
  struct QueuePair {
    uint32_t number = 0;  // 24 bits
    uint32_t psn = 0;     // 24 bits: of its first packet
    friend bool operator==(const QueuePair&, const QueuePair&) = default;
  };
  std::vector<QueuePair> queue_pairs;
  friend bool operator==(const EndpointAddress&, const EndpointAddress&) = default;
};

// The state of the sender's present generation.
enum class LinkState : uint8_t {
  kInit = 0,       // has queue pairs, knows none of the peer's
  kConnected = 1,  // its queue pairs are connected to those of the generation in `answers`
  kUp = 2,         // has also heard that the peer's are connected to its own
};

enum class RefusalReason : uint8_t {
  kNone = 0,
  kVersion = 1,
  kUnknownNode = 2,
  kBoot = 3,
  kRail = 4,       // the rails would cross
  kLinkLayer = 5,  // InfiniBand at one end, Ethernet at the other
  kQueuePairs = 6,
};

struct Signal {
  enum class Kind : uint8_t {
    kHello = 1,    // the state of the sender's end
    kDown = 2,     // the sender's generation is broken; another will come
    kRefused = 3,  // the peer's signal was refused; `reason` and `text` say why
  };
  uint16_t version = kSignalVersion;
  Kind kind = Kind::kHello;
  LinkState state = LinkState::kInit;
  RefusalReason reason = RefusalReason::kNone;
  std::string node;          // the sender; at most 255 bytes
  RailIndex rail;            // the sender's
  std::string port;          // the sender's "device/port"
  BootId boot;               // the sender's
  BootId to_boot;            // of the daemon that the signal is for
  uint64_t generation = 0;   // the sender's, counted up with each new set of queue pairs
  uint64_t answers = 0;      // the peer's generation that it is connected to; 0: none
  EndpointAddress endpoint;  // kHello
  std::string text;          // kRefused: for people; at most 255 bytes
  friend bool operator==(const Signal&, const Signal&) = default;
};

// Strings are cut at 255 bytes.
std::string EncodeSignal(const Signal& signal);
// INVALID_ARGUMENT, saying what is wrong where. A signal of another version decodes to its version, with all other
// fields at their defaults; the caller refuses it.
absl::StatusOr<Signal> DecodeSignal(const std::string& bytes);

// For messages: "lid 5", or the address in the GID as text ("192.168.10.1", "fe80::1").
std::string GidText(const std::array<uint8_t, 16>& gid);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_SIGNAL_H_
