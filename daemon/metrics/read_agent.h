// Reads a snapshot of the agent within a deadline.
#ifndef RAILSD_DAEMON_METRICS_READ_AGENT_H_
#define RAILSD_DAEMON_METRICS_READ_AGENT_H_

#include <optional>

#include "absl/time/time.h"
#include "agent/agent.h"

namespace railsd {

// Returns nullopt if the engine does not answer in time. Blocks; must not be called on the engine thread.
std::optional<AgentSnapshot> ReadAgent(Agent* agent, absl::Duration deadline);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_READ_AGENT_H_
