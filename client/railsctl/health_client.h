// The standard gRPC health service (grpc.health.v1), asked once.
#ifndef RAILS_RAILSCTL_HEALTH_CLIENT_H_
#define RAILS_RAILSCTL_HEALTH_CLIENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rails::ctl {

// As grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class ServingStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
const char* ServingStatusName(ServingStatus status);  // "SERVING", ...

// Paths of PEM files, for a control port with mutual TLS: the authority that must have signed the daemon's certificate,
// and a certificate that it takes, with its key. All empty: plain text.
struct HealthTls {
  std::string ca, certificate, key;
};

// Asks at `address` ("host:port"), or, when that is empty, at client.sock in `socket_dir`; `service` empty: the whole
// server. Over TLS which node answers is not compared: an address has no name. Error: UNAVAILABLE or DEADLINE_EXCEEDED,
// nobody answers; NOT_FOUND, the server does not know the service; INVALID_ARGUMENT, a file of `tls`.
absl::StatusOr<ServingStatus> CheckHealth(const std::string& address, const std::string& socket_dir,
                                          const std::string& service, const HealthTls& tls, absl::Duration timeout);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_HEALTH_CLIENT_H_
