#include "daemon/peer/peer_hub.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/config/units.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/dns_resolver.h"
#include "daemon/peer/link_state.h"
#include "daemon/peer/peer_conversion.h"
#include "daemon/peer/streams.h"
#include "daemon/service/rpc_server.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;
using OutPtr = std::shared_ptr<OutboundStream>;
using InPtr = std::shared_ptr<InboundStream>;

constexpr absl::Duration kFirstRedial = absl::Milliseconds(50);
constexpr absl::Duration kMaxRedial = absl::Seconds(1);
constexpr size_t kMaxInboundStreams = 4096;
// An acknowledgement is worth a write of its own only when this much waits in the peer's outbox for it.
constexpr uint64_t kAcknowledgeAfter = 64;

// One other node.
struct Peer {
  Peer(std::string name, absl::Duration lost_after, OutboxLimits limits)
      : node(std::move(name)), link(lost_after), outbox(limits) {}
  const std::string node;
  LinkState link;
  Outbox<pb::ExchangeRequest> outbox;
  Inbox inbox;
  uint64_t acknowledged_in = 0;  // what the peer was told
  uint64_t max_message_bytes = 0;
  OutPtr out;                          // answered
  InPtr in;                            // greeted
  std::optional<ControlMessage> held;  // arrived before the link was up; nothing more is read until it is
  absl::Time last_out, last_in;        // written
  const StaticPeerConfig* config = nullptr;
  std::string why = "not reached yet";
};

// One address to dial.
struct Target {
  std::string address;
  std::string expected_node;  // of a static peer
  std::string node;           // once answered
  std::unique_ptr<Dialler> dialler;
  OutPtr stream;
  Peer* peer = nullptr;     // whose `out` the stream is
  uint32_t generation = 0;  // that the stream's HELLO said
  absl::Time dialled;
  absl::Time next_dial = absl::InfinitePast();
  absl::Duration back_off = kFirstRedial;
  bool self = false;    // this node's own address
  bool present = true;  // in the configuration or in DNS
};

// Where an inbound stream comes from.
struct Origin {
  absl::Time since;
  bool greeted = false;  // its first message has come
  Peer* peer = nullptr;  // when the greeting was accepted
};

class Hub final : public PeerHub, public StreamHandler {
 public:
  explicit Hub(PeerHubOptions options) : options_(std::move(options)) {
    absl::MutexLock lock(&mutex_);
    for (const StaticPeerConfig& peer : options_.static_peers) {
      if (peer.name == options_.node) continue;  // one file for all nodes is fine
      FindOrAddPeer(peer.name)->config = &peer;
      AddTarget(peer.control)->expected_node = peer.name;
    }
  }

