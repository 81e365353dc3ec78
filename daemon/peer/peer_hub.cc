#include "daemon/peer/peer_hub.h"

#include <pthread.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/hub.h"
#include "daemon/tls/credentials.h"

namespace railsd {
namespace {

// What silence means, as far as it can be told from here.
std::string SilenceText(const HubPeer& peer, absl::Duration lost_after, Direction silent) {
  const std::string heard =
      absl::StrCat("nothing was heard of node ", peer.node, " for ", absl::FormatDuration(lost_after),
                   silent == Direction::kInbound ? " on its own stream" : " on this node's stream");
  switch (peer.probe.reach()) {
    case Reach::kListening:
      return absl::StrCat(heard, "; its machine takes connections, so its daemon is frozen or far too busy");
    case Reach::kSilent:
      return absl::StrCat(heard, "; its machine does not answer either: it is down, or cut off from this node");
    case Reach::kRefused:
    case Reach::kUnknown:
      break;
  }
  return absl::StrCat(heard, peer.why.empty() ? "" : "; last: ", peer.why);
}

}  // namespace

std::unique_ptr<PeerHub> PeerHub::Make(PeerHubOptions options) { return std::make_unique<Hub>(std::move(options)); }

Hub::Hub(PeerHubOptions options) : options_(std::move(options)) {
  absl::MutexLock lock(&mutex_);
  AddStaticPeers(options_.static_peers);
}

void Hub::AddStaticPeers(const std::vector<StaticPeerConfig>& peers) {
  for (const StaticPeerConfig& peer : peers) {
    if (peer.name == options_.node) continue;  // one file for all nodes is fine
    HubPeer* const known = FindOrAddPeer(peer.name);
    if (!known->config && !known->link.known()) known->why = kNotReached;
    known->config = peer;
    const auto it = std::find_if(targets_.begin(), targets_.end(), [&](const std::unique_ptr<Target>& target) {
      return target->expected_node == peer.name && target->address == peer.control;
    });
    Target* const target = it == targets_.end() ? AddTarget(peer.control) : it->get();
    target->expected_node = peer.name;
    target->present = true;
  }
}

void Hub::SetStaticPeers(const std::vector<StaticPeerConfig>& peers) {
  absl::MutexLock lock(&mutex_);
  std::vector<HubPeer*> were;
  for (auto& [node, peer] : peers_) {
    if (std::exchange(peer->config, std::nullopt)) were.push_back(peer.get());
  }
  for (const auto& target : targets_) {
    if (!target->expected_node.empty()) target->present = false;
  }
  AddStaticPeers(peers);
  for (HubPeer* peer : were) {
    if (peer->config) continue;
    peer->keep_until = absl::Now() + kKeepPeer;
    if (!peer->link.up()) peer->why = "not listed in peers.static any more";
  }
}

absl::Status Hub::Start(Agent* agent) {
  {
    absl::MutexLock lock(&mutex_);
    agent_ = agent;
    own_hello_ = agent->Hello();
  }
  if (options_.listen.empty()) return absl::OkStatus();
  RpcServerOptions server_options = options_.server;
  server_options.address = options_.listen;
  server_options.max_message_bytes = options_.max_message_bytes;
  server_options.service_names = {"rails.peer.v1.PeerService"};
  absl::StatusOr<std::unique_ptr<Lanes>> lanes = Lanes::Start(options_.lost_after, options_.lost_after, this);
  if (!lanes.ok()) return lanes.status();
  lanes_ = *std::move(lanes);
  server_options.gate.take_lane = [this](UniqueFd connection) {
    if (!lanes_->Take(std::move(connection))) ++counters_.lanes_refused;
  };
  if (options_.tls != nullptr) server_options.credentials = MakeServerCredentials(options_.tls);
  server_options.ledger = std::make_shared<ConnectionLedger>();
  const auto service =
      MakePeerService(this, {options_.max_message_bytes, server_options.gate.refused, server_options.ledger});
  absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(std::move(server_options), {service});
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
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

void Hub::Stop() {
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
  lanes_.reset();
  absl::MutexLock lock(&mutex_);
  agent_ = nullptr;
  targets_.clear();
}

std::vector<PeerView> Hub::Peers() const {
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
    view.version = peer->software;
    view.why = view.up ? peer->silence : peer->why;
    out.push_back(std::move(view));
  }
  std::sort(out.begin(), out.end(), [](const PeerView& a, const PeerView& b) { return a.node < b.node; });
  return out;
}

OutboxDepths Hub::Outboxes() const {
  absl::MutexLock lock(&mutex_);
  OutboxDepths depths;
  for (const auto& [node, peer] : peers_) {
    depths.messages += peer->outbox.unacknowledged();
    depths.bytes += peer->outbox.bytes();
    depths.most_messages = std::max(depths.most_messages, peer->outbox.unacknowledged());
    depths.most_bytes = std::max(depths.most_bytes, peer->outbox.bytes());
  }
  return depths;
}

void Hub::BreakStreams(const std::string& node) {
  absl::MutexLock lock(&mutex_);
  const auto it = peers_.find(node);
  if (it == peers_.end()) return;
  if (it->second->out) it->second->out->Cancel();
  if (it->second->in) it->second->in->Cancel();
}

void Hub::SetPatience(const std::string& node, absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  if (const auto it = peers_.find(node); it != peers_.end()) it->second->link.SetPatience(patience);
}

std::string Hub::Stopping() const { return absl::StrCat("node ", options_.node, " is stopping"); }

HubPeer* Hub::FindOrAddPeer(const std::string& node) {
  std::unique_ptr<HubPeer>& peer = peers_[node];
  if (peer == nullptr) {
    peer = std::make_unique<HubPeer>(node, options_.lost_after, forgotten_generation_ + 1, options_.outbox);
  }
  return peer.get();
}

Target* Hub::AddTarget(const std::string& address) {
  targets_.push_back(std::make_unique<Target>());
  targets_.back()->address = address;
  targets_.back()->dialler = Dialler::Make(address, options_.max_message_bytes, options_.tls);
  return targets_.back().get();
}

Target* Hub::TargetOf(const OutPtr& stream) {
  const auto it = outbound_.find(stream);
  return it == outbound_.end() ? nullptr : it->second;
}

HubPeer* Hub::PeerOf(const InPtr& stream) {
  const auto it = inbound_.find(stream);
  if (it == inbound_.end() || it->second.peer == nullptr || it->second.peer->in != stream) return nullptr;
  return it->second.peer;
}

void Hub::FillHello(const HubPeer* peer, pb::Hello* out, std::optional<PublicShare> lane_share) {
  HelloFacts facts;
  facts.hello = own_hello_;
  facts.hello.node = options_.node;
  facts.hello.boot = options_.boot;
  facts.link_generation = peer == nullptr ? 1 : peer->link.own_generation();
  facts.expected_boot = peer != nullptr && peer->link.known() ? peer->link.hello().boot : BootId();
  facts.max_message_bytes = options_.max_message_bytes;
  facts.max_world_size = options_.max_world_size;
  facts.software = options_.version;
  facts.lane_share = lane_share;
  HelloTo(facts, out);
}

void Hub::Dial(Target& target, absl::Time now) {
  const std::string& node = target.expected_node.empty() ? target.node : target.expected_node;
  const auto peer = peers_.find(node);
  if (peer != peers_.end() && peer->second->out != nullptr) return;  // another address leads there too
  auto request = std::make_shared<pb::ExchangeRequest>();
  target.lane_share.reset();
  if (absl::StatusOr<KeyShare> share = KeyShare::Draw(); share.ok()) target.lane_share = *share;
  FillHello(peer == peers_.end() ? nullptr : peer->second.get(), request->mutable_hello(),
            target.lane_share ? std::optional(target.lane_share->share()) : std::nullopt);
  target.dialled = now;
  target.answered = false;
  target.refusal.clear();
  target.generation = request->hello().link_generation();
  target.stream = target.dialler->Dial(this);
  outbound_.emplace(target.stream, &target);
  ++streams_;
  target.stream->Write(std::move(request));
}

void Hub::Hasten(const HubPeer& peer) {
  if (peer.out != nullptr) return;
  bool known = false;
  for (const auto& target : targets_) {
    if (target->expected_node != peer.node && target->node != peer.node) continue;
    known = true;
    if (target->stream == nullptr) Dial(*target, absl::Now());
  }
  if (!known && resolver_ != nullptr) resolver_->Poke();
}

void Hub::CloseStreams(HubPeer& peer, const std::string& why) {
  if (peer.out) {
    peer.out->Cancel();
    ++counters_.disconnects;
  }
  if (peer.in) peer.in->Finish(absl::UnavailableError(why));
  peer.out = nullptr;
  peer.in = nullptr;
  CloseLane(peer, Direction::kOutbound);
  CloseLane(peer, Direction::kInbound);
  peer.outbox.Reset();
  peer.inbox.Reset();
  peer.silence.clear();
  peer.acknowledged_in = 0;
}

void Hub::NotePause(absl::Time now) {
  const absl::Duration gap = now - std::exchange(last_tick_, now);
  if (gap <= options_.lost_after / 2 || gap == absl::InfiniteDuration()) return;
  pause_ = gap;
  pause_ended_ = now;
  options_.log->warn("daemon_paused seconds={:.3f}", absl::ToDoubleSeconds(gap));
}

std::string Hub::WithOwnPause(const std::string& why, absl::Time now) const {
  // After a pause another thread may be here before the one that ticks.
  const absl::Duration present = last_tick_ == absl::InfinitePast() ? absl::ZeroDuration() : now - last_tick_;
  const bool paused = present > options_.lost_after / 2;
  if (!paused && now - pause_ended_ > options_.lost_after) return why;
  const absl::Duration pause = absl::Trunc(paused ? present : pause_, absl::Milliseconds(1));
  return absl::StrCat("the daemon of ", options_.node, " itself had not run for ", absl::FormatDuration(pause),
                      " before: it was stopped, or its machine is far too busy; ", why);
}

void Hub::Lose(HubPeer& peer, const std::string& why, bool ended) {
  ++counters_.lost;
  const bool was_up = peer.link.Lose();
  CloseStreams(peer, why);
  peer.why = why;
  if (was_up) ReportDown(peer, why, ended);
}

void Hub::ReportDown(HubPeer& peer, const std::string& why, bool ended) {
  const absl::Time now = absl::Now();
  peer.why = WithOwnPause(why, now);
  peer.keep_until = now + kKeepPeer;
  options_.log->info("control_link_down node={} reason={}", peer.node, LogValue(peer.why));
  agent_->OnPeerDown(peer.node, peer.why, ended);
}

void Hub::OnAddresses(absl::StatusOr<std::vector<std::string>> found) {
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

void Hub::Loop() {
  const absl::Duration period = std::clamp(options_.heartbeat / 4, absl::Milliseconds(5), absl::Milliseconds(100));
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping), period)) Tick(absl::Now());
}

