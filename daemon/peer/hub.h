// The hub's state and methods. Private to daemon/peer: peer_hub.cc has its life, its lists and its clock,
// hub_greeting.cc how connections begin and end, hub_messages.cc messages on their way.
#ifndef RAILSD_DAEMON_PEER_HUB_H_
#define RAILSD_DAEMON_PEER_HUB_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/link/connection.h"
#include "daemon/link/link_state.h"
#include "daemon/link/outbox.h"
#include "daemon/peer/name_lookup.h"
#include "daemon/peer/peer_conversion.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/peer/reach_probe.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {

namespace pb = rails::peer::v1;

inline constexpr absl::Duration kFirstRedial = absl::Milliseconds(50);
inline constexpr absl::Duration kMaxRedial = absl::Seconds(1);
inline constexpr char kNotReached[] = "not reached yet";
// How long a peer that is gone, and neither configured nor in DNS, is still shown.
inline constexpr absl::Duration kKeepPeer = absl::Minutes(10);

// One other node.
struct HubPeer {
  HubPeer(std::string name, absl::Duration lost_after, uint32_t generation, OutboxLimits limits)
      : node(std::move(name)), link(lost_after, generation), outbox(limits) {}
  const std::string node;
  LinkState link;
  Outbox outbox;
  Inbox inbox;
  uint64_t acknowledged_in = 0;  // what the peer was told
  // Of the link, for data connections. The lower name draws it when it has checked the other's HELLO.
  std::optional<DataKey> key;
  uint64_t max_message_bytes = 0;
  std::string software;      // its daemon's version, as it said last
  ConnectionPtr connection;  // that carries the link now
  ConnectionOrigin origin;   // its
  bool confirmed = false;    // likewise: the other end has accepted this node's HELLO
  uint64_t connections = 0;  // that have carried the link
  absl::Time last_write;
  std::optional<StaticPeerConfig> config;
  std::string why = kNotReached;
  absl::Time keep_until = absl::InfinitePast();  // once it was up or configured: for people who ask where it is
  std::string silence;                           // while it is up, and groups wait to hear of it again
  ReachProbe probe;                              // while it is up and does not speak
  std::string looked_at;                         // by the probe, when the peer has dialled this node
};

// One address to dial.
struct Target {
  std::string address;             // as it was given: a name, or numbers
  std::string expected_node;       // of a static peer
  std::string node;                // once it has answered
  std::vector<std::string> found;  // of a name: where it leads, to be tried in turn
  size_t next_found = 0;
  bool looking_up = false;
  std::string reached_at;    // where the last connection that was answered led
  ConnectionPtr connection;  // under way, or in use
  std::string refusal;       // why this node gave the connection up
  absl::Time next_dial = absl::InfinitePast();
  absl::Duration back_off = kFirstRedial;
  bool self = false;    // this node's own address
  bool present = true;  // in the configuration or in DNS
};

// One connection, from OnOpen() or the dial to its end.
struct Visit {
  Target* target = nullptr;  // of one that was dialled here
  bool greeted = false;      // the other end's first frame has come
  HubPeer* peer = nullptr;   // when its HELLO was accepted
  uint32_t generation = 0;   // that this node's HELLO said
  uint64_t own_hello = 0;    // its count
};

class Hub final : public PeerHub, public ConnectionHandler {
 public:
  explicit Hub(PeerHubOptions options);
  absl::Status Start(Agent* agent) override;
  void Stop() override;
  int port() const override { return links_ ? links_->port() : 0; }
  const PeerCounters& counters() const override { return counters_; }
  std::vector<PeerView> Peers() const override;
  OutboxDepths Outboxes() const override;
  void SetStaticPeers(const std::vector<StaticPeerConfig>& peers) override;
  absl::Status Redial(const std::string& node) override;
  void Send(const std::string& node, ControlMessage message) override;
  absl::Status SendIfItFits(const std::string& node, ControlMessage message) override;
  void SetPatience(const std::string& node, absl::Duration patience) override;

  void OnOpen(const ConnectionPtr& connection) override;
  void OnFrame(const ConnectionPtr& connection, const Frame& frame) override;
  void OnWritable(const ConnectionPtr& connection) override;
  void OnEnd(const ConnectionPtr& connection, const absl::Status& why) override;
  void OnTick(absl::Time now) override;

 private:
  friend class HubByHand;  // tests: connections of their own, and its clock

