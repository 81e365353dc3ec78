#include "agent/transport/tcp/tcp_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/transport/tcp/tcp_transport.h"

namespace railsd::tcp {
namespace {

using ::testing::HasSubstr;

TEST(TcpSocketTest, ParsesAddresses) {
  const std::pair<const char*, const char*> good[] = {{"127.0.0.1", "127.0.0.1:0"},
                                                      {"127.0.0.1:80", "127.0.0.1:80"},
                                                      {"::1", "[::1]:0"},
                                                      {"[::1]", "[::1]:0"},
                                                      {"[fe80::1]:65535", "[fe80::1]:65535"}};
  for (const auto& [text, canonical] : good) {
    auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), canonical);
  }
  for (const char* text : {"", "localhost", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8x", "[::1",
                           "[::1]8", "[]:8", ":8", "256.1.1.1", "1.2.3.4.5"}) {
    auto address = ParseAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(address.status().message(), HasSubstr(text));
  }
}

TEST(TcpSocketTest, ErrorsNameTheRailAndTheAddress) {
  ZoneTable zones;
  TcpOptions options;
  options.zones = &zones;
  options.rail = RailIndex(2);
  options.node = "a";
  options.listen_address = "192.0.2.1:0";  // of no interface
  EXPECT_THAT(std::string(CreateTcpTransport(options).status().message()),
              ::testing::AllOf(HasSubstr("rail 2"), HasSubstr("192.0.2.1:0"), HasSubstr("no interface")));
  options.listen_address = "127.0.0.1";
  options.interface = "nosuch0";
  EXPECT_THAT(std::string(CreateTcpTransport(options).status().message()),
              ::testing::AllOf(HasSubstr("rail 2"), HasSubstr("nosuch0")));
  options.interface = "";
  options.node = std::string(256, 'n');
  EXPECT_EQ(CreateTcpTransport(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.node = "a";
  auto first = CreateTcpTransport(options);
  ASSERT_TRUE(first.ok());
  options.listen_address = (*first)->Info().address;
  EXPECT_THAT(std::string(CreateTcpTransport(options).status().message()), HasSubstr("another process listens there"));
}

TEST(TcpSocketTest, BindsToAnInterface) {
  ZoneTable zones;
  TcpOptions options;
  options.zones = &zones;
  options.node = "a";
  options.listen_address = "127.0.0.1";
  options.interface = "lo";
  auto transport = CreateTcpTransport(options);
  if (transport.ok()) return;
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(transport.status().message()), HasSubstr("CAP_NET_RAW"));
}

}  // namespace
}  // namespace railsd::tcp
