#include "agent/rails/health.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

// Connections that break within so long broke together: each end detects the failure when it next sends, or is
// acknowledged.
constexpr absl::Duration kTogether = absl::Seconds(1);

// How bad a state is for new work, in the order of HealthState.
constexpr int kBadness[] = {0, 2, 3, 1, 4};
constexpr const char* kStateNames[] = {"up", "suspect", "down", "probing", "drained_by_peer"};

int Badness(HealthState state) { return kBadness[static_cast<size_t>(state)]; }

bool MayCarry(HealthState state) { return state != HealthState::kDown && state != HealthState::kDrainedByPeer; }

}  // namespace

const char* HealthStateName(HealthState state) { return kStateNames[static_cast<size_t>(state)]; }

double RailHealth::Failures::At(absl::Time now, absl::Duration half_life) const {
  if (count == 0) return 0;
  return count * std::exp2(-absl::FDivDuration(now - at, half_life));
}

void RailHealth::Failures::Add(absl::Time now, absl::Duration half_life) {
  count = At(now, half_life) + 1;
  at = now;
}

RailHealth::RailHealth(const HealthOptions& options, size_t rails) : options_(options), rails_(rails) {}

RailHealth::Peer& RailHealth::At(PeerIndex index) {
  while (peers_.size() <= index.value()) peers_.emplace_back().paths.resize(rails_.size());
  return peers_[index.value()];
}

const RailHealth::Path* RailHealth::FindPath(RailIndex rail, PeerIndex peer) const {
  return peer.value() < peers_.size() ? &peers_[peer.value()].paths[rail.value()] : nullptr;
}

void RailHealth::OnPeerUp(PeerIndex index, BootId boot) {
  Peer& peer = At(index);
  if (peer.known && peer.boot != boot) peer.paths.assign(rails_.size(), Path{});
  for (Path& path : peer.paths) {  // until it says otherwise
    path.end_usable = true;
    path.end_drained = false;
  }
  peer.known = peer.up = true;
  peer.boot = boot;
}

void RailHealth::OnPeerLost(PeerIndex index) {
  Peer& peer = At(index);
  peer.up = false;
  for (size_t r = 0; r < rails_.size(); ++r) {
    Path& path = peer.paths[r];
    if (path.broken && rails_[r].charged && rails_[r].link_up) {  // peers whose paths broke together were lost together
      rails_[r].charged = false;
      rails_[r].failures = rails_[r].before;
      --rails_[r].flaps;
    } else if (path.broken && path.failures.at == path.broken_at) {
      path.failures = path.before;
      --rails_[r].flaps;
    }
    path.connected = path.stalled = path.broken = path.end_drained = false;
  }
}

void RailHealth::ChargeRail(size_t r, absl::Time now) {
  Rail& rail = rails_[r];
  if (rail.charged) return;
  rail.charged = true;
  rail.before = rail.failures;
  rail.failures.Add(now, options_.half_life);
  ++rail.flaps;
}

void RailHealth::ChargePath(Path& path, size_t r, absl::Time now) {
  path.before = path.failures;
  path.failures.Add(now, options_.half_life);
  ++rails_[r].flaps;
}

void RailHealth::JudgeTogether(size_t r, absl::Time now) {
  size_t broken = 0;
  for (const Peer& peer : peers_) {
    const Path& path = peer.paths[r];
    if (!peer.up || (!path.connected && !path.broken)) continue;
    if (path.connected || now - path.broken_at > kTogether) return;
    ++broken;
  }
  if (broken < 2) return;  // with one peer it is not known which end has failed
  for (Peer& peer : peers_) {
    Path& path = peer.paths[r];
    if (!path.broken || path.failures.at != path.broken_at) continue;
    path.failures = path.before;
    --rails_[r].flaps;
  }
  ChargeRail(r, now);
}

void RailHealth::OnConnected(RailIndex rail, PeerIndex peer, absl::Time now) {
  Rail& mine = rails_[rail.value()];
  Path& path = At(peer).paths[rail.value()];
  if (path.connected) return;
  path.connected = true;
  path.stalled = path.broken = false;
  if (mine.link_up) mine.charged = false;
  const double failures = path.failures.At(now, options_.half_life) + mine.failures.At(now, options_.half_life);
  const double doublings = std::round(failures) - 1;
  if (doublings < 0) return;
  path.held_until = now + std::min(options_.max_hold, options_.first_hold * std::exp2(std::min(doublings, 40.0)));
}

void RailHealth::OnDisconnected(RailIndex rail, PeerIndex index, absl::Time now) {
  Peer& peer = At(index);
  Path& path = peer.paths[rail.value()];
  if (!path.connected) return;
  path.connected = path.stalled = false;
  if (!peer.up || rails_[rail.value()].drained || path.end_drained) return;
  path.broken = true;
  path.broken_at = now;
  if (!rails_[rail.value()].link_up) return;  // charged to the rail when its link went down
  ChargePath(path, rail.value(), now);
  JudgeTogether(rail.value(), now);
}

void RailHealth::OnStalled(RailIndex rail, PeerIndex peer, bool stalled) {
  Path& path = At(peer).paths[rail.value()];
  path.stalled = stalled && path.connected;
}

void RailHealth::OnPeerSays(RailIndex rail, PeerIndex peer, bool usable, bool drained) {
  Path& path = At(peer).paths[rail.value()];
  path.end_usable = usable;
  path.end_drained = drained;
}

