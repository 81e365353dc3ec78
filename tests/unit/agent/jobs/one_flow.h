// The stream of an exchange with one flow, from rank 0 to rank 1.
#ifndef RAILSD_TESTS_UNIT_AGENT_JOBS_ONE_FLOW_H_
#define RAILSD_TESTS_UNIT_AGENT_JOBS_ONE_FLOW_H_

#include <memory>
#include <vector>

#include "agent/control/stream_flows.h"

namespace railsd::testing {

inline StreamFlows OneFlow(uint64_t bytes) {
  const StreamFlow flow = {.source = Rank(0), .destination = Rank(1), .bytes = bytes};
  return {std::make_shared<StreamFlow[]>(1, flow), 0, 1};
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_JOBS_ONE_FLOW_H_
