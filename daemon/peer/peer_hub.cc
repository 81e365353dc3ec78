#include "daemon/peer/peer_hub.h"

#include <openssl/crypto.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/steady_now.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "daemon/lifecycle/logging.h"

namespace railsd {
namespace {

// Describes a peer's silence, with the result of the probe.
std::string SilenceText(const HubPeer& peer, absl::Duration lost_after) {
  if (!peer.dial_failure.empty()) {
    return absl::StrCat("no new connection to node ", peer.node, " for ", absl::FormatDuration(lost_after), ": ",
                        peer.dial_failure);
  }
  const std::string heard =
      absl::StrCat("nothing was heard of node ", peer.node, " for ", absl::FormatDuration(lost_after));
  switch (peer.probe.reach()) {
    case Reach::kListening:
      return absl::StrCat(heard,
                          "; its machine accepts connections, so its daemon is stopped or gets no processor time");
    case Reach::kSilent:
      return absl::StrCat(heard, "; its machine does not answer either: it is down, or cut off from this node");
    case Reach::kRefused:
    case Reach::kUnknown:
      break;
  }
  return absl::StrCat(heard, peer.why.empty() ? "" : "; last: ", peer.why);
}

}  // namespace

PeerHub::PeerHub(PeerHubOptions options)
    : options_(std::move(options)),
      dns_address_(options_.dns.name.empty() ? "" : absl::StrCat(options_.dns.name, ":", options_.dns.port)) {
  absl::MutexLock lock(&mutex_);
  AddStaticPeers(options_.static_peers);
}

void PeerHub::AddStaticPeers(const std::vector<StaticPeerConfig>& peers) {
  for (const StaticPeerConfig& peer : peers) {
    if (peer.name == options_.node) continue;  // all nodes may share one file
    HubPeer* const known = FindOrAddPeer(peer.name);
    if (!known->config && !known->link.known()) known->why = kNotReached;
    known->config = peer;
    Target* const target = FindOrAddTarget(peer.control, peer.name);
    target->expected_node = peer.name;
    target->present = true;
  }
}

void PeerHub::SetStaticPeers(const std::vector<StaticPeerConfig>& peers) {
  absl::MutexLock lock(&mutex_);
  std::vector<HubPeer*> were;
  for (auto& [node, peer] : peers_) {
    if (std::exchange(peer->config, std::nullopt)) were.push_back(peer.get());
  }
  for (const auto& target : targets_) {
    if (!target->expected_node.empty()) target->present = false;
  }
  AddStaticPeers(peers);
  // Another node may now have the address of a peer that is no longer listed.
  for (const auto& target : targets_) {
    if (!target->present) target->expected_node.clear();
  }
  for (HubPeer* peer : were) {
    if (peer->config) continue;
    peer->keep_until = SteadyNow() + kKeepPeer;
    if (!peer->link.up()) peer->why = "no longer listed in peers.static";
  }
}

absl::Status PeerHub::Start(Agent* agent) {
  LinksOptions links_options = options_.links;
  links_options.silence = options_.lost_after;
  links_options.tick = std::clamp(options_.heartbeat / 4, absl::Milliseconds(5), absl::Milliseconds(100));
  links_options.log = options_.log;
  {
    absl::MutexLock lock(&mutex_);
    agent_ = agent;
    own_hello_ = agent->Hello();
  }
  if (links_options.listen.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Links>> links = Links::Start(std::move(links_options), this, agent);
  if (!links.ok()) return links.status();
  links_ = *std::move(links);
  absl::MutexLock lock(&mutex_);
  lookup_ = std::make_unique<NameLookup>();
  dialler_ = links_.get();  // from the next tick on
  return absl::OkStatus();
}

void PeerHub::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    const std::string why = absl::StrCat("node ", options_.node, " is stopping");
    for (const auto& [connection, visit] : visits_) EndConnection(connection, FrameKind::kStopping, why);
  }
  links_.reset();  // joins its thread, which may be inside a method of the hub and takes the lock
  absl::MutexLock lock(&mutex_);
  lookup_.reset();
  dialler_ = nullptr;
  agent_ = nullptr;
  for (auto& [node, peer] : peers_) peer->connection = nullptr;
  visits_.clear();
  targets_.clear();
}

