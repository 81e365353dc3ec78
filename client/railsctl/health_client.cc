#include "client/railsctl/health_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
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

constexpr size_t kStatusBytes = sizeof("HTTP/1.1 200") - 1;

// Waits until the socket is ready for `events`. False: not before `until`.
bool Await(int fd, short events, absl::Time until) {  // NOLINT(google-runtime-int): poll()'s type
  pollfd entry = {fd, events, 0};
  const int64_t left = absl::ToInt64Milliseconds(std::max(until - absl::Now(), absl::ZeroDuration()));
  return ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX))) == 1;
}

// Sends a request to an address and returns the first bytes of the answer, as many as a status line needs.
absl::StatusOr<std::string> FirstBytes(const addrinfo& to, const std::string& request, absl::Time until) {
  const int fd = ::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
  const absl::Cleanup close = [fd] { ::close(fd); };
  const absl::Status late = absl::DeadlineExceededError("no answer in time");
  if (::connect(fd, to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return absl::ErrnoToStatus(errno, "cannot connect");
    if (!Await(fd, POLLOUT, until)) return late;
  }
  // A request is shorter than any socket's buffer.
  if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) < 0) return absl::ErrnoToStatus(errno, "cannot connect");
  std::string answer;
  while (answer.size() < kStatusBytes) {
    if (!Await(fd, POLLIN, until)) return late;
    char bytes[kStatusBytes];
    const ssize_t got = ::recv(fd, bytes, kStatusBytes - answer.size(), 0);
    if (got < 0) return absl::ErrnoToStatus(errno, "no answer");
    if (got == 0) break;
    answer.append(bytes, static_cast<size_t>(got));
  }
  return answer;
}

// The same at the first address of a name that answers.
absl::StatusOr<std::string> FirstBytes(const std::string& host, int port, const std::string& request,
                                       absl::Time until) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::NotFoundError(::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &::freeaddrinfo);
  absl::StatusOr<std::string> answer;
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    answer = FirstBytes(*to, request, until);
    if (answer.ok()) break;
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
  if (!service.empty() && service != "live") return absl::InvalidArgumentError("--service: over HTTP `live` only");
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--address: '", address, "' is not HOST:PORT"));
  }
  const std::string host(absl::StripPrefix(absl::StripSuffix(address.substr(0, colon), "]"), "["));
  const std::string request = absl::StrCat("GET ", service == "live" ? "/healthz" : "/readyz",
                                           " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  const absl::StatusOr<std::string> answer = FirstBytes(host, port, request, absl::Now() + timeout);
  const std::string hint = "; is that a railsd's metrics.listen?";
  if (!answer.ok()) return absl::UnavailableError(absl::StrCat(address, ": ", answer.status().message(), hint));
  if (absl::StartsWith(*answer, "HTTP/1.1 200")) return ServingStatus::kServing;
  if (absl::StartsWith(*answer, "HTTP/1.1 503")) return ServingStatus::kNotServing;
  return absl::UnavailableError(absl::StrCat(address, ": it answers '", absl::CEscape(*answer), "'", hint));
}

}  // namespace rails::ctl
