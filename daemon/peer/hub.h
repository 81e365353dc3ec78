// The hub's state and methods. Private to daemon/peer: peer_hub.cc has its life, its lists and its clock,
// hub_streams.cc what the streams tell it, hub_messages.cc numbered messages on their way, hub_lanes.cc what lanes tell
// it.
#ifndef RAILSD_DAEMON_PEER_HUB_H_
#define RAILSD_DAEMON_PEER_HUB_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/peer/dns_resolver.h"
#include "daemon/peer/lanes.h"
#include "daemon/peer/link_state.h"
#include "daemon/peer/outbox.h"
#include "daemon/peer/peer_conversion.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/peer/reach_probe.h"
#include "daemon/peer/streams.h"
#include "daemon/service/rpc_server.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {

namespace pb = rails::peer::v1;
using OutPtr = std::shared_ptr<OutboundStream>;
using InPtr = std::shared_ptr<InboundStream>;

inline constexpr absl::Duration kFirstRedial = absl::Milliseconds(50);
inline constexpr char kNotReached[] = "not reached yet";
inline constexpr absl::Duration kMaxRedial = absl::Seconds(1);
// How long a peer that is gone, and neither configured nor in DNS, is still shown.
inline constexpr absl::Duration kKeepPeer = absl::Minutes(10);

// The lanes beside a peer's two streams. Each goes with its stream.
struct HubLanes {
  LaneId out = 0, in = 0;  // being made, or open
  bool out_open = false, in_open = false;
  bool in_lost = false;  // since its stream began
  // It broke: what was in it comes again with the next stream, for which the present one makes room soon. Not at once:
  // of a daemon that ends, the stream says so.
  absl::Time out_lost = absl::InfiniteFuture();
  std::string lost_because;
  // Of the outbound stream, until its lane has opened: whoever listens there expects it once.
  std::optional<LaneKeys> keys;
  std::string address;
  absl::Time opened;  // `out`
  absl::Time none_before = absl::InfinitePast();
  // Numbers of the last messages that went over the outbound stream and over its lane; what is not acknowledged of the
  // latter waits since then, or since the last acknowledgement.
  uint64_t highest_on_stream = 0, highest_on_lane = 0;
  absl::Time waits_since;
};

// One other node.
struct HubPeer {
  HubPeer(std::string name, absl::Duration lost_after, uint32_t generation, OutboxLimits limits)
      : node(std::move(name)), link(lost_after, generation), outbox(limits) {}
  const std::string node;
  LinkState link;
  Outbox<pb::ExchangeRequest> outbox;
  Inbox inbox;
  uint64_t acknowledged_in = 0;  // what the peer was told
  uint64_t max_message_bytes = 0;
  std::string software;  // its daemon's version, as it said last
  OutPtr out;            // answered
  InPtr in;              // greeted
  // Arrived before the link was up, or over the stream while the lane still has what comes before.
  std::map<uint64_t, ControlMessage> early;
  size_t early_bytes = 0;         // of those that came over the lane, as they came
  uint64_t stream_waits_for = 0;  // one of `early`, until whose turn nothing is read from the stream; 0: none
  bool acknowledge_soon = false;  // the peer waits for it, to go on over its lane
  HubLanes lanes;
  absl::Time last_out, last_in;  // written
  std::optional<StaticPeerConfig> config;
  std::string why = kNotReached;
  absl::Time keep_until = absl::InfinitePast();  // once it was up or configured: for people who ask where it is
  std::string silence;                           // while it is up, and groups wait to hear of it again
  ReachProbe probe;                              // while it is up and does not speak
};

// One address to dial.
struct Target {
  std::string address;
  std::string expected_node;  // of a static peer
  std::string node;           // once answered
  std::string reached_at;     // where the last stream that was answered led, as numbers
  std::unique_ptr<Dialler> dialler;
  OutPtr stream;
  HubPeer* peer = nullptr;             // whose `out` the stream is
  bool answered = false;               // the stream's HELLO has been
  uint32_t generation = 0;             // that the stream's HELLO said
  std::optional<KeyShare> lane_share;  // likewise
  std::string refusal;                 // why this node gave the stream up
  absl::Time dialled;
  absl::Time next_dial = absl::InfinitePast();
  absl::Duration back_off = kFirstRedial;
  bool self = false;    // this node's own address
  bool present = true;  // in the configuration or in DNS
};

// Where an inbound stream comes from.
struct Origin {
  absl::Time since;
  bool greeted = false;     // its first message has come
  HubPeer* peer = nullptr;  // when the greeting was accepted
};

class Hub final : public PeerHub, public StreamHandler, public LaneHandler {
 public:
  explicit Hub(PeerHubOptions options);
  absl::Status Start(Agent* agent) override;
  void Stop() override;
  int port() const override { return server_ ? server_->port() : 0; }
  const PeerCounters& counters() const override { return counters_; }
  std::vector<PeerView> Peers() const override;
  OutboxDepths Outboxes() const override;
  void SetHealth(bool serving, bool live) override {
    if (server_ != nullptr) server_->SetHealth(serving, live);
  }
  void SetStaticPeers(const std::vector<StaticPeerConfig>& peers) override;
  void BreakStreams(const std::string& node) override;
  void BreakLane(const std::string& node) override;
  void Send(const std::string& node, ControlMessage message) override;
  absl::Status SendIfItFits(const std::string& node, ControlMessage message) override;
  void SetPatience(const std::string& node, absl::Duration patience) override;

  // Streams that this node dialled.
  void OnResponse(const OutPtr& stream, const pb::ExchangeResponse& response) override;
  void OnWritten(const OutPtr& stream) override;
  void OnEnded(const OutPtr& stream, absl::Status status, bool stopping) override;