  absl::Status Start(Agent* agent) override {
    {
      absl::MutexLock lock(&mutex_);
      agent_ = agent;
      own_hello_ = agent->Hello();
    }
    if (options_.listen.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<RpcServer>> server =
        RpcServer::Start({options_.listen, options_.max_message_bytes}, {MakePeerService(this)});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    server_->SetServing(true);
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "peers");
      Loop();
    });
    if (!options_.dns.name.empty()) {
      absl::MutexLock lock(&mutex_);
      resolver_ = std::make_unique<DnsResolver>(
          options_.dns.name, static_cast<uint16_t>(options_.dns.port), options_.dns.refresh,
          [this](absl::StatusOr<std::vector<std::string>> found) { OnAddresses(std::move(found)); });
    }
    return absl::OkStatus();
  }

  void Stop() override {
    std::unique_ptr<DnsResolver> resolver;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      resolver = std::move(resolver_);
      for (const auto& [stream, from] : inbound_) stream->Finish(absl::UnavailableError(Stopping()), true);
      for (auto& target : targets_) {
        if (target->stream) target->stream->Cancel();
      }
      const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return streams_ == 0; };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&ended), absl::Seconds(2))) {
        for (const auto& [stream, from] : inbound_) stream->Cancel();
        mutex_.Await(absl::Condition(&ended));
      }
    }
    if (server_) server_->Shutdown(absl::Seconds(1));
    if (thread_.joinable()) thread_.join();
    absl::MutexLock lock(&mutex_);
    agent_ = nullptr;
    targets_.clear();
  }

  int port() const override { return server_ ? server_->port() : 0; }
  const PeerCounters& counters() const override { return counters_; }

  std::vector<PeerView> Peers() const override {
    absl::MutexLock lock(&mutex_);
    std::vector<PeerView> out;
    for (const auto& [node, peer] : peers_) {
      PeerView view;
      view.node = node;
      view.up = peer->link.up();
      if (peer->link.known()) {
        view.boot = peer->link.hello().boot;
        for (const PeerHello::Rail& rail : peer->link.hello().rails) view.rail_addresses.push_back(rail.address);
      }
      view.why = view.up ? "" : peer->why;
      out.push_back(std::move(view));
    }
    std::sort(out.begin(), out.end(), [](const PeerView& a, const PeerView& b) { return a.node < b.node; });
    return out;
  }

  void BreakStreams(const std::string& node) override {
    absl::MutexLock lock(&mutex_);
    const auto it = peers_.find(node);
    if (it == peers_.end()) return;
    if (it->second->out) it->second->out->Cancel();
    if (it->second->in) it->second->in->Cancel();
  }

  void Send(const std::string& node, ControlMessage message) override {
    auto request = std::make_shared<pb::ExchangeRequest>();
    MessageTo(message, request->mutable_message());
    absl::MutexLock lock(&mutex_);
    const auto it = peers_.find(node);
    if (stopping_ || it == peers_.end() || !it->second->link.up()) {
      ++counters_.messages_dropped;
      return;
    }
    Peer& peer = *it->second;
    request->mutable_message()->set_number(peer.outbox.next_number());
    const size_t bytes = request->ByteSizeLong();
    if (bytes > peer.max_message_bytes) {
      return Lose(peer, absl::StrCat("a message of ", bytes, " bytes is more than node ", node, " takes (",
                                     peer.max_message_bytes, "); raise its limits.max_message"));
    }
    if (!peer.outbox.Push(std::move(request), bytes)) {
      return Lose(peer, absl::StrCat("node ", node, " does not take messages: ", peer.outbox.unacknowledged(), " of ",
                                     peer.outbox.bytes(), " bytes are unacknowledged"));
    }
    ++counters_.messages_out;
    Pump(peer);
  }

  // Streams that this node dialled.
  void OnResponse(const OutPtr& stream, const pb::ExchangeResponse& response) override {
    absl::MutexLock lock(&mutex_);
    Target* const target = TargetOf(stream);
    if (target == nullptr || stopping_) return;
    if (response.has_hello()) return OnAnswer(*target, response.hello());
    if (target->peer == nullptr || target->peer->out != stream) return;
    Peer& peer = *target->peer;
    peer.link.OnHeard(Direction::kOutbound, absl::Now());
    if (response.response_case() == pb::ExchangeResponse::kAcknowledged &&
        !peer.outbox.Acknowledge(response.acknowledged())) {
      ++counters_.protocol_errors;
      Lose(peer, absl::StrCat("node ", peer.node, " acknowledges message ", response.acknowledged(),
                              ", which was never sent"));
    }
  }

  void OnWritten(const OutPtr& stream) override {
    absl::MutexLock lock(&mutex_);
    Target* const target = TargetOf(stream);
    if (target != nullptr && target->peer != nullptr && target->peer->out == stream) Pump(*target->peer);
  }

  void OnEnded(const OutPtr& stream, absl::Status status, bool stopping) override {
    absl::MutexLock lock(&mutex_);
    --streams_;
    Target* const target = TargetOf(stream);
    if (target == nullptr) return;
    outbound_.erase(stream);
    target->stream = nullptr;
    target->peer = nullptr;
    target->next_dial = absl::Now() + target->back_off;
    target->back_off = std::min(target->back_off * 2, kMaxRedial);
    const std::string& node = target->expected_node.empty() ? target->node : target->expected_node;
    const auto it = peers_.find(node);
    if (it == peers_.end()) return;
    Peer& peer = *it->second;
    if (!peer.link.up()) peer.why = absl::StrCat(target->address, ": ", status.ToString());
    if (peer.out != stream) return;
    peer.out = nullptr;
    peer.link.OnStreamEnd(Direction::kOutbound);
    ++counters_.disconnects;
    options_.log->info("control_stream_ended node={} address={} status={}", node, target->address,
                       LogValue(status.ToString()));
    if (stopping) Lose(peer, absl::StrCat("node ", node, " is stopping"));
  }

  // Streams that peers dialled.
  bool OnAccepted(const InPtr& stream) override {
    absl::MutexLock lock(&mutex_);
    if (stopping_ || inbound_.size() >= kMaxInboundStreams) return false;
    ++streams_;
    inbound_.emplace(stream, Origin{absl::Now()});
    return true;
  }

  void OnRequest(const InPtr& stream, const pb::ExchangeRequest& request) override {
    // Converted before the lock is taken: an OFFER may be large.
    absl::StatusOr<ControlMessage> message = absl::UnknownError("");
    if (request.has_message()) message = MessageFrom(request.message(), options_.max_world_size);
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    const auto it = inbound_.find(stream);
    if (it == inbound_.end()) return;
    if (!it->second.greeted) {
      it->second.greeted = true;
      if (!request.has_hello()) return Break(nullptr, stream, "the first message is no hello");
      return OnGreeting(stream, request.hello());
    }
    Peer* const peer = PeerOf(stream);
    if (peer == nullptr) return;  // replaced or ended: what it still carries is of no link
    peer->link.OnHeard(Direction::kInbound, absl::Now());
    if (request.has_message()) return OnNumbered(*peer, request.message().number(), std::move(message));
    if (!request.has_heartbeat()) return Break(peer, stream, "a second hello, or an empty message");
    stream->ReadNext();
  }

  void OnWritten(const InPtr& stream) override {
    absl::MutexLock lock(&mutex_);
    Peer* const peer = PeerOf(stream);
    if (peer != nullptr) AcknowledgeIfMany(*peer);
  }

  void OnEnded(const InPtr& stream) override {
    absl::MutexLock lock(&mutex_);
    --streams_;
    Peer* const peer = PeerOf(stream);
    inbound_.erase(stream);
    if (peer == nullptr) return;
    peer->in = nullptr;
    peer->held.reset();  // not acknowledged: it comes again
    peer->link.OnStreamEnd(Direction::kInbound);
  }

 private:
  std::string Stopping() const { return absl::StrCat("node ", options_.node, " is stopping"); }

  Peer* FindOrAddPeer(const std::string& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::unique_ptr<Peer>& peer = peers_[node];
    if (peer == nullptr) peer = std::make_unique<Peer>(node, options_.lost_after, options_.outbox);
    return peer.get();
  }
  Target* AddTarget(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    targets_.push_back(std::make_unique<Target>());
    targets_.back()->address = address;
    targets_.back()->dialler = Dialler::Make(address, options_.max_message_bytes);
    return targets_.back().get();
  }
  Target* TargetOf(const OutPtr& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = outbound_.find(stream);
    return it == outbound_.end() ? nullptr : it->second;
  }
  // Null when the stream has not greeted, or is not its peer's present one any more.
  Peer* PeerOf(const InPtr& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = inbound_.find(stream);
    if (it == inbound_.end() || it->second.peer == nullptr || it->second.peer->in != stream) return nullptr;
    return it->second.peer;
  }

  void FillHello(const Peer* peer, pb::Hello* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    HelloFacts facts;
    facts.hello = own_hello_;
    facts.hello.node = options_.node;
    facts.hello.boot = options_.boot;
    facts.link_generation = peer == nullptr ? 1 : peer->link.own_generation();
    facts.expected_boot = peer != nullptr && peer->link.known() ? peer->link.hello().boot : BootId();
    facts.max_message_bytes = options_.max_message_bytes;
    facts.max_world_size = options_.max_world_size;
    HelloTo(facts, out);
  }

  void Dial(Target& target, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string& node = target.expected_node.empty() ? target.node : target.expected_node;
    const auto peer = peers_.find(node);
    if (peer != peers_.end() && peer->second->out != nullptr) return;  // another address leads there too
    auto request = std::make_shared<pb::ExchangeRequest>();
    FillHello(peer == peers_.end() ? nullptr : peer->second.get(), request->mutable_hello());
    target.dialled = now;
    target.generation = request->hello().link_generation();
    target.stream = target.dialler->Dial(this);
    outbound_.emplace(target.stream, &target);
    ++streams_;
    target.stream->Write(std::move(request));
  }

  // What a HELLO says against the configuration.
  absl::Status CheckPeer(const PeerHello& hello, const std::string& expected_node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (hello.node == options_.node) {
      return absl::FailedPreconditionError(absl::StrCat("node name ", hello.node, ": two daemons have it"));
    }
    if (!expected_node.empty() && hello.node != expected_node) {
      return absl::FailedPreconditionError(
          absl::StrCat("peers.static: the address of ", expected_node, " is answered by node ", hello.node));
    }
    const auto it = peers_.find(hello.node);
    if (it == peers_.end() && options_.dns.name.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("node ", hello.node, " is no peer of node ", options_.node, "; add it to peers.static there"));
    }
    if (it == peers_.end() || it->second->config == nullptr) return absl::OkStatus();
    const std::vector<std::string>& wanted = it->second->config->rails;
    if (!wanted.empty() && wanted.size() != hello.rails.size()) {
      return absl::FailedPreconditionError(absl::StrCat("node ", hello.node, " has ", hello.rails.size(),
                                                        " rails, but node ", options_.node, " expects ",
                                                        wanted.size()));
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto want = ParseHostPort(wanted[i], true), have = ParseHostPort(hello.rails[i].address, false);
      if (!want.ok() || !have.ok() || want->host != have->host || (want->port != 0 && want->port != have->port)) {
        return absl::FailedPreconditionError(absl::StrCat("node ", hello.node, ": rail ", i, " is ",
                                                          hello.rails[i].address, ", but node ", options_.node,
                                                          " expects ", wanted[i]));
      }
    }
    return absl::OkStatus();
  }

  // Lets the link follow a HELLO. Null: it is stale and the stream must go.
  Peer* Greet(Direction direction, const HelloFacts& facts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Peer* const peer = FindOrAddPeer(facts.hello.node);
    std::optional<std::string> down;
    const LinkState::Effect effect =
        peer->link.OnHello(direction, facts.hello, facts.link_generation, absl::Now(), &down);
    if (effect == LinkState::Effect::kStale) return nullptr;
    if (effect == LinkState::Effect::kNew) CloseStreams(*peer, "the link is over");
    if (down) ReportDown(*peer, *down);
    peer->max_message_bytes = facts.max_message_bytes;
    return peer;
  }

  void OnAnswer(Target& target, const pb::HelloAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::StatusOr<HelloFacts> facts = HelloFrom(answer.hello(), options_.node, options_.max_world_size);
    if (facts.ok() && facts->hello.boot == options_.boot) {
      options_.log->info("own_address_found address={}", target.address);
      target.self = true;
      ++counters_.own_addresses;
      return target.stream->Cancel();
    }
    const absl::Status status = facts.ok() ? CheckPeer(facts->hello, target.expected_node) : facts.status();
    if (!status.ok()) return RefuseTarget(target, status);
    target.node = facts->hello.node;
    if (const auto it = peers_.find(target.node); it != peers_.end() && it->second->out != nullptr) {
      return target.stream->Cancel();  // reached over another address already
    }
    // The link was given up from here while the HELLO was under way: the peer has not been told yet.
    if (FindOrAddPeer(target.node)->link.own_generation() != target.generation) return target.stream->Cancel();
    Peer* const peer = Greet(Direction::kOutbound, *facts);
    if (peer == nullptr) return target.stream->Cancel();
    target.peer = peer;
    peer->out = target.stream;
    peer->last_out = absl::Now();
    target.back_off = kFirstRedial;
    ++counters_.connects;
    if (!peer->outbox.Rewind(answer.acknowledged())) {
      ++counters_.protocol_errors;
      return Lose(*peer, absl::StrCat("node ", peer->node, " says it has taken message ", answer.acknowledged(),
                                      ", which contradicts what it said before"));
    }
    TryUp(*peer);
    Pump(*peer);
  }

  void RefuseTarget(Target& target, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++counters_.refused;
    options_.log->error("peer_refused address={} reason={}", target.address, LogValue(std::string(status.message())));
    if (const auto it = peers_.find(target.expected_node); it != peers_.end()) {
      it->second->why = std::string(status.message());
    }
    target.back_off = kMaxRedial;
    target.stream->Cancel();
  }

  void OnGreeting(const InPtr& stream, const pb::Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::StatusOr<HelloFacts> facts = HelloFrom(hello, options_.node, options_.max_world_size);
    auto answer = std::make_shared<pb::ExchangeResponse>();
    answer->mutable_hello()->set_version(kPeerProtocolVersion);
    if (facts.ok() && facts->hello.boot == options_.boot) {
      // This node dialled itself (DNS names every node): it learns so from the boot id.
      FillHello(nullptr, answer->mutable_hello()->mutable_hello());
      stream->Write(std::move(answer));
      return stream->Finish(absl::FailedPreconditionError("this is the node itself"));
    }
    const absl::Status status = facts.ok() ? CheckPeer(facts->hello, "") : facts.status();
    Peer* const peer = status.ok() ? Greet(Direction::kInbound, *facts) : nullptr;
    if (peer == nullptr) {
      ++counters_.refused;
      options_.log->error("peer_refused node={} reason={}", LogValue(hello.node().substr(0, 64)),
                          LogValue(std::string(status.message())));
      return stream->Finish(status.ok() ? absl::FailedPreconditionError("this link is over; dial anew") : status);
    }
    if (peer->in != nullptr) peer->in->Finish(absl::UnavailableError("replaced by a newer stream"));
    peer->in = stream;
    inbound_[stream].peer = peer;
    peer->held.reset();
    peer->last_in = absl::Now();
    peer->acknowledged_in = peer->inbox.taken();
    answer->mutable_hello()->set_acknowledged(peer->inbox.taken());
    FillHello(peer, answer->mutable_hello()->mutable_hello());
    stream->Write(std::move(answer));
    TryUp(*peer);
    stream->ReadNext();
    Hasten(*peer);
  }

  // The peer is alive: do not wait for the back-off to dial it.
  void Hasten(const Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer.out != nullptr) return;
    bool known = false;
    for (const auto& target : targets_) {
      if (target->expected_node != peer.node && target->node != peer.node) continue;
      known = true;
      if (target->stream == nullptr) Dial(*target, absl::Now());
    }
    if (!known && resolver_ != nullptr) resolver_->Poke();
  }

  void TryUp(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!peer.link.TakeUp()) return;
    options_.log->debug("control_link_up node={} boot={:x}", peer.node, peer.link.hello().boot.value());
    agent_->OnPeerUp(peer.link.hello());
    if (!peer.held) return;
    ControlMessage message = *std::exchange(peer.held, std::nullopt);
    Deliver(peer, peer.inbox.taken() + 1, std::move(message));
    if (peer.in) peer.in->ReadNext();
  }

  void OnNumbered(Peer& peer, uint64_t number, absl::StatusOr<ControlMessage> message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (number != 0 && number <= peer.inbox.taken()) {
      ++counters_.duplicates;
      return peer.in->ReadNext();
    }
    if (number != peer.inbox.taken() + 1) {
      return Break(&peer, peer.in, absl::StrCat("message ", number, " after ", peer.inbox.taken()));
    }
    if (!message.ok()) return Break(&peer, peer.in, std::string(message.status().message()));
    if (!peer.link.up()) {
      // Our own stream has not been answered yet. Reading pauses; the message is taken when the link is up.
      peer.held = *std::move(message);
      return;
    }
    Deliver(peer, number, *std::move(message));
    AcknowledgeIfMany(peer);
    peer.in->ReadNext();
  }

  void Deliver(Peer& peer, uint64_t number, ControlMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer.inbox.Receive(number) != Inbox::Verdict::kTake) return;
    ++counters_.messages_in;
    agent_->OnPeerMessage(peer.node, peer.link.hello().boot, std::move(message));
  }

  // A stream that carried what it must not. In order and each once can no longer be kept, so the link goes with it.
  void Break(Peer* peer, const InPtr& stream, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++counters_.protocol_errors;
    const std::string from = peer == nullptr ? "a stranger" : absl::StrCat("node ", peer->node);
    const std::string text = absl::StrCat(from, " to node ", options_.node, ": ", reason);
    options_.log->error("peer_broke_the_protocol node={} reason={}", peer == nullptr ? "?" : peer->node,
                        LogValue(text));
    stream->Finish(absl::InvalidArgumentError(text));
    if (peer != nullptr) Lose(*peer, text);
  }

  void AcknowledgeIfMany(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer.inbox.taken() - peer.acknowledged_in >= kAcknowledgeAfter) WriteResponse(peer, absl::Now());
  }

  // An acknowledgement, or a heartbeat when there is none to give.
  void WriteResponse(Peer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer.in == nullptr || peer.in->writing()) return;
    auto response = std::make_shared<pb::ExchangeResponse>();
    if (peer.inbox.taken() > peer.acknowledged_in) {
      peer.acknowledged_in = peer.inbox.taken();
      response->set_acknowledged(peer.acknowledged_in);
    } else {
      response->mutable_heartbeat();
    }
    peer.last_in = now;
    peer.in->Write(std::move(response));
  }

  void Pump(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer.out == nullptr || !peer.link.open(Direction::kOutbound) || peer.out->writing()) return;
    const auto* entry = peer.outbox.NextToSend();
    if (entry == nullptr) return;
    peer.last_out = absl::Now();
    peer.out->Write(entry->message);
    peer.outbox.MarkSent();
  }

  void CloseStreams(Peer& peer, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (peer.out) {
      peer.out->Cancel();
      ++counters_.disconnects;
    }
    if (peer.in) peer.in->Finish(absl::UnavailableError(why));
    peer.out = nullptr;
    peer.in = nullptr;
    peer.held.reset();
    peer.outbox.Reset();
    peer.inbox.Reset();
    peer.acknowledged_in = 0;
  }

  void Lose(Peer& peer, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++counters_.lost;
    const bool was_up = peer.link.Lose();
    CloseStreams(peer, why);
    peer.why = why;
    if (was_up) ReportDown(peer, why);
  }

  void ReportDown(Peer& peer, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    peer.why = why;
    options_.log->info("control_link_down node={} reason={}", peer.node, LogValue(why));
    agent_->OnPeerDown(peer.node, why);
  }

  void OnAddresses(absl::StatusOr<std::vector<std::string>> found) {
    absl::MutexLock lock(&mutex_);
    if (!found.ok()) {
      options_.log->warn("peer_lookup_failed reason={}", LogValue(std::string(found.status().message())));
      return;  // the last answer stays good
    }
    for (const auto& target : targets_) {
      if (target->expected_node.empty()) target->present = false;
    }
    for (const std::string& address : *found) {
      const auto it = std::find_if(targets_.begin(), targets_.end(),
                                   [&](const std::unique_ptr<Target>& t) { return t->address == address; });
      Target* const target = it == targets_.end() ? AddTarget(address) : it->get();
      target->present = true;
    }
  }

  void Loop() {
    const absl::Duration period = std::clamp(options_.heartbeat / 4, absl::Milliseconds(5), absl::Milliseconds(100));
    const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
    absl::MutexLock lock(&mutex_);
    while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping), period)) Tick(absl::Now());
  }

  void Tick(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [node, peer] : peers_) TickPeer(*peer, now);
    for (const auto& [stream, from] : inbound_) {
      if (!from.greeted && now - from.since > options_.lost_after)
        stream->Finish(absl::DeadlineExceededError("no hello came in time"));
    }
    // Addresses that DNS has dropped go once nothing uses them.
    std::erase_if(targets_, [](const auto& target) { return !target->present && target->stream == nullptr; });
    for (const auto& target : targets_) {
      if (target->stream == nullptr) {
        if (!target->self && now >= target->next_dial) Dial(*target, now);
        continue;
      }
      if (target->peer == nullptr && now - target->dialled > options_.lost_after) target->stream->Cancel();
    }
  }

  void TickPeer(Peer& peer, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (const std::optional<Direction> silent = peer.link.Silent(now)) {
      const bool inbound = *silent == Direction::kInbound;
      return Lose(peer, absl::StrCat("node ", peer.node, " has not been heard by node ", options_.node, " for ",
                                     absl::FormatDuration(options_.lost_after),
                                     inbound ? " on its own stream" : " on this node's stream",
                                     "; last: ", peer.why.empty() ? "nothing" : peer.why));
    }
    if (peer.out != nullptr && now - peer.last_out >= options_.heartbeat && !peer.out->writing()) {
      auto request = std::make_shared<pb::ExchangeRequest>();
      request->mutable_heartbeat();
      peer.last_out = now;
      peer.out->Write(std::move(request));
    }
    if (peer.in != nullptr && now - peer.last_in >= options_.heartbeat) WriteResponse(peer, now);
  }

  const PeerHubOptions options_;
  PeerCounters counters_;
  mutable absl::Mutex mutex_;  // taken before a stream's, and before the agent's queue
  Agent* agent_ ABSL_GUARDED_BY(mutex_) = nullptr;
  PeerHello own_hello_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Target>> targets_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<OutPtr, Target*> outbound_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<InPtr, Origin> inbound_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<DnsResolver> resolver_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

std::unique_ptr<PeerHub> PeerHub::Make(PeerHubOptions options) { return std::make_unique<Hub>(std::move(options)); }

}  // namespace railsd
