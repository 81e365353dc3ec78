#include "client/railsctl/health_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/railsctl/http_get.h"

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

// Bodies of /healthz and /readyz are one line.
constexpr size_t kMaxHealthBytes = 64 << 10;

// Fetches `path` at the first address of a name that answers.
absl::StatusOr<HttpAnswer> FetchAtFirst(const std::string& host, uint16_t port, const std::string& path,
                                        const std::string& host_header, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return absl::NotFoundError(::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &::freeaddrinfo);
  absl::StatusOr<HttpAnswer> answer = absl::NotFoundError("its name has no address");
  for (const addrinfo* to = found; to != nullptr && !answer.ok(); to = to->ai_next) {
    char address[NI_MAXHOST];
    if (::getnameinfo(to->ai_addr, to->ai_addrlen, address, sizeof(address), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    const absl::Duration left = std::max(until - absl::Now(), absl::ZeroDuration());
    HttpGet({{address, port, host_header}}, path, {.each = timeout, .all = left, .body_bytes = kMaxHealthBytes},
            [&answer](size_t, absl::StatusOr<HttpAnswer> got) { answer = std::move(got); });
  }
  return answer;
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
  if (!service.empty() && service != "live")
    return absl::InvalidArgumentError("--service: with --address only `live` is possible");
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--address: '", address, "' is not HOST:PORT"));
  }
  const std::string host(absl::StripPrefix(absl::StripSuffix(address.substr(0, colon), "]"), "["));
  const absl::StatusOr<HttpAnswer> answer =
      FetchAtFirst(host, static_cast<uint16_t>(port), service == "live" ? "/healthz" : "/readyz", address, timeout);
  const std::string hint = "; is that a railsd's metrics.listen?";
  if (!answer.ok()) return absl::UnavailableError(absl::StrCat(address, ": ", answer.status().message(), hint));
  if (answer->code == 200) return ServingStatus::kServing;
  if (answer->code == 503) return ServingStatus::kNotServing;
  return absl::UnavailableError(absl::StrCat(address, ": it answers HTTP ", answer->code, hint));
}

}  // namespace rails::ctl
