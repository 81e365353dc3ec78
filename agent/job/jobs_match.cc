// JobTable: what the two ends of an exchange say of its flows before a byte moves, and whether they agree.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "agent/job/jobs.h"

namespace railsd {
namespace {

// Null for a flow of which no byte is expected.
template <typename Exchange>
auto* FindExpected(Exchange& exchange, const Offer::Flow& flow) {
  const auto before = [](const InFlow& expected, const Offer::Flow& offered) {
    return std::tie(expected.destination, expected.source) < std::tie(offered.destination, offered.source);
  };
  const auto it = std::lower_bound(exchange.expected.begin(), exchange.expected.end(), flow, before);
  const bool found = it != exchange.expected.end() && it->destination == flow.destination && it->source == flow.source;
  return found ? &*it : decltype(&*it){};
}

}  // namespace

void JobTable::SendOffer(NodeJob& job, PeerExchange& exchange) {
  const Peer& peer = peers_.Get(exchange.peer);
  if (!peer.up || exchange.offer_sent || exchange.left_out || job.aborting()) return;
  Offer offer;
  offer.job = job.key;
  offer.tag = job.parts.begin()->second.submission.tag;
  offer.retired_below = job.key.seq;
  for (const auto& [key, other] : jobs_) {
    if (key.epoch == job.key.epoch && !other->ended) offer.retired_below = std::min(offer.retired_below, key.seq);
  }
  offer.flows.reserve(exchange.out.size());
  for (const PeerRail& rail : peer.rails) offer.planned_bytes.push_back(rail.planned_tx_bytes);
  for (const OutFlow& flow : exchange.out) {
    offer.flows.push_back({flow.source, flow.destination, flow.send.memory.total_bytes()});
  }
  const size_t flows = offer.flows.size();
  if (const absl::Status sent = outbox_.SendIfItFits(peer.node, std::move(offer)); !sent.ok()) {
    return FailJob(job,
                   absl::ResourceExhaustedError(absl::StrCat("job ", job.key.seq.value(), ": OFFER of ", flows,
                                                             " flows from ", peers_.self(), " to ", peer.node, ": ",
                                                             sent.message(), ", or let its ranks there send to fewer")),
                   false);
  }
  exchange.offer_sent = true;
  exchange.times.offer_sent = now_;
  if (exchange.out_bytes > 0) sprayer_.Expect(*job.tenant, now_);
}

absl::Status JobTable::TakeOffer(NodeJob& job, const Group& group, PeerExchange& exchange, const Offer& offer) {
  const size_t flows = offer.flows.size(), pairs = group.RanksOn(exchange.peer) * group.local_ranks.size();
  const auto offers = [&] {
    return absl::StrCat(peers_.Get(exchange.peer).node, " offers ", flows, " flows for job ", job.key.seq.value());
  };
  if (flows > pairs) {
    return absl::InternalError(
        absl::StrCat(offers(), ", more than the ", pairs, " pairs of ranks between it and ", peers_.self()));
  }
  if (job.started || job.aborting()) return absl::OkStatus();
  const uint64_t bytes = flows * sizeof(Offer::Flow);
  uint64_t& held = held_offers_[exchange.peer];
  if (held > 0 && held + bytes > kMaxHeldOfferBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(offers(), ", and ", held, " bytes of its offers wait for ranks of ", peers_.self(), " to submit; ",
                     kMaxHeldOfferBytes, " may; submit fewer jobs ahead"));
  }
  held += bytes;
  exchange.held_offer_bytes = bytes;
  return absl::OkStatus();
}

void JobTable::ReleaseOffers(NodeJob& job) {
  for (auto& [peer, exchange] : job.peers) {
    if (exchange.held_offer_bytes > 0) held_offers_[peer] -= std::exchange(exchange.held_offer_bytes, 0);
  }
}

// Both ends know all lengths: a contradiction is found before a byte moves.
absl::Status JobTable::CheckOffer(const NodeJob& job, const Group& group, const PeerExchange& exchange) const {
  const Offer& offer = *exchange.offer;
  const Peer& peer = peers_.Get(exchange.peer);
  if (const RankPart& part = job.parts.begin()->second; part.submission.tag != offer.tag) {
    return absl::InvalidArgumentError(absl::StrCat("tag: ", group.Describe(part.submission.rank), " says ",
                                                   part.submission.tag, ", ", peer.node, " says ", offer.tag,
                                                   " for job ", job.key.seq.value()));
  }
  absl::flat_hash_map<std::pair<Rank, Rank>, uint64_t> offered;
  for (const Offer::Flow& flow : offer.flows) {
    const bool source_there = flow.source.value() < group.world_size() && !group.ranks[flow.source.value()].local &&
                              group.ranks[flow.source.value()].peer == exchange.peer;
    if (!source_there || !job.parts.contains(flow.destination) ||
        !offered.emplace(std::pair(flow.source, flow.destination), flow.bytes).second) {
      return absl::InternalError(absl::StrCat(peer.node, " offered a flow from rank ", flow.source.value(), " to rank ",
                                              flow.destination.value(), " in job ", job.key.seq.value(),
                                              ", which it cannot"));
    }
  }
  const auto contradiction = [&](Rank source, Rank destination, uint64_t bytes, uint64_t expected) {
    return absl::InvalidArgumentError(absl::StrCat(group.Describe(source), " sends ", bytes, " bytes to ",
                                                   group.Describe(destination), ", which expects ", expected,
                                                   " in job ", job.key.seq.value()));
  };
  for (const InFlow& flow : exchange.expected) {
    auto it = offered.find({flow.source, flow.destination});
    const uint64_t bytes = it == offered.end() ? 0 : it->second;
    if (bytes != flow.bytes) return contradiction(flow.source, flow.destination, bytes, flow.bytes);
  }
  for (const Offer::Flow& flow : offer.flows) {
    if (flow.bytes == 0 || FindExpected(exchange, flow) != nullptr) continue;
    return contradiction(flow.source, flow.destination, flow.bytes, 0);
  }
  return absl::OkStatus();
}

void JobTable::Match(NodeJob& job, const Group& group, PeerExchange& exchange) {
  if (absl::Status s = CheckOffer(job, group, exchange); !s.ok()) return FailJob(job, s, false);
  OpenZones(job, exchange);
  MaybeRunning(job);
  FinishIfDone(job);
}

void JobTable::OpenZones(NodeJob& job, PeerExchange& exchange) {
  auto set = std::make_shared<ReceiveSet>();
  set->peer = exchange.peer;
  for (const Offer::Flow& flow : exchange.offer->flows) {
    InFlow* expected = flow.bytes == 0 ? nullptr : FindExpected(exchange, flow);
    set->zones.push_back(expected == nullptr ? MemoryRanges() : std::move(expected->memory));
    exchange.in.emplace_back(flow.bytes);
    exchange.in_bytes += flow.bytes;
  }
  exchange.in_left_bytes = exchange.in_bytes;
  set->left_bytes.store(exchange.in_bytes, std::memory_order_relaxed);
  job.in_bytes += exchange.in_bytes;
  if (exchange.in_bytes == 0) {
    exchange.received = true;
    for (auto& [rank, part] : job.parts) --part.receive_peers_left;
    return SendReady(job, exchange, 0);
  }
  ingress_left_bytes_ += exchange.in_left_bytes;
  if (remote_) return OpenRemoteZones(job, exchange, std::move(set));
  HandOverZones(job, exchange, std::move(set));
}

}  // namespace railsd