void RailHealth::OnLink(RailIndex rail, bool up, const std::string& why, absl::Time now) {
  Rail& mine = rails_[rail.value()];
  mine.why = why;
  if (mine.link_up == up) return;
  mine.link_up = up;
  if (!up && !mine.drained) ChargeRail(rail.value(), now);
}

bool RailHealth::SetDrained(RailIndex rail, bool drained) {
  Rail& mine = rails_[rail.value()];
  if (mine.drained == drained) return false;
  mine.drained = drained;
  mine.drains += drained;
  return true;
}

HealthState RailHealth::StateOf(const Rail& rail, const Path& path, absl::Time now) const {
  if (!rail.link_up) return HealthState::kDown;
  if (path.end_drained) return HealthState::kDrainedByPeer;
  if (!path.connected || !path.end_usable) return HealthState::kDown;
  if (path.stalled) return HealthState::kSuspect;
  return now < path.held_until ? HealthState::kProbing : HealthState::kUp;
}

HealthState RailHealth::PathState(RailIndex rail, PeerIndex peer, absl::Time now) const {
  const Path* path = FindPath(rail, peer);
  return path == nullptr ? HealthState::kDown : StateOf(rails_[rail.value()], *path, now);
}

bool RailHealth::MayUse(RailIndex rail, PeerIndex index, absl::Time now) const {
  if (rails_[rail.value()].drained || index.value() >= peers_.size()) return false;
  const Peer& peer = peers_[index.value()];
  const HealthState mine = StateOf(rails_[rail.value()], peer.paths[rail.value()], now);
  if (!peer.up || !MayCarry(mine)) return false;
  if (mine == HealthState::kUp) return true;
  for (size_t r = 0; r < rails_.size(); ++r) {
    if (!rails_[r].drained && StateOf(rails_[r], peer.paths[r], now) == HealthState::kUp) return false;
  }
  return true;
}

bool RailHealth::EndUsable(RailIndex rail) const {
  const Rail& mine = rails_[rail.value()];
  return mine.link_up && !mine.drained && !mine.charged;
}

bool RailHealth::Unwanted(RailIndex rail) const {
  if (rails_[rail.value()].drained) return true;
  bool any = false;
  for (const Peer& peer : peers_) {
    if (!peer.up) continue;
    if (!peer.paths[rail.value()].end_drained) return false;
    any = true;
  }
  return any;
}

std::string RailHealth::Why(const Rail& rail, HealthState state, absl::Duration held) const {
  if (!rail.link_up) return rail.why.empty() ? "the link is down" : rail.why;
  switch (state) {
    case HealthState::kUp:
      return "";
    case HealthState::kSuspect:
      return "the bytes in flight make no progress";
    case HealthState::kDown:
      return rail.charged ? "the connections to all peers broke together" : "not connected to any peer";
    case HealthState::kProbing:
      return absl::StrCat("held back for ", absl::FormatDuration(absl::Ceil(held, absl::Milliseconds(1))),
                          " more after failures");
    case HealthState::kDrainedByPeer:
      return "every peer has drained its end";
  }
  return "";
}

// The best state towards any peer. Peers that have drained their ends count only when all have.
HealthState RailHealth::RailState(const Rail& rail, size_t index, absl::Time now) const {
  HealthState best = rail.link_up ? HealthState::kDrainedByPeer : HealthState::kDown;
  bool any = false;
  for (const Peer& peer : peers_) {
    if (!peer.up) continue;
    any = true;
    const HealthState state = StateOf(rail, peer.paths[index], now);
    if (Badness(state) < Badness(best)) best = state;
  }
  return !any && rail.link_up ? HealthState::kUp : best;  // without peers the rail counts as up
}

void RailHealth::Account(absl::Time now) {
  const absl::Duration passed = std::max(now - accounted_, absl::ZeroDuration());  // none at the first call
  accounted_ = now;
  for (size_t r = 0; r < rails_.size(); ++r) {
    Rail& rail = rails_[r];
    rail.spent[rail.accounted] += passed;
    rail.accounted = rail.drained ? std::size(kAllHealthStates) : static_cast<size_t>(RailState(rail, r, now));
  }
}

RailHealthView RailHealth::View(RailIndex rail, absl::Time now) const {
  const Rail& mine = rails_[rail.value()];
  RailHealthView view;
  view.drained = mine.drained;
  view.flaps = mine.flaps;
  view.drains = mine.drains;
  view.state = RailState(mine, rail.value(), now);
  for (const Peer& peer : peers_) {
    const Path& path = peer.paths[rail.value()];
    if (peer.up && StateOf(mine, path, now) == HealthState::kProbing) {
      view.held = std::max(view.held, path.held_until - now);
    }
  }
  view.spent = mine.spent;
  view.spent[mine.accounted] += std::max(now - accounted_, absl::ZeroDuration());
  view.why = Why(mine, view.state, view.held);
  if (mine.drained) view.why = absl::StrCat("drained by an operator", view.why.empty() ? "" : "; ", view.why);
  return view;
}

absl::Time RailHealth::NextChange(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  for (const Peer& peer : peers_) {
    for (const Path& path : peer.paths) {
      if (path.connected && path.held_until > now) next = std::min(next, path.held_until);
    }
  }
  return next;
}

}  // namespace railsd
