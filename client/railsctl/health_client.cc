#include "client/railsctl/health_client.h"

#include <civetweb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace rails::ctl {
namespace {

constexpr size_t kMaxServiceBytes = 127;

// HealthCheckRequest and HealthCheckResponse have one field each, so this file encodes and decodes them: tag 1 (a
// string) with its length, tag 1 (a number).
grpc::ByteBuffer RequestBytes(const std::string& service) {
  std::string bytes;
  if (!service.empty()) bytes = absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

ServingStatus StatusFrom(const grpc::ByteBuffer& response) {
  grpc::Slice slice;
  if (!response.DumpToSingleSlice(&slice).ok() || slice.size() != 2 || slice.begin()[0] != 0x08) {
    return ServingStatus::kUnknown;
  }
  const uint8_t number = slice.begin()[1];
  return number <= 3 ? static_cast<ServingStatus>(number) : ServingStatus::kUnknown;
}

}  // namespace

const char* ServingStatusName(ServingStatus status) {
  switch (status) {
    case ServingStatus::kServing:
      return "SERVING";
    case ServingStatus::kNotServing:
      return "NOT_SERVING";
    case ServingStatus::kServiceUnknown:
      return "SERVICE_UNKNOWN";
    case ServingStatus::kUnknown:
      break;
  }
  return "UNKNOWN";
}

absl::StatusOr<ServingStatus> CheckHealth(const std::string& socket_dir, const std::string& service,
                                          absl::Duration timeout) {
  if (service.size() > kMaxServiceBytes) return absl::InvalidArgumentError("--service: longer than 127 bytes");
  const std::string target =
      absl::StrCat("unix://", std::filesystem::absolute(socket_dir).lexically_normal().string(), "/client.sock");
  grpc::ChannelArguments arguments;
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  grpc::GenericStub stub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", RequestBytes(service), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);  // returns at the call's deadline at the latest
  if (status.ok()) return StatusFrom(response);
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat("the health service at ", target, ": ", status.error_message()));
}

absl::StatusOr<ServingStatus> CheckHealthOverHttp(const std::string& address, const std::string& service,
                                                  absl::Duration timeout) {
  if (!service.empty() && service != "live") return absl::InvalidArgumentError("--service: over HTTP `live` only");
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--address: '", address, "' is not HOST:PORT"));
  }
  const std::string host(absl::StripPrefix(absl::StripSuffix(address.substr(0, colon), "]"), "["));
  const auto unavailable = [&](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat(address, ": ", why, "; is that a railsd's metrics.listen?"));
  };
  char text[256] = {};
  mg_init_library(0);
  const std::unique_ptr<mg_connection, void (*)(mg_connection*)> connection(
      mg_connect_client(host.c_str(), port, /*use_ssl=*/0, text, sizeof(text)), &mg_close_connection);
  if (connection == nullptr) return unavailable(text);
  mg_printf(connection.get(), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
            service == "live" ? "/healthz" : "/readyz", address.c_str());
  if (mg_get_response(connection.get(), text, sizeof(text), static_cast<int>(absl::ToInt64Milliseconds(timeout))) < 0) {
    return unavailable(text);
  }
  const int code = mg_get_response_info(connection.get())->status_code;
  if (code == 200) return ServingStatus::kServing;
  if (code == 503) return ServingStatus::kNotServing;
  return unavailable(absl::StrCat("it answers ", code));
}

}  // namespace rails::ctl
