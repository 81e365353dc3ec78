// A snapshot of the agent for whoever may wait for it, but not for ever.
#ifndef RAILSD_DAEMON_METRICS_READ_AGENT_H_
#define RAILSD_DAEMON_METRICS_READ_AGENT_H_

#include <optional>

#include "absl/time/time.h"
#include "agent/agent.h"

namespace railsd {

// Nothing when the engine does not answer in time. Not on the engine's thread.
std::optional<AgentSnapshot> ReadAgent(Agent* agent, absl::Duration deadline);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_READ_AGENT_H_
