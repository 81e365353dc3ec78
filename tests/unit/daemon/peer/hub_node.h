// A hub with an agent that records its calls, for tests with two hubs.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_NODE_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_NODE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/peer_hub.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/free_port.h"

namespace railsd {

struct Node {
  std::string name;
  int port;
  FakeAgent agent;
  std::unique_ptr<PeerHub> hub;

  Node(std::string node, int listen) : name(std::move(node)), port(listen) {}
  ~Node() {
    if (hub) hub->Stop();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port); }

  PeerHubOptions Options(const Node& other, uint64_t boot) const {
    PeerHubOptions options;
    options.node = name;
    options.boot = BootId(boot);
    options.version = absl::StrCat("1.", boot);
    options.links.listen = address();
    options.static_peers.push_back({other.name, other.address(), {}});
    options.lost_after = absl::Seconds(30);
    options.heartbeat = absl::Milliseconds(50);
    options.log = NullLogger();
    return options;
  }
  void Run(PeerHubOptions options) {
    hub = std::make_unique<PeerHub>(std::move(options));
    const absl::Status status = hub->Start(&agent);
    ASSERT_TRUE(status.ok()) << status;
  }
  void Restart(PeerHubOptions options) {
    hub->Stop();
    hub.reset();
    Run(std::move(options));
  }
};

inline ControlMessage Numbered(uint64_t n) { return Quiesced{{{BootId(1), 1}, JobSeq(n)}, {}}; }
inline uint64_t NumberOf(const ControlMessage& message) { return std::get<Quiesced>(message).job.seq.value(); }

// Runs two nodes that know each other, and waits until they are up.
inline void RunBoth(Node* a, Node* b) {
  a->Run(a->Options(*b, 11));
  b->Run(b->Options(*a, 22));
  ASSERT_TRUE(testing::Until([&] { return a->agent.Saw("up " + b->name) && b->agent.Saw("up " + a->name); }));
}

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_NODE_H_
