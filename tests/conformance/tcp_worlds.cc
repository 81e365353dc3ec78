// The suite over TCP on the loopback interface.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/transport/tcp/tcp_transport.h"
#include "tests/conformance/transport_suite.h"

namespace railsd::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RemoteSuite);  // alone in the program under ThreadSanitizer

namespace {

class TcpWorld final : public World {
 public:
  TcpWorld(std::string address, uint64_t speed) : address_(std::move(address)), speed_(speed) {}

  std::unique_ptr<RailTransport> Create(const EndOptions& options) override {
    TcpOptions tcp;
    tcp.rail = options.rail;
    tcp.node = options.node;
    tcp.boot = options.boot;
    tcp.zones = options.zones;
    tcp.listen_address = address_;
    tcp.speed_bytes_per_s = speed_;
    tcp.frame_bytes = options.frame_bytes;
    tcp.max_posted_orders = options.max_posted_orders;
    tcp.max_receive_events = options.max_receive_events;
    tcp.min_back_off = absl::Milliseconds(1);
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

std::vector<WorldFactory> Worlds() {
  return {Factory<TcpWorld>("TcpIpv4", std::string("127.0.0.1"), uint64_t{0}),
          Factory<TcpWorld>("TcpIpv6", std::string("[::1]:0"), uint64_t{0}),
          Factory<TcpWorld>("TcpShallow", std::string("127.0.0.1:0"), uint64_t{25'000'000})};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Tcp, TransportSuite, ::testing::ValuesIn(Worlds()), NameOf);
INSTANTIATE_TEST_SUITE_P(Tcp, FramedSuite, ::testing::ValuesIn(Worlds()), NameOf);

}  // namespace railsd::testing