void Hub::Tick(absl::Time now) {
  NotePause(now);
  for (auto& [node, peer] : peers_) TickPeer(*peer, now);
  for (auto& [stream, from] : inbound_) {
    if (from.greeted || now - from.since <= options_.lost_after) continue;
    from.greeted = true;  // what comes now, while the stream ends, is too late
    stream->Finish(absl::DeadlineExceededError("no hello came in time"));
  }
  // Addresses that DNS or the configuration has dropped go once nothing uses them.
  std::erase_if(targets_, [](const auto& target) { return !target->present && target->stream == nullptr; });
  ForgetPeers(now);
  for (const auto& target : targets_) {
    if (target->stream == nullptr) {
      if (!target->self && now >= target->next_dial) Dial(*target, now);
      continue;
    }
    if (target->peer != nullptr || now - target->dialled <= options_.lost_after) continue;
    target->answered = true;  // likewise
    target->stream->Cancel();
  }
}

bool Hub::InUse(const HubPeer& peer) const {
  if (peer.config || peer.link.up() || peer.out != nullptr || peer.in != nullptr) return true;
  for (const auto& target : targets_) {  // also while a stream that was given up has not ended
    if (target->peer == &peer || (target->present && target->node == peer.node)) return true;
  }
  return std::any_of(inbound_.begin(), inbound_.end(), [&](const auto& stream) { return stream.second.peer == &peer; });
}