std::vector<PeerView> PeerHub::Peers() const {
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
    view.rail_count = static_cast<uint32_t>(view.rail_addresses.size());
    view.connections = peer->connections;
    view.why = view.up ? peer->silence : peer->why;
    view.dial_failure = peer->dial_failure;
    out.push_back(std::move(view));
  }
  std::sort(out.begin(), out.end(), [](const PeerView& a, const PeerView& b) { return a.node < b.node; });
  return out;
}

OutboxDepths PeerHub::Outboxes() const {
  absl::MutexLock lock(&mutex_);
  OutboxDepths depths;
  for (const auto& [node, peer] : peers_) {
    depths.messages += peer->outbox.messages();
    depths.bytes += peer->outbox.bytes();
    depths.most_messages = std::max(depths.most_messages, peer->outbox.messages());
    depths.most_bytes = std::max(depths.most_bytes, peer->outbox.bytes());
  }
  return depths;
}

absl::Status PeerHub::Redial(const std::string& node) {
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = FindPeer(node);
  if (peer == nullptr) {
    return absl::NotFoundError(absl::StrCat("'", node, "' is no peer of node ", options_.node, "; see railsctl peers"));
  }
  if (peer->connection == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", node, " is not connected, and this node dials it already: ", peer->why));
  }
  for (const auto& target : targets_) {
    if (!target->present || (target->node != node && target->expected_node != node)) continue;
    options_.log->info("redial node={} address={}", node, target->address);
    peer->dial_failure.clear();
    target->redial = true;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("node ", options_.node, " knows no address of node ", node,
                                                    ", which has dialled it; run railsctl redial there"));
}

void PeerHub::SetPatience(const std::string& node, absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  if (HubPeer* const peer = FindPeer(node); peer != nullptr) peer->link.SetPatience(patience);
}

HubPeer* PeerHub::FindPeer(const std::string& node) {
  const auto it = peers_.find(node);
  return it == peers_.end() ? nullptr : it->second.get();
}

HubPeer* PeerHub::FindOrAddPeer(const std::string& node) {
  std::unique_ptr<HubPeer>& peer = peers_[node];
  if (peer == nullptr) {
    peer = std::make_unique<HubPeer>(node, options_.lost_after, forgotten_generation_ + 1, options_.outbox);
  }
  return peer.get();
}

Target* PeerHub::FindOrAddTarget(const std::string& address, const std::string& expected_node) {
  for (const auto& target : targets_) {
    const bool same_node = expected_node.empty() || target->expected_node == expected_node;
    if (same_node && target->address == address) return target.get();
  }
  targets_.push_back(std::make_unique<Target>());
  targets_.back()->address = address;
  return targets_.back().get();
}

std::string PeerHub::NextAddress(Target& target) {
  if (tcp::ParseAddress(target.address).ok()) return target.address;
  if (target.next_found < target.found.size()) return target.found[target.next_found++];
  if (!std::exchange(target.looking_up, true)) lookup_->Ask(target.address);
  return "";
}

void PeerHub::Dial(Target& target, absl::Time now) {
  const std::string address = NextAddress(target);
  if (address.empty()) return;
  target.refusal.clear();
  target.next_dial = now + target.back_off;
  target.connection = dialler_->Dial(address);
  visits_[target.connection].target = &target;
}

void PeerHub::OnLookedUp(const std::string& address, const NameLookup::Addresses& found) {
  if (address == dns_address_) OnDnsAddresses(found);
  for (const auto& target : targets_) {
    if (target->address != address || !std::exchange(target->looking_up, false)) continue;
    target->next_found = 0;
    target->found = found.ok() ? *found : std::vector<std::string>();
    if (found.ok()) continue;
    Visit visit;
    const HubPeer* const peer = FindPeer(target->name());
    if (std::exchange(target->redial, false) && peer != nullptr) visit.redial_after = peer->connections;
    OnDialFailed(*target, visit, found.status());
  }
}

