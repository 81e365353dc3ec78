// What stands behind a rail: the only place that knows every transport.
#ifndef RAILSD_AGENT_ENGINE_CREATE_TRANSPORT_H_
#define RAILSD_AGENT_ENGINE_CREATE_TRANSPORT_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "agent/base/ids.h"
#include "agent/transport/transport.h"

namespace railsd {

namespace verbs {
class DeviceEvents;
}

// Makes the transports of one process, and what they share.
class TransportFactory {
 public:
  // `options` outlives it, `zones` all transports.
  TransportFactory(const AgentOptions& options, ZoneTable* zones);
  ~TransportFactory();

  // The transport of options.rails[rail], whose speed is resolved; it posts up to `max_posted_orders`. `signals`
  // reaches the peers' ends of the rail and outlives it. Errors say what could not be bound or opened.
  absl::StatusOr<std::unique_ptr<RailTransport>> Create(RailIndex rail, size_t max_posted_orders, SignalSink* signals);

 private:
  absl::StatusOr<std::unique_ptr<RailTransport>> CreateTcp(RailIndex rail, size_t max_posted_orders) const;
  absl::StatusOr<std::unique_ptr<RailTransport>> CreateVerbs(RailIndex rail, size_t max_posted_orders,
                                                             SignalSink* signals);
  const AgentOptions& options_;
  ZoneTable* const zones_;
  std::shared_ptr<verbs::DeviceEvents> events_;  // of all devices; from the first rail over verbs on
};

}  // namespace railsd

#endif  // RAILSD_AGENT_ENGINE_CREATE_TRANSPORT_H_
