// The links to all peers: dials, greets, numbers, resends, detects silence. Implements the agent's ControlLink.
// peer_hub.cc starts, stops, dials and ticks; hub_greeting.cc opens and ends connections; hub_messages.cc sends and
// delivers messages.
#ifndef RAILSD_DAEMON_PEER_PEER_HUB_H_
#define RAILSD_DAEMON_PEER_PEER_HUB_H_

#include <spdlog/fwd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/config/config.h"
#include "daemon/link/connection.h"
#include "daemon/link/link_state.h"
#include "daemon/link/links.h"
#include "daemon/link/outbox.h"
#include "daemon/peer/failure_counts.h"
#include "daemon/peer/name_lookup.h"
#include "daemon/peer/peer_conversion.h"
#include "daemon/peer/reach_probe.h"

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

inline constexpr absl::Duration kFirstRedial = absl::Milliseconds(50);
inline constexpr absl::Duration kMaxRedial = absl::Seconds(1);
inline constexpr char kNotReached[] = "not reached yet";
// How long Peers() lists a lost peer that is neither configured nor in DNS.
inline constexpr absl::Duration kKeepPeer = absl::Minutes(10);

// One other node.
struct HubPeer {
  HubPeer(std::string name, absl::Duration lost_after, uint32_t generation, OutboxLimits limits)
      : node(std::move(name)), link(lost_after, generation), outbox(limits) {}
  const std::string node;
  LinkState link;
  Outbox outbox;
  Inbox inbox;
  uint64_t acknowledged_in = 0;    // highest number acknowledged to the peer
  bool acknowledge_again = false;  // the connection took no acknowledgement
  // The link's key for data connections. The lower node name draws it after it has checked the other's HELLO.
  std::optional<DataKey> key;
  uint64_t max_message_bytes = 0;
  std::string software;      // daemon version in the peer's last HELLO
  ConnectionPtr connection;  // carries the link now, or null
  ConnectionOrigin origin;   // of `connection`
  bool confirmed = false;    // the other end of `connection` has accepted this node's HELLO
  uint64_t connections = 0;  // that have carried the link
  absl::Time last_write;
  std::optional<StaticPeerConfig> config;
  std::string why = kNotReached;
  absl::Time keep_until = absl::InfinitePast();  // Peers() lists it until then, after it was up or configured
  std::string dial_failure;                      // of the last dial while the link is up
  std::string silence;                           // why the peer is silent, while the link is up and groups wait for it
  ReachProbe probe;                              // of ReachedAt() or `looked_at`
  std::string looked_at;                         // address that LookForAddress() probes
};

// One address to dial.
struct Target {
  std::string address;             // as configured or found: a name or a numeric address
  std::string expected_node;       // name of the static peer, or empty
  std::string node;                // name in the HELLO that answered
  std::vector<std::string> found;  // addresses of a name, tried in turn
  size_t next_found = 0;
  bool looking_up = false;
  std::string reached_at;    // numeric address of the last connection that was answered
  ConnectionPtr connection;  // dialled or in use, or null
  std::string refusal;       // why one end refused the last connection
  absl::Time next_dial = absl::InfinitePast();
  absl::Duration back_off = kFirstRedial;
  bool redial = false;  // at the next tick, though the link has a connection
  bool self = false;    // this node's own address
  bool present = true;  // in the configuration or in DNS

  // The node that is expected there, or was; may be empty.
  const std::string& name() const { return expected_node.empty() ? node : expected_node; }
};

// One connection, from OnOpen() or the dial to its end.
struct Visit {
  Target* target = nullptr;              // null if the other end dialled
  bool greeted = false;                  // the other end's HELLO has come
  HubPeer* peer = nullptr;               // set when its HELLO was accepted
  uint32_t generation = 0;               // link generation in this node's HELLO
  std::optional<uint64_t> redial_after;  // of Redial(): HubPeer::connections before
  uint64_t own_hello = 0;                // count of this node's HELLO
  bool logged = false;                   // why this node ended it
};

