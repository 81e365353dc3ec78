// JobTable: moving work off a rail that has died under it. What was posted to it may have arrived without being
// acknowledged, and the receiver may be done with it: nothing is posted again without its permission. Where the
// receiver places the bytes itself (TCP) its end of the rail says what arrived, and gives back the rest; where peers
// write into its memory the engines agree on it, flow by flow.
#include <spdlog/logger.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/job/jobs.h"

namespace railsd {
namespace {

// More rounds than this could not be told from old ones.
constexpr uint32_t kMaxRehomings = 7;
// Rails flap, and a connection that ends gives back whatever waits behind the chunk that it was at. With more than this
// in a row, and nothing arrived in the time in which a peer is given up, it is the receiver that takes nothing: zones
// that it does not have, or connections that it ends each time.
constexpr uint32_t kMaxFruitlessReturns = 64;
// Where the peer is cut off altogether its link falls silent for `peer_lost`, too, and says more of why: it
// has the first word.
constexpr absl::Duration kControlFirst = absl::Seconds(1);

uint8_t NextRound(uint8_t round) { return (round + 1) & 15; }

}  // namespace

void JobTable::LoseRail(PeerExchange& exchange, size_t rail) {
  exchange.usable &= ~RailBit(rail);
  exchange.failed |= RailBit(rail);
  for (OutFlow& flow : exchange.out) flow.fenced.usable &= ~RailBit(rail);
  if (exchange.planned) sprayer_.Evacuate(rail, exchange.peer);
}

void JobTable::OnRailUnusable(RailIndex rail, const Peer& peer) {
  if (peer.stranded_since < absl::InfiniteFuture()) Sooner(StrandedUntil(peer));
  sprayer_.Evacuate(rail.value(), peer.index);
}

void JobTable::OnRailLost(RailIndex rail, const Peer& peer) {
  if (!remote_) return OnRailUnusable(rail, peer);
  if (peer.stranded_since < absl::InfiniteFuture()) Sooner(StrandedUntil(peer));
  std::vector<std::pair<NodeJob*, PeerExchange*>> hit;
  for (auto& [key, job] : jobs_) {
    auto it = job->peers.find(peer.index);
    if (it != job->peers.end() && !job->aborting() && !it->second.left_out) hit.emplace_back(job.get(), &it->second);
  }
  for (auto& [job, exchange] : hit) {
    if (job->aborting()) continue;
    SendKeysLost(*job, *exchange, rail);
    OnSenderLostRail(*job, *exchange, rail);
  }
}

void JobTable::CountSent(NodeJob& job, PeerIndex peer, RailIndex rail, uint64_t bytes) {
  job.rail_tx_bytes[rail.value()] += bytes;
  PeerExchange& exchange = job.peers.at(peer);
  job.last_acknowledged = exchange.times.last_acknowledged = now_;
  exchange.fruitless_returns = 0;
  exchange.fruitless_since = absl::InfiniteFuture();
  sent_bytes_[rail.value()] += bytes;
  peers_.Get(peer).rails[rail.value()].tx_bytes += bytes;
}

void JobTable::OnReturned(NodeJob& job, const InFlight& done, const RailEvent& event) {
  const uint64_t arrived = done.length_bytes - event.length_bytes;
  RankPart& part = job.parts.at(done.source);
  part.report.bytes_sent += arrived;
  part.sends_left_bytes -= arrived;
  if (arrived > 0) CountSent(job, done.peer, done.rail, arrived);
  if (!job.closed_by.empty()) return;  // its ABORT is on the way
  if (arrived == 0 && FailIfFruitless(job, job.peers.at(done.peer))) return;
  const auto refuge = static_cast<uint32_t>(sprayer_.Refuge(done.rail.value(), done.peer));
  sprayer_.Queue(&job, done.flow, done.source, event.zone,
                 {event.zone.index, RailIndex(refuge), event.offset_bytes, event.length_bytes});
}

// Looks only when something has come back: where the network is slow, or a rail to it is waited for, nothing does.
bool JobTable::FailIfFruitless(NodeJob& job, PeerExchange& exchange) {
  if (exchange.fruitless_returns++ == 0) exchange.fruitless_since = now_;
  const Group* group = groups_.Find(job.key.epoch);
  const absl::Duration limit =
      std::max(options_.peer_lost, group == nullptr ? absl::ZeroDuration() : group->recovery.wait_limit);
  if (exchange.fruitless_returns < kMaxFruitlessReturns || now_ < exchange.fruitless_since + limit + kControlFirst) {
    return false;
  }
  FailJob(job,
          absl::UnavailableError(absl::StrCat("node ", peers_.Get(exchange.peer).node, " has taken nothing of job ",
                                              job.key.seq.value(), " for ", absl::FormatDuration(limit),
                                              ": the rails of ", peers_.self(), " gave chunks for it back ",
                                              exchange.fruitless_returns, " times")),
          true);
  return true;
}

absl::Time JobTable::StrandedUntil(const Peer& peer, absl::Duration patience) const {
  return peer.stranded_since + std::max(options_.peer_lost, patience) + kControlFirst;
}

void JobTable::FailStranded() {
  struct Hit {
    NodeJob* job;
    const Peer* peer;
    absl::Duration waited;
  };
  std::vector<Hit> hit;
  for (auto& [key, job] : jobs_) {
    if (!job->started || job->aborting()) continue;
    const Group* group = groups_.Find(key.epoch);
    const absl::Duration patience = group == nullptr ? absl::ZeroDuration() : group->recovery.wait_limit;
    for (auto& [index, exchange] : job->peers) {
      const Peer& peer = peers_.Get(index);
      if (exchange.left_out) continue;
      absl::Time until = exchange.doomed_at;
      bool has_way = false;  // over a drained rail
      for (size_t r = 0; r < rails_.size(); ++r) has_way = has_way || peer.CanSendWithKeys(r, exchange.usable);
      if (peer.up && peer.stranded_since < absl::InfiniteFuture() && exchange.out_bytes > 0 && !has_way &&
          !(exchange.planned && exchange.out_left_bytes->load(std::memory_order_relaxed) == 0)) {
        until = std::min(until, StrandedUntil(peer, patience));
      }
      if (until > now_) {
        Sooner(until);
        continue;
      }
      hit.push_back({job.get(), &peer, std::max(options_.peer_lost, patience)});
      break;
    }
  }
  for (const auto& [job, peer, waited] : hit) {
    FailJob(*job,
            absl::UnavailableError(absl::StrCat("no rail of ", peers_.self(), " has reached ", peer->node, " for ",
                                                absl::FormatDuration(waited), " (job ", job->key.seq.value(), ")")),
            true);
  }
}

// The keys of this end's zones died with the connection. Its sender may not know: it may even have got the READY that
// names them only now, over a connection that is younger. Its fences over that say nothing.
void JobTable::SendKeysLost(const NodeJob& job, PeerExchange& exchange, RailIndex rail) {
  exchange.opened &= ~RailBit(rail.value());
  if (!exchange.ready_sent || exchange.zones == nullptr || exchange.closing) return;
  exchange.dead |= RailBit(rail.value());
  Ready less;
  less.job = job.key;
  less.slot = exchange.zones->slot;
  less.generation = exchange.zones->generation;
  less.rails.push_back({rail, /*usable=*/false, 0, 0});
  outbox_.Send(peers_.Get(exchange.peer).node, std::move(less));
}

bool JobTable::OnKeysLost(NodeJob& job, PeerExchange& exchange, const Ready& message) {
  const bool fits = remote_ && message.slot == exchange.ready->slot &&
                    message.generation == exchange.ready->generation && message.ranges.empty();
  if (!fits || job.aborting()) return false;
  for (const Ready::RailState& rail : message.rails) {
    if (!rail.usable && rail.rail.value() < rails_.size() && !job.aborting()) {
      OnSenderLostRail(job, exchange, rail.rail);
    }
  }
  return true;
}

void JobTable::OnSenderLostRail(NodeJob& job, PeerExchange& exchange, RailIndex rail) {
  if (!exchange.ready.has_value() || exchange.out_bytes == 0) return;
  if (exchange.planned && exchange.fenced_flows_left == 0) return;
  LoseRail(exchange, rail.value());
  for (const OutFlow& flow : exchange.out) {
    if (!flow.fenced.over && (flow.fenced.used & RailBit(rail.value())) != 0) exchange.lost |= RailBit(rail.value());
  }
  AskWhatArrived(job, exchange);
  FailIfStranded(job, exchange, rail);
}

void JobTable::OnOrderLost(NodeJob& job, const InFlight& done, const RailEvent& event) {
  FencedFlow& fenced = *done.fenced;
  PeerExchange& exchange = *fenced.exchange;
  if (done.length_bytes > 0) fenced.lost.push_back({event.offset_bytes, done.length_bytes, done.rail});
  LoseRail(exchange, done.rail.value());
  if (fenced.over) {
    CreditLost(job, job.parts.at(done.source), fenced);
    FinishIfDone(job, done.source);
    if (job.outstanding_orders == 0) Settle(job);
    return;
  }
  exchange.lost |= RailBit(done.rail.value());
  AskWhatArrived(job, exchange);
  FailIfStranded(job, exchange, done.rail);
}

void JobTable::FailIfStranded(NodeJob& job, PeerExchange& exchange, RailIndex rail) {
  // While the receiver is asked it may still turn out to have everything.
  if (exchange.usable != 0 || exchange.lost != 0 || job.aborting()) return;
  if (exchange.planned && exchange.fenced_flows_left == 0) return;
  if (const Group* group = groups_.Find(job.key.epoch); group != nullptr) {
    if (group->recovery.policy == RecoveryPolicy::kDegrade && exchange.doomed_at > now_) {
      // Rails notice a dead node before anybody else does.
      exchange.doomed_at = std::min(exchange.doomed_at, now_ + 2 * options_.peer_lost);
      return Sooner(exchange.doomed_at);
    }
  }
  FailJob(job,
          absl::UnavailableError(absl::StrCat("rail ", rail.value(), " to ", peers_.Get(exchange.peer).node,
                                              " failed in the middle of job ", job.key.seq.value(),
                                              ", and no other is left")),
          true);
}

void JobTable::AskWhatArrived(NodeJob& job, PeerExchange& exchange) {
  if (exchange.lost == 0 || exchange.asked != 0) return;
  for (RailMask lost = exchange.lost; lost != 0; lost &= lost - 1) {
    if (exchange.rail_orders[static_cast<size_t>(std::countr_zero(lost))] > 0) return;
  }
  Rehome rehome;
  rehome.job = job.key;
  rehome.failed_rails = exchange.failed;
  for (uint32_t zone = 0; zone < exchange.out.size(); ++zone) {
    FencedFlow& fenced = exchange.out[zone].fenced;
    if (fenced.over || (fenced.used & exchange.lost) == 0) continue;
    fenced.asked = true;  // it may raise the round: fences of this one that are acknowledged from now on prove nothing
    rehome.flows.push_back({zone, fenced.round});
  }
  if (rehome.flows.empty()) {
    exchange.lost = 0;
    return;
  }
  exchange.asked = exchange.lost;
  const std::string& node = peers_.Get(exchange.peer).node;
  options_.log->info("rehoming job={} failed_rails={:#x} peer={} flows={}", job.key.seq.value(), rehome.failed_rails,
                     node, rehome.flows.size());
  outbox_.Send(node, std::move(rehome));
}

bool JobTable::OnMessage(const Peer& from, Rehome&& message) {
  const Group* group = groups_.Find(message.job.epoch);
  if (!remote_ || group == nullptr || !from.up) return false;
  Rehomed answer{message.job, {}};
  NodeJob* job = Find(message.job);
  if (job == nullptr) {
    // Over: well, or its sender hears of the abort.
    for (Rank rank : group->local_ranks) {
      if (message.job.seq > group->ranks[rank.value()].last_seq) return false;
    }
    if (ended_[message.job.epoch].tombstones.contains(message.job.seq)) return true;
    for (const Rehome::Flow& flow : message.flows) answer.flows.push_back({flow.zone, flow.round, true});
    outbox_.Send(from.node, std::move(answer));
    return true;
  }
  auto it = job->peers.find(from.index);
  if (it == job->peers.end() || !it->second.ready_sent) return false;
  if (job->aborting()) return true;
  PeerExchange& exchange = it->second;
  const auto fail = [&](absl::string_view why) {
    FailJob(*job,
            absl::InternalError(
                absl::StrCat(from.node, " moves flows of job ", job->key.seq.value(), " off failed rails: ", why)),
            true);
    return true;
  };
  if (++exchange.rehomings > kMaxRehomings) return fail(absl::StrCat("more than ", kMaxRehomings, " times"));
  for (const Rehome::Flow& flow : message.flows) {
    if (flow.zone >= exchange.fences.size() || exchange.offer->flows[flow.zone].bytes == 0) {
      return fail(absl::StrCat("zone ", flow.zone, " is none"));
    }
    InFences& fences = exchange.fences[flow.zone];
    if (!fences.arrived) {
      if (fences.round != flow.round) return fail(absl::StrCat("round ", flow.round, " is not ", fences.round));
      fences = InFences{};
      fences.round = NextRound(flow.round);
    }
    answer.flows.push_back({flow.zone, fences.round, fences.arrived});
  }
  exchange.rehomed |= message.failed_rails;
  outbox_.Send(from.node, std::move(answer));
  return true;
}

bool JobTable::OnMessage(const Peer& from, Rehomed&& message) {
  NodeJob* job = Find(message.job);
  auto it = job == nullptr ? decltype(job->peers.end()){} : job->peers.find(from.index);
  if (job == nullptr || job->aborting() || it == job->peers.end() || it->second.asked == 0) return false;
  PeerExchange& exchange = it->second;
  // Others may have failed since: then the flows wait for another answer.
  const bool complete = std::exchange(exchange.asked, 0) == exchange.lost;
  for (const Rehomed::Flow& answer : message.flows) {
    const bool known = answer.zone < exchange.out.size();
    FencedFlow* fenced = known ? &exchange.out[answer.zone].fenced : nullptr;
    const bool fits = known && fenced->asked &&
                      (answer.arrived ? fenced->unposted_bytes == 0 : answer.round == NextRound(fenced->round));
    if (!fits) {
      FailJob(*job,
              absl::InternalError(absl::StrCat(from.node, " answers for zone ", answer.zone, ", round ", answer.round,
                                               " of job ", job->key.seq.value(), ", which cannot be")),
              true);
      return true;
    }
    fenced->asked = false;
    if (answer.arrived) {
      FinishFlow(*job, exchange, exchange.out[answer.zone]);
      continue;
    }
    fenced->round = answer.round;
    if (complete && exchange.usable != 0) RestartFlow(*job, exchange, answer.zone);
  }
  for (const OutFlow& flow : exchange.out) {
    if (!flow.fenced.asked) continue;
    FailJob(*job,
            absl::InternalError(absl::StrCat(from.node, " does not answer for every flow of job ", job->key.seq.value(),
                                             " that it was asked about")),
            true);
    return true;
  }
  const auto rail = static_cast<uint32_t>(std::countr_zero(exchange.lost));
  if (complete) {
    exchange.lost = 0;
  } else {
    AskWhatArrived(*job, exchange);
  }
  FailIfStranded(*job, exchange, RailIndex(rail));
  if (job->aborting()) return true;
  FinishIfDone(*job);
  if (job->outstanding_orders == 0) Settle(*job);
  return true;
}

// What rails gave back has arrived all the same.
void JobTable::CreditLost(NodeJob& job, RankPart& part, FencedFlow& fenced) {
  for (const FencedFlow::Lost& arrived : fenced.lost) {
    part.report.bytes_sent += arrived.length_bytes;
    part.sends_left_bytes -= arrived.length_bytes;
    CountSent(job, fenced.exchange->peer, arrived.rail, arrived.length_bytes);
  }
  fenced.lost.clear();
}

void JobTable::FinishFlow(NodeJob& job, PeerExchange& exchange, OutFlow& flow) {
  RankPart& part = job.parts.at(flow.source);
  flow.fenced.over = true;
  sprayer_.DropFences(&flow.fenced);
  CreditLost(job, part, flow.fenced);
  --part.fenced_flows_left;
  --exchange.fenced_flows_left;
}

void JobTable::RestartFlow(NodeJob& job, PeerExchange& exchange, uint32_t zone) {
  OutFlow& flow = exchange.out[zone];
  FencedFlow& fenced = flow.fenced;
  const ZoneRef ref{exchange.ready->slot, exchange.ready->generation, zone};
  ++counters_.rehomed_flows;
  sprayer_.DropFences(&fenced);
  // What others carried stays where it is; they say so again in the new round.
  fenced.used &= fenced.usable;
  fenced.fences_left = 0;
  for (const FencedFlow::Lost& lost : std::exchange(fenced.lost, {})) {
    fenced.unposted_bytes += lost.length_bytes;
    exchange.unposted_bytes += lost.length_bytes;
    exchange.posted_bytes[lost.rail.value()] -= lost.length_bytes;
    const size_t rail = sprayer_.LeastQueued(fenced.usable, exchange.peer);
    sprayer_.Queue(&job, &flow.send, flow.source, ref,
                   {zone, RailIndex(static_cast<uint32_t>(rail)), lost.offset_bytes, lost.length_bytes}, &fenced);
  }
  if (fenced.unposted_bytes > 0) return;  // fences follow the last of it
  if (fenced.used == 0) fenced.used = RailBit(sprayer_.LeastQueued(fenced.usable, exchange.peer));
  sprayer_.QueueFences(&job, &flow.send, flow.source, ref, &fenced);
}

}  // namespace railsd
