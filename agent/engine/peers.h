// The other nodes, as this agent knows them: names, boot ids, which rails reach them.
#ifndef RAILSD_AGENT_ENGINE_PEERS_H_
#define RAILSD_AGENT_ENGINE_PEERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/base/ids.h"
#include "agent/base/rail_mask.h"
#include "agent/control/messages.h"
#include "agent/transport/transport.h"

namespace railsd {

struct PeerRail {
  bool known = false;       // the peer has a rail of this index
  uint64_t connection = 0;  // the present or latest one, as RailEvent::connection
  double speed_bytes_per_s = 0;
  std::string address;
  std::shared_ptr<const RailPeer> end;  // as the rail knows it
  uint64_t tx_bytes = 0, rx_bytes = 0;  // payload of jobs, each byte once; rx of closed zones only; never set back
  mutable uint64_t shown_rx_bytes = 0;  // rx_bytes with open zones, as the last view had it: it never falls
  uint64_t planned_rx_bytes = 0;        // put onto it by the peer's plans, as it tells; never set back
  uint64_t told_planned_bytes = 0;      // as the peer told it last; from 0 when the peer has restarted
};

struct Peer {
  PeerIndex index;
  std::string node;
  BootId boot;
  bool up = false;
  uint64_t link = 0;                    // how often it has come up
  bool forgotten = false;               // not shown any more; its index and its counts stay
  std::string why = "never connected";  // when not up
  std::vector<PeerRail> rails;          // by this node's rail index
  RailMask connected = 0;               // rails whose data connection is up; none while the peer is not up
  RailMask usable = ~RailMask{0};       // rails whose health allows new work
  BytesByRail planned_tx_bytes;         // by plans of this node; from 0 when the peer has restarted
  RailMask told_unusable = 0;           // this node's ends that the peer was told are unusable, on any link
  absl::Duration ready_wait;            // that jobs of this node have waited for its READYs; never set back
  // While it is up: since when no rail reaches it.
  absl::Time stranded_since = absl::InfiniteFuture();

  // Rails that can carry new work.
  RailMask Paths() const { return connected & usable; }
  // The rails of `allowed` that can carry an exchange: connected ones that are usable, or all connected ones when none
  // of them is usable.
  RailMask Targets(RailMask allowed) const {
    const RailMask live = connected & allowed;
    return (live & usable) != 0 ? live & usable : live;
  }
  // Takes the total bytes that the peer's plans have put onto each rail towards this node, as the peer tells.
  void TakePlanned(absl::Span<const uint64_t> by_rail);
  // Call after rails have come up or failed.
  void UpdateStranded(absl::Time now);
};

// Owned by the engine's thread. Indexes are given once per node name and never reused.
class PeerTable {
 public:
  PeerTable(std::string self, size_t rails) : self_(std::move(self)), rails_(rails) {}

  const std::string& self() const { return self_; }
  // The peer of that name; created on first sight.
  Peer& FindOrAdd(const std::string& node);
  Peer* Find(absl::string_view node);
  Peer& Get(PeerIndex index) { return *peers_[index.value()]; }
  const Peer& Get(PeerIndex index) const { return *peers_[index.value()]; }
  size_t size() const { return peers_.size(); }
  const std::vector<std::unique_ptr<Peer>>& all() { return peers_; }

  // Takes over what a HELLO says; rails the peer lacks become unknown.
  void Update(Peer& peer, const PeerHello& hello);

  // Place in the order in which this node should start sending: the names after its own come first, then those from the
  // beginning, so that node k starts with node k + 1 and no receiver is hit by all at once.
  uint32_t PlaceOf(PeerIndex peer) const { return places_[peer.value()]; }

 private:
  const std::string self_;
  const size_t rails_;
  std::vector<std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::string, PeerIndex> by_name_;
  std::vector<uint32_t> places_;  // by index
};

}  // namespace railsd

#endif  // RAILSD_AGENT_ENGINE_PEERS_H_
