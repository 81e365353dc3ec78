// The RDMA ports that the suite runs over.
#ifndef RAILSD_TESTS_CONFORMANCE_VERBS_WORLDS_H_
#define RAILSD_TESTS_CONFORMANCE_VERBS_WORLDS_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/transport_suite.h"

namespace railsd::testing {

// Registers memory of the host as if it had to be flushed like the memory of another device. `access`: rights of reads,
// without which flushes fail.
std::shared_ptr<MemoryRegistrar> MakeFlushedRegistrar(std::shared_ptr<MemoryRegistrar> registrar, int access);

// By rail, the port ("NAME/PORT") of each node, in the order in which the tests add nodes.
const std::vector<std::vector<std::string>>& Rails();

// The worlds of the suites for all transports; the first has the defaults.
std::vector<WorldFactory> VerbsWorlds();

// Tests that only verbs have: devices, their links, their limits.
class VerbsSuite : public TransportSuite {};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_CONFORMANCE_VERBS_WORLDS_H_
