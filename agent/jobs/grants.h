// Zones for what peers send, and the permission to write there.
#ifndef RAILSD_AGENT_JOBS_GRANTS_H_
#define RAILSD_AGENT_JOBS_GRANTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "agent/groups/groups.h"
#include "agent/jobs/eager.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// A grant rides in READY while there is plenty of room; otherwise it follows when the peer's READY is here. Owned by
// the engine's thread.
class Grants {
 public:
  struct Owner {
    uint32_t generation = 0;
    NodeJob* job = nullptr;
    Exchange* exchange = nullptr;
  };
  // All outlive this. `fail`: the job's grant cannot be sent.
  Grants(const ExchangeContext* context, const EagerExchanges* eager, Outbox* outbox, JobMap* jobs,
         std::function<void(NodeJob&, absl::Status)> fail)
      : context_(*context),
        eager_(*eager),
        outbox_(*outbox),
        jobs_(*jobs),
        fail_(std::move(fail)),
        owners_(ZoneTable::kSlots) {}

  // True when READY may carry the grant: with it at most half of the room is in use, or all of it if the peer's READY
  // is here.
  bool MayRide(const NodeJob& job, const Exchange& exchange) const;
  void Open(NodeJob& job, Exchange& exchange);
  // Sends a grant that READY did not carry, as soon as there is room.
  void Want(NodeJob& job, Exchange& exchange);
  // Sends grants that wait, while there is room for them.
  void SendWaiting();
  // The same, but only if a zone was freed since the last look.
  void SendIfRoomWasFreed() {
    if (std::exchange(room_freed_, false)) SendWaiting();
  }
  // Null when the zone is not open.
  const Owner* OwnerOf(ZoneRef zone) const {
    const Owner& owner = owners_[zone.slot];
    return owner.job != nullptr && owner.generation == zone.generation ? &owner : nullptr;
  }
  // Frees the zone if nothing can land there any more. True when this call has freed it.
  bool FreeIfQuiet(Exchange& exchange, Receiving::CountLanded count);
  // Bytes that are to come into open zones.
  uint64_t awaited_bytes() const { return awaited_bytes_; }

 private:
  struct Waiting {
    JobKey job;
    PeerIndex peer;
  };
  size_t room() const { return std::min<size_t>(context_.traits.zone_room, ZoneTable::kSlots - 1); }
  // No rail is connected to the peer, so it cannot be given keys.
  bool LacksRails(PeerIndex peer) const { return context_.traits.binds_zones && context_.peer(peer).connected == 0; }
  bool TrySend(NodeJob& job, Exchange& exchange);

  const ExchangeContext& context_;
  const EagerExchanges& eager_;
  Outbox& outbox_;
  JobMap& jobs_;
  const std::function<void(NodeJob&, absl::Status)> fail_;
  std::vector<Owner> owners_;  // by slot
  std::deque<Waiting> waiting_;
  bool room_freed_ = false;  // since the waiting ones were looked at
  uint64_t awaited_bytes_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_GRANTS_H_
