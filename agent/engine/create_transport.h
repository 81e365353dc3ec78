// Makes the transport behind a rail: the only place that knows every one.
#ifndef RAILSD_AGENT_ENGINE_CREATE_TRANSPORT_H_
#define RAILSD_AGENT_ENGINE_CREATE_TRANSPORT_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "agent/base/ids.h"
#include "agent/transport/transport.h"

namespace railsd {

// The transport of options.rails[rail], whose speed is resolved; it posts up to `max_posted_orders`. `zones` and
// `signals`, which reaches the peers' ends of the rail, outlive it. Errors say what could not be bound or opened.
absl::StatusOr<std::unique_ptr<RailTransport>> CreateTransport(const AgentOptions& options, RailIndex rail,
                                                               size_t max_posted_orders, ZoneTable* zones,
                                                               SignalSink* signals);

}  // namespace railsd

#endif  // RAILSD_AGENT_ENGINE_CREATE_TRANSPORT_H_
