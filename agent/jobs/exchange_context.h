// Tables and options that the exchanges of all jobs share.
#ifndef RAILSD_AGENT_JOBS_EXCHANGE_CONTEXT_H_
#define RAILSD_AGENT_JOBS_EXCHANGE_CONTEXT_H_

#include <vector>

#include "agent/agent.h"
#include "agent/engine/peers.h"
#include "agent/rails/rail_handle.h"
#include "agent/transport/zone_table.h"

namespace railsd {

// Outlives all jobs. Owned by the engine's thread.
struct ExchangeContext {
  const AgentOptions* options = nullptr;
  PeerTable* peers = nullptr;
  std::vector<RailHandle>* rails = nullptr;
  RailBoard* board = nullptr;
  ZoneTable* zones = nullptr;
  TransportTraits traits;  // what every rail can do
  bool late_binding = false;

  size_t rail_count() const { return rails->size(); }
  const Peer& peer(PeerIndex index) const { return peers->Get(index); }
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_EXCHANGE_CONTEXT_H_
