#include "agent/jobs/grants.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/capacities.h"

namespace railsd {

bool Grants::MayRide(const NodeJob& job, const Exchange& exchange) const {
  if (HasCapacities(job)) return false;  // the zone is cut to what READY says
  if (!exchange.in.WaitsForZone() || LacksRails(exchange.peer) || eager_.Comes(exchange)) return false;
  // Zones that wait for peers that have not submitted must not take all the room, or nodes may wait for each other for
  // ever: tests/model/ready.
  return (exchange.ready.has_value() ? 1 : 2) * (context_.zones->taken() + 1) <= room();
}

void Grants::Open(NodeJob& job, Exchange& exchange) {
  exchange.in.Open(job.NewZone(context_.rail_count(), context_.traits.binds_zones));
  awaited_bytes_ += exchange.in.total_bytes();
  owners_[exchange.in.ref().slot] = {exchange.in.ref().generation, &job, &exchange};
}

void Grants::Want(NodeJob& job, Exchange& exchange) {
  if (!exchange.ready_sent || !exchange.compared || exchange.in.complete() || exchange.in.granted()) return;
  exchange.grant_waits = true;
  waiting_.push_back({job.key, exchange.peer});
  SendWaiting();
}

void Grants::SendWaiting() {
  std::erase_if(waiting_, [this](const Waiting& waiting) {
    NodeJob* const job = Find(jobs_, waiting.job);
    if (job == nullptr || job->aborting()) return true;
    Exchange& exchange = *job->With(waiting.peer);
    return exchange.left_out || TrySend(*job, exchange);
  });
}

// True: it was sent. False: it waits for room, for rails to bind the zone, or for a rail to the peer.
bool Grants::TrySend(NodeJob& job, Exchange& exchange) {
  if (exchange.in.WaitsForZone()) {
    const ZoneTable& zones = *context_.zones;
    // A single zone may exceed the room.
    if (LacksRails(exchange.peer) || zones.free() == 0 || (zones.taken() > 0 && zones.taken() >= room())) return false;
    Open(job, exchange);
  }
  if (!exchange.ready_sent || exchange.in.IsBinding() || !exchange.in.open()) return false;
  if (!exchange.in.IsBound()) {
    exchange.in.BindAgain();
    return false;
  }
  LateGrant message{job.key, exchange.in.BuildGrant()};
  const size_t ranges = message.grant.ranges.size();
  exchange.grant_waits = false;
  exchange.times.grant_sent = job.now();
  const std::string& node = context_.peer(exchange.peer).node;
  if (const absl::Status sent = outbox_.SendIfItFits(node, std::move(message)); !sent.ok()) {
    fail_(job, absl::ResourceExhaustedError(absl::StrCat(
                   "job ", job.key.seq.value(), ": grant of ", ranges, " ranges from ", context_.peers->self(), " to ",
                   node, ": ", sent.message(), ", or let its ranks here receive into fewer")));
  }
  return true;
}

bool Grants::FreeIfQuiet(Exchange& exchange, Receiving::CountLanded count) {
  if (exchange.in.quiet()) return false;
  const ZoneRef ref = exchange.in.ref();
  if (!exchange.in.FreeIfQuiet(count)) return false;
  room_freed_ = true;
  owners_[ref.slot] = {};
  awaited_bytes_ -= exchange.in.total_bytes();
  return true;
}

}  // namespace railsd