void PeerHub::ResetLink(HubPeer& peer, const std::string& why) {
  if (peer.connection != nullptr) {
    EndConnection(peer.connection, FrameKind::kEnd, why);
    counters_.disconnects += peer.confirmed;
  }
  peer.connection = nullptr;
  peer.outbox.Reset();
  peer.inbox.Reset();
  if (peer.key) OPENSSL_cleanse(peer.key->data(), peer.key->size());
  peer.key.reset();
  peer.silence.clear();
  peer.dial_failure.clear();
  peer.acknowledged_in = 0;
  peer.acknowledge_again = false;
}

bool PeerHub::NotePause(absl::Time now) {
  const absl::Duration gap = now - std::exchange(last_tick_, now);
  if (gap <= options_.lost_after / 2 || gap == absl::InfiniteDuration()) return false;
  pause_ = gap;
  pause_ended_ = now;
  options_.log->warn("daemon_paused seconds={:.3f}", absl::ToDoubleSeconds(gap));
  return true;
}

std::string PeerHub::WithOwnPause(const std::string& why, absl::Time now) const {
  // After a pause another thread may get here before the tick that notes the pause.
  const absl::Duration present = last_tick_ == absl::InfinitePast() ? absl::ZeroDuration() : now - last_tick_;
  const bool paused = present > options_.lost_after / 2;
  if (!paused && now - pause_ended_ > options_.lost_after) return why;
  const absl::Duration pause = absl::Trunc(paused ? present : pause_, absl::Milliseconds(1));
  return absl::StrCat("the daemon of ", options_.node, " itself had not run for ", absl::FormatDuration(pause),
                      " before: it was stopped, or got no processor time; ", why);
}

void PeerHub::Lose(HubPeer& peer, const std::string& why, bool ended) {
  ++counters_.lost;
  const bool was_up = peer.link.Lose();
  ResetLink(peer, why);
  peer.why = why;
  if (was_up) ReportDown(peer, why, ended);
}

void PeerHub::ReportDown(HubPeer& peer, const std::string& why, bool ended) {
  const absl::Time now = SteadyNow();
  peer.why = WithOwnPause(why, now);
  peer.keep_until = now + kKeepPeer;
  options_.log->info("control_link_down node={} reason={}", peer.node, LogValue(peer.why));
  agent_->OnPeerDown(peer.node, peer.why, ended);
}

void PeerHub::OnDnsAddresses(const absl::StatusOr<std::vector<std::string>>& found) {
  next_dns_ = SteadyNow() + options_.dns.refresh;
  if (!found.ok()) {
    LogFailure(spdlog::level::warn, "peer_lookup_failed", "?", dns_address_, found.status().message());
    return;  // the last answer stays in force
  }
  for (const auto& target : targets_) {
    if (target->expected_node.empty()) target->present = false;
  }
  for (const std::string& address : *found) {
    FindOrAddTarget(address, "")->present = true;
  }
}

void PeerHub::OnTick(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || dialler_ == nullptr) return;
  if (NotePause(now)) return;  // first reads what peers sent meanwhile
  if (!dns_address_.empty() && now >= next_dns_) {
    next_dns_ = absl::InfiniteFuture();
    // Names of static peers that fail slowly, one after the other, must not hold it up.
    lookup_->Ask(dns_address_, /*first=*/true);
  }
  if (lookup_ != nullptr) {
    for (const NameLookup::Answer& answer : lookup_->TakeAnswers()) OnLookedUp(answer.address, answer.found);
  }
  for (auto& [node, peer] : peers_) TickPeer(*peer, now);
  // Erases addresses that DNS or the configuration has dropped, once nothing uses them.
  std::erase_if(targets_, [](const auto& target) {
    return !target->present && target->connection == nullptr && !target->looking_up;
  });
  ForgetPeers(now);
  for (const auto& target : targets_) {
    const HubPeer* const peer = FindPeer(target->name());
    if (target->redial && peer != nullptr) {
      const ConnectionPtr before = target->connection;
      Dial(*target, now);  // at a later tick if a name is looked up
      if (target->connection == before) continue;
      target->redial = false;
      visits_[target->connection].redial_after = peer->connections;
      continue;
    }
    if (target->connection != nullptr || target->self || now < target->next_dial) continue;
    if (peer == nullptr || peer->connection == nullptr) Dial(*target, now);
  }
}

