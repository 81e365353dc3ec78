// A rail over RDMA verbs: one port of one device. RC queue pairs to every peer, RDMA WRITE into the final address,
// immediates as fences. docs/verbs.md tells how it works.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_VERBS_TRANSPORT_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_VERBS_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/ids.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/discovery.h"
#include "agent/transport/verbs_tuning.h"

namespace railsd {

struct VerbsOptions {
  RailIndex rail;
  std::string node;  // this one; at most 255 bytes
  BootId boot;
  std::string device;  // "NAME" (its port 1) or "NAME/PORT"
  VerbsTuning tuning;
  ZoneTable* zones = nullptr;        // this node's; outlives the transport
  size_t max_posted_orders = 1024;   // posted, or done with the event not taken
  size_t max_receive_events = 1024;  // fences not taken for which the event queue has room without growing
  SignalSink* signals = nullptr;     // outlives the transport
  absl::Duration min_back_off = absl::Milliseconds(5);  // between attempts to connect; doubles
  absl::Duration max_back_off = absl::Seconds(1);
  absl::Duration drain_time = absl::Seconds(2);  // for the completions of a queue pair in error
  // Endpoints whose outstanding work requests make no progress for so long are given up.
  absl::Duration progress_time = absl::Seconds(30);
  // Called with a text when an endpoint fails or is refused, sizes were cut, or the port reports something. Runs on the
  // rail's thread (on the caller's during creation), never for an order, and not again while the text stays the same.
  // May be empty.
  std::function<void(const std::string&)> on_notice;
};

// Opens the device. Errors name the rail and the device: NOT_FOUND (no such device or port), FAILED_PRECONDITION (not
// usable, and why), RESOURCE_EXHAUSTED, UNIMPLEMENTED when built without libibverbs.
absl::StatusOr<std::unique_ptr<RailTransport>> CreateVerbsTransport(VerbsOptions options);

// False when built without libibverbs.
bool HasVerbs();

// Every RDMA port of the node: ReadRdmaPorts(), with GIDs and active MTU as the devices report them.
std::vector<verbs::RdmaPort> DiscoverRdmaPorts();

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_VERBS_TRANSPORT_H_
