// Engine: rails that come up or fail, the health of their paths, the effect on work under way, and messages to peers
// about it.
#include <spdlog/logger.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/base/log_value.h"
#include "agent/engine/engine.h"

namespace railsd {

void Engine::OnPathEvent(RailIndex rail, const RailEvent& event) {
  Peer& peer = peers_.Get(event.peer);
  if (event.cookie != peer.link) return;  // the event is of a link that is over
  if (event.kind == RailEvent::Kind::kPeerUp) {
    Set(&peer.connected, rail.value(), peer.up);
    peer.rails[rail.value()].connection = event.connection;
    if (!peer.up) return;
    health_.OnConnected(rail, peer.index, now_);
    Set(&peer.usable, rail.value(), false);  // until its health says so
    jobs_.OnRailUp(rail, peer, event.connection);
    options_.log->info("rail_up rail={} peer={} state={}", rail.value(), peer.node,
                       HealthStateName(health_.PathState(rail, peer.index, now_)));
  } else {
    options_.log->warn("rail_down rail={} peer={} error=\"{}\"", rail.value(), peer.node,
                       event.error_number == 0 ? "closed" : std::strerror(event.error_number));
    Set(&peer.connected, rail.value(), false);
    health_.OnDisconnected(rail, peer.index, now_);
    peer.UpdateStranded(now_);
    jobs_.OnRailLost(rail, peer, event.connection);
  }
  RefreshPaths(peer);
  // Even if the rail is drained or held back: exchanges use such rails when no other is left.
  if (Has(peer.connected, rail.value())) jobs_.OnPeerReachable(peer);
  TellEnds();
}

void Engine::OnLinkEvent(RailIndex rail, const RailEvent& event) {
  const bool up = event.kind == RailEvent::Kind::kLinkUp;
  const char* why = up                                    ? ""
                    : event.error_number == ENETDOWN      ? "its interface is switched off or has no carrier"
                    : event.error_number == EADDRNOTAVAIL ? "no interface has its address any more"
                    : event.error_number == ENODEV        ? "its interface is gone"
                    : event.error_number == EIO           ? "its device has failed"
                                                          : "its link is down";
  if (up) {
    options_.log->info("link_up rail={}", rail.value());
  } else {
    options_.log->warn("link_down rail={} why=\"{}\"", rail.value(), why);
  }
  health_.OnLink(rail, up, why, now_);
  RefreshAllPaths();
  TellEnds();
}

void Engine::OnStallEvent(RailIndex rail, const RailEvent& event) {
  Peer& peer = peers_.Get(event.peer);
  if (event.cookie != peer.link) return;
  health_.OnStalled(rail, peer.index, event.error_number != 0);
  RefreshPaths(peer);
}

bool Engine::OnPeerRailState(const Peer& from, const RailState& message) {
  if (message.rail.value() >= rails_.size() || !from.rails[message.rail.value()].known) return false;
  PeerRail& mine = peers_.Get(from.index).rails[message.rail.value()];
  // Has a rail over TCP end the connection, because its orders under way would otherwise end only by their timeouts.
  // Once for each connection, even if the peer repeats the message.
  if (message.down && Has(from.connected, message.rail.value()) && mine.end->ended != mine.connection) {
    auto end = std::make_shared<RailPeer>(*mine.end);
    end->ended = mine.connection;
    mine.end = end;
    rails_[message.rail.value()].Command({.kind = RailCommand::Kind::kSetPeer, .set_peer = std::move(end)});
  }
  const HealthState before = health_.PathState(message.rail, from.index, now_);
  health_.OnPeerSays(message.rail, from.index, message.usable, message.drained);
  if (health_.PathState(message.rail, from.index, now_) == before) return true;
  options_.log->info("peer_rail_state rail={} peer={} usable={} state={}", message.rail.value(), from.node,
                     message.usable, HealthStateName(health_.PathState(message.rail, from.index, now_)));
  RefreshPaths(peers_.Get(from.index));
  return true;
}

void Engine::RefreshPaths(Peer& peer) {
  const RailMask before = peer.Paths();
  bool held = false;
  for (size_t r = 0; r < rails_.size(); ++r) {
    const RailIndex rail(static_cast<uint32_t>(r));
    Set(&peer.usable, r, health_.MayUse(rail, peer.index, now_));
    held = held || health_.PathState(rail, peer.index, now_) == HealthState::kProbing;
  }
  if (held) health_due_ = std::min(health_due_, health_.NextChange(now_));
  health_.Account(now_);
  peer.UpdateStranded(now_);
  const RailMask after = peer.Paths();
  if ((before & ~after) != 0) jobs_.OnRailUnusable(peer);
  if ((after & ~before) != 0) jobs_.OnPeerReachable(peer);
}

void Engine::RefreshAllPaths() {
  health_due_ = absl::InfiniteFuture();
  for (const auto& peer : peers_.all()) {
    if (peer->up) RefreshPaths(*peer);
  }
}

void Engine::TellEnds() {
  for (size_t r = 0; r < rails_.size(); ++r) {
    const RailIndex rail(static_cast<uint32_t>(r));
    const RailState end{rail, health_.EndUsable(rail), health_.drained(rail), !health_.link_up(rail)};
    if (told_ends_[r] == end) continue;
    told_ends_[r] = end;
    options_.log->info("rail_state rail={} usable={} why={}", r, end.usable, LogValue(health_.View(rail, now_).why));
    for (const auto& peer : peers_.all()) {
      if (!peer->up) continue;
      outbox_.Send(peer->node, end);
      if (!end.usable) peer->told_unusable |= RailBit(r);
    }
  }
}

// Corrects a peer that has just come up and takes every end for usable. It may have been told otherwise on its new link
// already, by this engine before it knew that the old link was over.
void Engine::TellEndsTo(Peer& peer) {
  const RailMask told = std::exchange(peer.told_unusable, 0);
  for (const RailState& end : told_ends_) {
    const RailMask bit = RailBit(end.rail.value());
    if (end.usable && (told & bit) == 0) continue;
    outbox_.Send(peer.node, end);
    peer.told_unusable |= end.usable ? 0 : bit;
  }
}

void Engine::DrainRail(const std::string& name, bool drained, Callback<absl::Status> done) {
  size_t r = 0;
  const std::vector<RailSpec>& specs = options_.rails;
  const auto found = std::find_if(specs.begin(), specs.end(), [&](const RailSpec& spec) { return spec.name == name; });
  if (found != specs.end()) {
    r = static_cast<size_t>(found - specs.begin());
  } else if (!absl::SimpleAtoi(name, &r) || r >= specs.size()) {
    const auto add = [](std::string* out, const RailSpec& spec) { absl::StrAppend(out, spec.name); };
    return std::move(done)(absl::NotFoundError(
        absl::StrCat("rail: ", options_.node, " has no rail '", name, "'; it has ", absl::StrJoin(specs, ", ", add))));
  }
  const RailIndex rail(static_cast<uint32_t>(r));
  size_t others = 0;
  for (size_t other = 0; other < rails_.size(); ++other) {
    others += other != r && !health_.drained(RailIndex(static_cast<uint32_t>(other)));
  }
  if (drained && others == 0) {
    return std::move(done)(absl::FailedPreconditionError(
        absl::StrCat("rail: ", specs[r].name, " is the last rail of ", options_.node,
                     " that is not drained; undrain another one first, or stop the daemon, which drains the node")));
  }
  if (health_.SetDrained(rail, drained)) {
    options_.log->info("rail_{} rail={} name={} backlog_bytes={}", drained ? "drained" : "undrained", r, specs[r].name,
                       rails_[r].backlog_bytes());
    RefreshAllPaths();
    TellEnds();
  }
  std::move(done)(absl::OkStatus());
}

}  // namespace railsd