void Hub::ForgetPeers(absl::Time now) {
  absl::erase_if(peers_, [&](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const HubPeer& peer = *entry.second;
    if (now < peer.keep_until || InUse(peer)) return false;
    if (peer.keep_until > absl::InfinitePast()) {
      forgotten_generation_ = std::max(forgotten_generation_, peer.link.own_generation());
      options_.log->info("peer_forgotten node={}", peer.node);
      agent_->OnPeerForgotten(peer.node);
    }
    return true;
  });
}

std::string Hub::ReachedAt(const HubPeer& peer) const {
  for (const auto& target : targets_) {
    if (target->node == peer.node && !target->reached_at.empty()) return target->reached_at;
  }
  return "";
}

bool Hub::IsDead(HubPeer& peer, absl::Time now) {
  if (!peer.link.Troubled(now - 2 * options_.heartbeat)) {
    peer.probe.Reset();
    return false;
  }
  const std::string address = ReachedAt(peer);
  peer.probe.Step(address, now);
  // For a moment only, it may be a port that is moved; for longer nobody is there who could come back.
  if (now - peer.probe.refused_since() < options_.heartbeat) return false;
  Lose(peer, absl::StrCat("the daemon of node ", peer.node, " is dead: ", address, " refuses connections"),
       /*ended=*/true);
  return true;
}

void Hub::OnSilence(HubPeer& peer, Direction silent, absl::Time now) {
  const std::string text = SilenceText(peer, options_.lost_after, silent);
  if (peer.link.GivenUp(now)) {
    return Lose(peer, peer.silence.empty() ? text : absl::StrCat(text, "; the groups that waited for it gave up"));
  }
  if (!peer.silence.empty()) return;
  peer.silence = WithOwnPause(text, now);
  agent_->OnPeerSilent(peer.node, peer.silence);
  // What is under way on them may be lost in the network for minutes; new ones go on where they stopped.
  if (peer.out) peer.out->Cancel();
  if (peer.in) peer.in->Cancel();
}

void Hub::TickPeer(HubPeer& peer, absl::Time now) {
  if (IsDead(peer, now)) return;
  if (const std::optional<Direction> silent = peer.link.Silent(now)) {
    OnSilence(peer, *silent, now);
  } else if (!peer.silence.empty()) {
    options_.log->info("control_link_heard_again node={}", peer.node);
    peer.silence.clear();
  }
  TickLane(peer, now);
  if (peer.out != nullptr && now - peer.last_out >= options_.heartbeat && !peer.out->writing()) {
    auto request = std::make_shared<pb::ExchangeRequest>();
    request->mutable_heartbeat();
    peer.last_out = now;
    peer.out->Write(std::move(request));
  }
  if (peer.in != nullptr && now - peer.last_in >= options_.heartbeat) WriteResponse(peer, now);
}

}  // namespace railsd
