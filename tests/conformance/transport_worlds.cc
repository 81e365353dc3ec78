// The networks that the suite runs over.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "agent/transport/fake/fake_fabric.h"
#include "agent/transport/fake/faulty_transport.h"
#include "agent/transport/tcp/tcp_transport.h"
#include "tests/conformance/transport_suite.h"

namespace railsd::testing {
namespace {

class FakeWorld final : public World {
 public:
  explicit FakeWorld(bool writes_remotely, bool weak_zones = false) : remote_(writes_remotely), weak_(weak_zones) {}
  std::unique_ptr<RailTransport> Create(const EndOptions& options) override {
    FakeTransportOptions fake;
    fake.rail = options.rail;
    fake.node = options.node;
    fake.boot = options.boot;
    fake.frame_bytes = options.frame_bytes;
    fake.max_posted_orders = options.max_posted_orders;
    fake.max_receive_events = options.max_receive_events;
    fake.writes_remotely = remote_;
    fake.weak_zones = weak_;
    if (remote_) fake.signals = options.signals;
    return fabric_.Create(fake);
  }

 private:
  const bool remote_, weak_;
  FakeFabric fabric_;
};

// The faults of a device that no contract forbids: it is as good a transport as any.
class FaultyWorld final : public World {
 public:
  explicit FaultyWorld(bool writes_remotely) : inner_(writes_remotely) {}
  std::unique_ptr<RailTransport> Create(const EndOptions& options) override {
    return std::make_unique<FaultyTransport>(
        inner_.Create(options), ++seed_, FaultRates{.late = 200, .late_polls = 6, .shuffled = true}, [](PeerIndex) {});
  }

 private:
  FakeWorld inner_;
  uint64_t seed_ = 0;
};

class TcpWorld final : public World {
 public:
  TcpWorld(std::string address, uint64_t speed) : address_(std::move(address)), speed_(speed) {}

  std::unique_ptr<RailTransport> Create(const EndOptions& options) override {
    TcpOptions tcp;
    tcp.rail = options.rail;
    tcp.node = options.node;
    tcp.boot = options.boot;
    tcp.listen_address = address_;
    tcp.speed_bytes_per_s = speed_;
    tcp.frame_bytes = options.frame_bytes;
    tcp.max_posted_orders = options.max_posted_orders;
    tcp.max_receive_events = options.max_receive_events;
    tcp.min_back_off = absl::Milliseconds(1);
    tcp.signals = options.signals;
    return CreateTcpTransport(std::move(tcp)).value();
  }

  std::string Unavailable() const override {
    const UniqueFd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in6 loopback{};
    loopback.sin6_family = AF_INET6;
    loopback.sin6_addr = IN6ADDR_LOOPBACK_INIT;
    const bool has_ipv6 =
        probe.valid() && ::bind(probe.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
    return address_.front() == '[' && !has_ipv6 ? "no IPv6 loopback here" : "";
  }

 private:
  const std::string address_;
  const uint64_t speed_;
};

template <typename T, typename... Args>
WorldFactory Factory(std::string name, Args... args) {
  return {std::move(name), [args...] { return std::make_unique<T>(args...); }};
}

std::vector<WorldFactory> AllWorlds() {
  std::vector<WorldFactory> all = FramedWorlds();
  for (WorldFactory& world : RemoteWorlds()) all.push_back(std::move(world));
  all.push_back(Factory<FaultyWorld>("FakeFaulty", false));
  all.push_back(Factory<FaultyWorld>("FakeRemoteFaulty", true));
  return all;
}

std::string NameOf(const ::testing::TestParamInfo<WorldFactory>& info) { return info.param.name; }

}  // namespace

std::vector<WorldFactory> FramedWorlds() {
  return {Factory<FakeWorld>("Fake", false), Factory<TcpWorld>("TcpIpv4", std::string("127.0.0.1"), uint64_t{0}),
          Factory<TcpWorld>("TcpIpv6", std::string("[::1]:0"), uint64_t{0}),
          Factory<TcpWorld>("TcpShallow", std::string("127.0.0.1:0"), uint64_t{25'000'000})};
}

std::vector<WorldFactory> RemoteWorlds() {
  return {Factory<FakeWorld>("FakeRemote", true), Factory<FakeWorld>("FakeRemoteWeak", true, true)};
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransportSuite, ::testing::ValuesIn(AllWorlds()), NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, FramedSuite, ::testing::ValuesIn(FramedWorlds()), NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, RemoteSuite, ::testing::ValuesIn(RemoteWorlds()), NameOf);

}  // namespace railsd::testing