// Any thread may call its methods, from Start() to Stop().
class PeerHub final : public ControlLink, public ConnectionHandler {
 public:
  explicit PeerHub(PeerHubOptions options);
  // Stop() must have returned.
  ~PeerHub() override = default;

  // Listens and dials. `agent` outlives Stop(). UNAVAILABLE when the address cannot be bound.
  absl::Status Start(Agent* agent);
  // Tells the peers, ends every connection, joins the threads. The agent is not called afterwards. Send() drops
  // messages from now on.
  void Stop();

  int port() const { return links_ ? links_->port() : 0; }  // bound
  // Every configured or known peer with its state; `rails_up` is empty.
  std::vector<PeerView> Peers() const;
  const PeerCounters& counters() const { return counters_; }
  OutboxDepths Outboxes() const;
  // Replaces the list of static peers. New peers are dialled. Removed peers are not dialled again, but a link that is
  // up stays until it ends.
  void SetStaticPeers(const std::vector<StaticPeerConfig>& peers);
  // Dials a node whose link is up. The new connection replaces the present one; if it fails, that one stays, and
  // PeerView::dial_failure says why. NOT_FOUND: no such peer. FAILED_PRECONDITION: it has no connection now, or no
  // address is known of it.
  absl::Status Redial(const std::string& node);

  void Send(const std::string& node, ControlMessage message) override;
  absl::Status SendIfItFits(const std::string& node, ControlMessage&& message) override;
  void SetPatience(const std::string& node, absl::Duration patience) override;

  void OnOpen(const ConnectionPtr& connection) override;
  void OnFrame(const ConnectionPtr& connection, const Frame& frame) override;
  void OnWritable(const ConnectionPtr& connection) override;
  void OnEnd(const ConnectionPtr& connection, const absl::Status& why) override;
  void OnTick(absl::Time now) override;

 private:
  friend class HubByHand;  // tests bring their own connections and clock