bool PeerHub::InUse(const HubPeer& peer) const {
  if (peer.config || peer.link.up() || peer.connection != nullptr) return true;
  for (const auto& target : targets_) {
    if (target->present && target->node == peer.node) return true;
  }
  return std::any_of(visits_.begin(), visits_.end(), [&](const auto& visit) { return visit.second.peer == &peer; });
}

void PeerHub::ForgetPeers(absl::Time now) {
  absl::erase_if(peers_, [&](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const HubPeer& peer = *entry.second;
    if (now < peer.keep_until || InUse(peer)) return false;
    // The link may be up at the other end although it never was here.
    const bool listed = peer.keep_until > absl::InfinitePast();
    if (listed || peer.link.known() || peer.link.own_generation() > forgotten_generation_ + 1) {
      forgotten_generation_ = std::max(forgotten_generation_, peer.link.own_generation());
    }
    if (listed) {
      options_.log->info("peer_forgotten node={}", peer.node);
      agent_->OnPeerForgotten(peer.node);
    }
    return true;
  });
}

std::string PeerHub::ReachedAt(const HubPeer& peer) const {
  for (const auto& target : targets_) {
    if ((target->node == peer.node || target->expected_node == peer.node) && !target->reached_at.empty()) {
      return target->reached_at;
    }
  }
  return "";
}

void PeerHub::LookForAddress(HubPeer& peer, absl::Time now) {
  for (const auto& target : targets_) {
    if (target->expected_node != peer.node && target->node != peer.node) continue;
    if (target->connection != nullptr || now < target->next_dial) continue;
    if (peer.looked_at.empty()) peer.looked_at = NextAddress(*target);
    peer.probe.Step(peer.looked_at, now);
    if (peer.probe.reach() == Reach::kUnknown) return;
    if (peer.probe.reach() == Reach::kListening) target->reached_at = peer.looked_at;
    target->next_dial = now + kMaxRedial;
    peer.looked_at.clear();
    peer.probe.Reset();
  }
}

bool PeerHub::IsDead(HubPeer& peer, absl::Time now) {
  const std::string address = ReachedAt(peer);
  const bool troubled = peer.link.Troubled(now - 2 * options_.heartbeat);
  if (!troubled && address.empty() && peer.link.up()) {
    LookForAddress(peer, now);
    return false;
  }
  if (!troubled || address.empty()) {
    peer.looked_at.clear();
    peer.probe.Reset();
    return false;
  }
  peer.probe.Step(address, now);
  // A short refusal may be a port that moves. A longer one means that no daemon is left.
  if (now - peer.probe.refused_since() < options_.heartbeat) return false;
  Lose(peer, absl::StrCat("the daemon of node ", peer.node, " is dead: ", address, " refuses connections"),
       /*ended=*/true);
  return true;
}

void PeerHub::OnSilence(HubPeer& peer, absl::Time now) {
  const std::string text = SilenceText(peer, options_.lost_after);
  if (peer.link.GivenUp(now)) {
    return Lose(peer, peer.silence.empty() ? text : absl::StrCat(text, "; the groups that waited for it gave up"));
  }
  if (!peer.silence.empty()) return;
  peer.silence = WithOwnPause(text, now);
  agent_->OnPeerSilent(peer.node, peer.silence);
  // TCP may take minutes to resend what the network lost. A new connection resends it at once.
  if (peer.connection != nullptr) peer.connection->Close();
}

void PeerHub::TickPeer(HubPeer& peer, absl::Time now) {
  if (IsDead(peer, now)) return;
  // This node is late, not the peer, if bytes wait for a thread to read them.
  if (peer.link.Silent(now) && peer.connection != nullptr && peer.connection->unread()) return;
  if (peer.link.Silent(now)) {
    OnSilence(peer, now);
  } else if (!peer.silence.empty()) {
    options_.log->info("control_link_heard_again node={}", peer.node);
    peer.silence.clear();
  }
  if (peer.connection != nullptr && now - peer.last_write >= options_.heartbeat) Acknowledge(peer, now);
}

}  // namespace railsd
