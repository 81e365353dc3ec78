// The links to all peers: dials, greets, numbers, resends, detects silence. Implements the agent's ControlLink.
#ifndef RAILSD_DAEMON_PEER_PEER_HUB_H_
#define RAILSD_DAEMON_PEER_PEER_HUB_H_

#include <spdlog/fwd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/config/config.h"
#include "daemon/link/links.h"
#include "daemon/link/outbox.h"

namespace railsd {

struct PeerHubOptions {
  std::string node;
  BootId boot;
  std::string version;  // sent to peers
  std::vector<StaticPeerConfig> static_peers;
  DnsPeersConfig dns;
  absl::Duration lost_after = absl::Seconds(5);
  absl::Duration heartbeat = absl::Milliseconds(500);
  uint64_t max_message_bytes = 16 << 20;
  uint32_t max_world_size = 4096;
  OutboxLimits outbox;
  LinksOptions links = {};  // an empty `listen` means no peers. The hub sets `tick`, `silence` and `log`
  std::shared_ptr<spdlog::logger> log;
};

// Any thread reads these, relaxed.
struct PeerCounters {
  std::atomic<uint64_t> connects{0};            // connections whose HELLOs were accepted
  std::atomic<uint64_t> disconnects{0};         // ends of those connections
  std::atomic<uint64_t> refused{0};             // HELLOs with a wrong version, limit, name, boot id or rail
  std::atomic<uint64_t> identity{0};            // HELLOs with a name that the certificate does not have
  std::atomic<uint64_t> protocol_errors{0};     // connections ended because they broke the protocol
  std::atomic<uint64_t> messages_out{0};        // taken by Send()
  std::atomic<uint64_t> messages_in{0};         // given to the agent
  std::atomic<uint64_t> messages_dropped{0};    // sent to a node that is not up
  std::atomic<uint64_t> messages_held_back{0};  // job messages refused because the outbox to the node is too full
  std::atomic<uint64_t> duplicates{0};          // resent frames that were taken before
  std::atomic<uint64_t> own_addresses{0};       // addresses of this node that DNS lists among the peers'
  std::atomic<uint64_t> lost{0};                // links ended from this side
};

// Messages and bytes that wait for peers or are unacknowledged: the sum over all peers, and the largest of one peer.
struct OutboxDepths {
  size_t messages = 0, most_messages = 0;
  size_t bytes = 0, most_bytes = 0;
};

class PeerHub : public ControlLink {
 public:
  static std::unique_ptr<PeerHub> Make(PeerHubOptions options);
  // Stop() must have returned.
  ~PeerHub() override = default;

  // Listens and dials. `agent` outlives Stop(). UNAVAILABLE when the address cannot be bound.
  virtual absl::Status Start(Agent* agent) = 0;
  // Tells the peers, ends every connection, joins the threads. The agent is not called afterwards. Send() drops
  // messages from now on.
  virtual void Stop() = 0;

  virtual int port() const = 0;  // bound
  // Every configured or known peer with its state; `rails_up` is empty.
  virtual std::vector<PeerView> Peers() const = 0;
  virtual const PeerCounters& counters() const = 0;
  virtual OutboxDepths Outboxes() const = 0;
  // Replaces the list of static peers. New peers are dialled. Removed peers are not dialled again, but a link that is
  // up stays until it ends.
  virtual void SetStaticPeers(const std::vector<StaticPeerConfig>& peers) = 0;
  // Ends the connection to a node; a new one carries the link on. NOT_FOUND: no such peer. FAILED_PRECONDITION: it has
  // no connection now.
  virtual absl::Status Redial(const std::string& node) = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_PEER_HUB_H_