  // How much of a peer's outbox a message may fill.
  enum class Share : uint8_t { kAll, kJobs };
  // RESOURCE_EXHAUSTED for a message that is longer than the peer takes, or that is more than its share.
  absl::Status Enqueue(HubPeer& peer, std::string message, std::optional<Epoch> epoch, Share share)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckShare(const HubPeer& peer, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null, and the message counts as dropped, while the node is not up.
  HubPeer* Receiver(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HubPeer* FindOrAddPeer(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Target* AddTarget(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStaticPeers(const std::vector<StaticPeerConfig>& peers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dial(Target& target, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `then`: frames that go right behind it.
  void SayHello(const ConnectionPtr& connection, Visit& visit, const HubPeer* peer, absl::string_view then = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does the certificate of the other end have the name that its HELLO claims? Always, over plain text.
  absl::Status CheckIdentity(const PeerHello& hello, const std::vector<std::string>& certificate_names)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a HELLO says against the configuration.
  absl::Status CheckPeer(const PeerHello& hello, const std::string& expected_node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it says the boot id of another node. Epochs are named by those: who has another node's could take the names
  // of its groups, and what that node says of them would count as known.
  absl::Status CheckBoot(const PeerHello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnHello(const ConnectionPtr& connection, Visit& visit, absl::string_view body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a HELLO that was checked: lets the link follow it, and the connection carry the link if it should.
  void Greet(const ConnectionPtr& connection, Visit& visit, const HelloFacts& facts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(const ConnectionPtr& connection, Visit& visit, const std::string& node, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CarryLink(HubPeer& peer, const ConnectionPtr& connection, const HelloFacts& facts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The key, where it is this node's to tell.
  std::string KeyFrame(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnKey(const ConnectionPtr& connection, HubPeer& peer, absl::string_view key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A frame that may only come of an end that has accepted this node's HELLO, and told the key. False: it broke that.
  bool Heard(const ConnectionPtr& connection, HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The other end has accepted this node's HELLO, and both have the key: the link is up.
  void Confirm(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Says why, if the socket takes it at once.
  void EndConnection(const ConnectionPtr& connection, FrameKind kind, absl::string_view why);
  // A connection that carried what it must not. In order and each once can no longer be kept, so the link goes with it.
  void Break(const ConnectionPtr& connection, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A frame of the link. Leaves the lock for the parsing of a long message.
  void OnNumbered(const ConnectionPtr& connection, const Frame& frame) ABSL_LOCKS_EXCLUDED(mutex_);
  void Deliver(HubPeer& peer, absl::StatusOr<ControlMessage> message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null when the connection carries no link, or not any more.
  HubPeer* PeerOf(const ConnectionPtr& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AcknowledgeIfMany(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An acknowledgement, which is also the heartbeat.
  void Acknowledge(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pump(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResetLink(HubPeer& peer, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `ended`: the peer's daemon has ended, or is about to.
  void Lose(HubPeer& peer, const std::string& why, bool ended = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportDown(HubPeer& peer, const std::string& why, bool ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing is heard of it: it is dialled anew, or, when no group waits for it any more, lost.
  void OnSilence(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // This process may be what stood still, not the peer: it was stopped, suspended with its machine, or starved.
  // True: there was one.
  bool NotePause(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The reason that a peer is lost, and before it a pause of this process that is not long over.
  std::string WithOwnPause(const std::string& why, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Asks for the addresses behind peers.dns when that is due.
  void RefreshDns(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnLookedUp(const std::string& address, absl::StatusOr<std::vector<std::string>> found)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDnsAddresses(const absl::StatusOr<std::vector<std::string>>& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A peer that is up and does not speak: looks whether its daemon is gone. True when it is, and was given up.
  bool IsDead(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ReachedAt(const HubPeer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a peer that has dialled this node: whether it could be dialled, too, and so be seen to be dead later.
  void LookForAddress(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In numbers. Empty while the name is looked up.
  std::string NextAddress(Target& target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickPeer(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Over plain text with peers.dns any HELLO names a peer. Forgets those that are not configured, that no address leads
  // to and that have no connection: at once when they were never up, else after kKeepPeer.
  void ForgetPeers(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool InUse(const HubPeer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PeerHubOptions options_;
  PeerCounters counters_;
  mutable absl::Mutex mutex_;  // taken before a connection's, and before the agent's queue
  Agent* agent_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Dialler* dialler_ ABSL_GUARDED_BY(mutex_) = nullptr;
  PeerHello own_hello_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t hellos_ ABSL_GUARDED_BY(mutex_) = 0;
  // The highest of a peer that was forgotten. Its daemon may live and remember it, so whoever comes begins above it.
  uint32_t forgotten_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<HubPeer>> peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Target>> targets_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ConnectionPtr, Visit> visits_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time pause_ended_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
  const std::string dns_address_;                                       // "name:port" of peers.dns; empty: off
  absl::Time next_dns_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // infinite while it is looked up
  std::unique_ptr<NameLookup> lookup_;                                  // from Start() to Stop(), like links_
  std::unique_ptr<Links> links_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_HUB_H_