  // Streams that peers dialled.
  bool OnAccepted(const InPtr& stream) override;
  void OnRequest(const InPtr& stream, const pb::ExchangeRequest& request) override;
  void OnWritten(const InPtr& stream) override;
  void OnEnded(const InPtr& stream) override;

  // Lanes.
  void OnLaneOpen(LaneId lane) override;
  void OnLaneMessage(LaneId lane, absl::string_view message) override;
  void OnLaneWritable(LaneId lane) override;
  void OnLaneEnd(LaneId lane, const std::string& why, bool malformed) override;

 private:
  friend class HubByHand;  // tests: streams and lanes of their own, and its clock

  std::string Stopping() const;
  // How much of a peer's outbox a message may fill.
  enum class Share : uint8_t { kAll, kJobs };
  // RESOURCE_EXHAUSTED for a message that is longer than the peer takes, or that is more than its share.
  absl::Status Enqueue(HubPeer& peer, std::shared_ptr<pb::ExchangeRequest> request, Share share)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckShare(const HubPeer& peer, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null, and the message counts as dropped, while the node is not up.
  HubPeer* Receiver(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HubPeer* FindOrAddPeer(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Target* AddTarget(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Target* TargetOf(const OutPtr& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null when the stream has not greeted, or is not its peer's present one any more.
  HubPeer* PeerOf(const InPtr& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillHello(const HubPeer* peer, pb::Hello* out, std::optional<PublicShare> lane_share = std::nullopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStaticPeers(const std::vector<StaticPeerConfig>& peers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dial(Target& target, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does the certificate of a stream's other end have the name that its HELLO claims? Always, over plain text.
  absl::Status CheckIdentity(const PeerHello& hello, const std::vector<std::string>& certificate_names)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a HELLO says against the configuration.
  absl::Status CheckPeer(const PeerHello& hello, const std::string& expected_node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it says the boot id of another node. Epochs are named by those: who has another node's could take the names
  // of its groups, and what that node says of them would count as known.
  absl::Status CheckBoot(const PeerHello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the link follow a HELLO. Null: it is stale and the stream must go.
  HubPeer* Greet(Direction direction, const HelloFacts& facts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAnswer(Target& target, const pb::HelloAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefuseTarget(Target& target, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefuseGreeting(const InPtr& stream, const std::string& node, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnGreeting(const InPtr& stream, const pb::Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The peer is alive: do not wait for the back-off to dial it.
  void Hasten(const HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TryUp(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnNumbered(HubPeer& peer, uint64_t number, absl::StatusOr<ControlMessage> message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver(HubPeer& peer, uint64_t number, ControlMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A stream that carried what it must not. In order and each once can no longer be kept, so the link goes with it.
  void Break(HubPeer* peer, const InPtr& stream, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of what answers a stream that this node dialled.
  void Break(Target& target, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What came too early and is not any more.
  void DeliverEarly(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null when the lane is of no stream any more.
  HubPeer* PeerOfLane(LaneId lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the stream that this node dialled, and that has been answered.
  void AgreeOnLane(HubPeer& peer, Target& target, const HelloFacts& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When there is one to dial, and its time has come.
  void DialLane(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the inbound one up; its peer notices, and begins its stream anew.
  void DropInboundLane(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a stream that a peer dialled; the share for the answer.
  std::optional<PublicShare> ExpectLane(HubPeer& peer, const HelloFacts& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLane(HubPeer& peer, Direction direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickLane(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool GoesOverLane(const HubPeer& peer, const Outbox<pb::ExchangeRequest>::Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AcknowledgeIfMany(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An acknowledgement, or a heartbeat when there is none to give.
  void WriteResponse(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pump(HubPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseStreams(HubPeer& peer, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `ended`: the peer's daemon has ended, or is about to.
  void Lose(HubPeer& peer, const std::string& why, bool ended = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportDown(HubPeer& peer, const std::string& why, bool ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing is heard of it: its streams begin anew, or, when no group waits for it any more, it is lost.
  void OnSilence(HubPeer& peer, Direction silent, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // This process may be what stood still, not the peer: it was stopped, suspended with its machine, or starved.
  void NotePause(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The reason that a peer is lost, and before it a pause of this process that is not long over.
  std::string WithOwnPause(const std::string& why, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAddresses(absl::StatusOr<std::vector<std::string>> found);
  void Loop();
  void Tick(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A peer that is up and does not speak: looks whether its daemon is gone. True when it is, and was given up.
  bool IsDead(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ReachedAt(const HubPeer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickPeer(HubPeer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Over plain text with peers.dns any HELLO names a peer. Forgets those that are not configured, that no address leads
  // to and that have no stream: at once when they were never up, else after kKeepPeer.
  void ForgetPeers(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool InUse(const HubPeer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PeerHubOptions options_;
  PeerCounters counters_;
  mutable absl::Mutex mutex_;  // taken before a stream's, and before the agent's queue
  Agent* agent_ ABSL_GUARDED_BY(mutex_) = nullptr;
  PeerHello own_hello_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  // The highest of a peer that was forgotten. Its daemon may live and remember it, so whoever comes begins above it.
  uint32_t forgotten_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<HubPeer>> peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Target>> targets_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<OutPtr, Target*> outbound_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<InPtr, Origin> inbound_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<LaneId, HubPeer*> lane_peers_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time pause_ended_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Lanes> lanes_;  // from Start() to Stop()
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<DnsResolver> resolver_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_HUB_H_
