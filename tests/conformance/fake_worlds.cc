// The suite over the fake transport, in both forms.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/conformance/transport_suite.h"
#include "tests/support/fake/fake_fabric.h"
#include "tests/support/fake/faulty_transport.h"

namespace railsd::testing {
namespace {

class FakeWorld final : public World {
 public:
  explicit FakeWorld(bool binds_zones, bool weak_zones = false) : binds_(binds_zones), weak_(weak_zones) {}
  std::unique_ptr<RailTransport> Create(const EndOptions& options) override {
    FakeTransportOptions fake;
    fake.rail = options.rail;
    fake.node = options.node;
    fake.boot = options.boot;
    fake.zones = options.zones;
    fake.max_posted_orders = options.max_posted_orders;
    fake.max_receive_events = options.max_receive_events;
    if (binds_) fake.traits = {.binds_zones = true, .zone_room = 32, .max_rounds = 16};
    fake.weak_zones = weak_;
    if (binds_) fake.signals = options.signals;
    return fabric_.Create(fake);
  }

 private:
  const bool binds_, weak_;
  FakeFabric fabric_;
};

// The faults of a device that no contract forbids: it is as good a transport as any.
class FaultyWorld final : public World {
 public:
  explicit FaultyWorld(bool binds_zones) : inner_(binds_zones) {}
  std::unique_ptr<RailTransport> Create(const EndOptions& options) override {
    return std::make_unique<FaultyTransport>(
        inner_.Create(options), ++seed_, FaultRates{.late = 200, .late_polls = 6, .shuffled = true}, [](PeerIndex) {});
  }

 private:
  FakeWorld inner_;
  uint64_t seed_ = 0;
};

std::vector<WorldFactory> Framed() { return {Factory<FakeWorld>("Fake", false)}; }
std::vector<WorldFactory> Remote() {
  return {Factory<FakeWorld>("FakeRemote", true), Factory<FakeWorld>("FakeRemoteWeak", true, true)};
}
std::vector<WorldFactory> Faulty() {
  return {Factory<FaultyWorld>("FakeFaulty", false), Factory<FaultyWorld>("FakeRemoteFaulty", true)};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Framed, TransportSuite, ::testing::ValuesIn(Framed()), NameOf);
INSTANTIATE_TEST_SUITE_P(Framed, FramedSuite, ::testing::ValuesIn(Framed()), NameOf);
INSTANTIATE_TEST_SUITE_P(Remote, TransportSuite, ::testing::ValuesIn(Remote()), NameOf);
INSTANTIATE_TEST_SUITE_P(Remote, RemoteSuite, ::testing::ValuesIn(Remote()), NameOf);
INSTANTIATE_TEST_SUITE_P(Faulty, TransportSuite, ::testing::ValuesIn(Faulty()), NameOf);

}  // namespace railsd::testing
