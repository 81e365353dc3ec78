// The RDMA ports that the suite runs over.
#ifndef RAILSD_TESTS_CONFORMANCE_VERBS_WORLDS_H_
#define RAILSD_TESTS_CONFORMANCE_VERBS_WORLDS_H_

#include <string>
#include <vector>

#include "tests/conformance/transport_suite.h"

namespace railsd::testing {

// By rail, the port ("NAME/PORT") of each node, in the order in which the tests add nodes.
const std::vector<std::vector<std::string>>& Rails();

// Tests that only verbs have: devices, their links, their limits.
class VerbsSuite : public TransportSuite {};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_CONFORMANCE_VERBS_WORLDS_H_