  // How much of a peer's outbox a message may fill.
  enum class Share : uint8_t { kAll, kJobs };
  // RESOURCE_EXHAUSTED: the message is longer than the peer takes, or exceeds its share. `receipt`: as Outbox::Push().
  absl::Status Enqueue(HubPeer& peer, std::string message, std::optional<Epoch> epoch, Share share,
                       std::optional<JobKey> receipt = std::nullopt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckShare(const HubPeer& peer, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null while the node is not up. The message then counts as dropped.
  HubPeer* Receiver(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HubPeer* FindPeer(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // or null
  HubPeer* FindOrAddPeer(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `expected_node` empty: any.
  Target* FindOrAddTarget(const std::string& address, const std::string& expected_node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStaticPeers(const std::vector<StaticPeerConfig>& peers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dial(Target& target, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `then`: frames written right behind the HELLO.
  void SayHello(const ConnectionPtr& connection, Visit& visit, const HubPeer* peer, absl::string_view then = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks that the other end's certificate has the name in its HELLO. OK over plain text.
  absl::Status CheckIdentity(const PeerHello& hello, const std::vector<std::string>& certificate_names)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks a HELLO against the configuration.
  absl::Status CheckPeer(const PeerHello& hello, const std::string& expected_node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks that the HELLO does not carry the boot id of another node. Boot ids name epochs: with another node's boot id
  // a peer could claim that node's epochs, and that node's own messages about them would count as known.
  absl::Status CheckBoot(const PeerHello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refuses a second daemon of a name while the first one speaks, so that the two do not take the link from each other
  // in turns. A daemon that has restarted is not refused, because its old connection is closed or silent.
  absl::Status CheckName(const PeerHello& hello, const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnHello(const ConnectionPtr& connection, Visit& visit, absl::string_view body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies a checked HELLO to the link. Decides which connection carries the link.
  void Greet(const ConnectionPtr& connection, Visit& visit, const HelloFacts& facts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(const ConnectionPtr& connection, Visit& visit, const std::string& node, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a connection for a fault of the other end. Logs it, and dials it again less often.
  void EndFor(const ConnectionPtr& connection, Visit& visit, absl::string_view event, absl::string_view node,
              const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CarryLink(HubPeer& peer, const ConnectionPtr& connection, const HelloFacts& facts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A KEY frame, or empty if the peer has the lower name and draws the key.
  std::string KeyFrame(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnKey(const ConnectionPtr& connection, HubPeer& peer, absl::string_view key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Called for a frame that shows that the other end has accepted this node's HELLO. False: the peer has not sent the
  // key that it draws, and the connection is broken off.
  bool Heard(const ConnectionPtr& connection, HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the link up: the other end has accepted this node's HELLO, and both ends have the key.
  void Confirm(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closes the connection. Sends the reason first, if the socket takes it at once.
  void EndConnection(const ConnectionPtr& connection, FrameKind kind, absl::string_view why);
  // Ends a connection that broke the protocol. Ends its link too, because delivery in order and exactly once can no
  // longer be kept.
  void Break(const ConnectionPtr& connection, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles a message or a part. Parses outside the lock.
  void OnNumbered(const ConnectionPtr& connection, const Frame& frame) ABSL_LOCKS_EXCLUDED(mutex_);
  void Deliver(HubPeer& peer, absl::StatusOr<ControlMessage> message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The peer whose link the connection carries now, or null.
  HubPeer* PeerOf(const ConnectionPtr& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the agent which READYs with eager bytes the peer has taken.
  void TellTaken(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AcknowledgeIfMany(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends an acknowledgement, which is also the heartbeat.
  void Acknowledge(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pump(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResetLink(HubPeer& peer, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `ended`: the peer's daemon has ended, or is about to.
  void Lose(HubPeer& peer, const std::string& why, bool ended = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportDown(HubPeer& peer, const std::string& why, bool ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles a silent peer: closes its connection so that it is dialled again. Ends the link once no group waits for it.
  void OnSilence(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if this process itself did not run since the last tick: it was stopped, suspended with its machine, or
  // starved. Peers that seem silent may then be fine.
  bool NotePause(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns `why`. Puts this process's own pause before it, if one ended less than `lost_after` ago.
  std::string WithOwnPause(const std::string& why, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnLookedUp(const std::string& address, const NameLookup::Addresses& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDnsAddresses(const NameLookup::Addresses& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets why the node of a dial that failed is not reached. Logs it once dials have failed for about a second.
  void OnDialFailed(Target& target, const Visit& visit, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs a failure, unless the same one was logged less than a minute ago.
  void LogFailure(spdlog::level::level_enum level, absl::string_view event, absl::string_view node,
                  absl::string_view address, absl::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Probes the address of a peer whose link is up but in trouble. True: its daemon is gone, and the link was ended.
  bool IsDead(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ReachedAt(const HubPeer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds an address for a peer that dialled this node, so that IsDead() can probe it later.
  void LookForAddress(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next numeric address to dial. Empty while the name is looked up.
  std::string NextAddress(Target& target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickPeer(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets peers that are not configured, have no connection and are at no known address: at once if never up, else
  // after kKeepPeer. Needed because over plain text with peers.dns any HELLO adds a peer.
  void ForgetPeers(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool InUse(const HubPeer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PeerHubOptions options_;
  PeerCounters counters_;
  mutable absl::Mutex mutex_;  // taken before a connection's mutex and the agent's queue
  Agent* agent_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Dialler* dialler_ ABSL_GUARDED_BY(mutex_) = nullptr;
  PeerHello own_hello_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t hellos_ ABSL_GUARDED_BY(mutex_) = 0;
  // The highest own generation of the forgotten peers. A forgotten peer's daemon may still know its generation, so new
  // peers begin above this one.
  uint32_t forgotten_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<HubPeer>> peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Target>> targets_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ConnectionPtr, Visit> visits_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time pause_ended_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
  FailureCounts failures_ ABSL_GUARDED_BY(mutex_);
  const std::string dns_address_;                                       // "name:port" of peers.dns; empty: off
  absl::Time next_dns_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // infinite while it is looked up
  std::unique_ptr<NameLookup> lookup_ ABSL_GUARDED_BY(mutex_);          // from Start() to Stop()
  std::unique_ptr<Links> links_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_PEER_HUB_H_
