// Asks the standard gRPC health service (grpc.health.v1) once.
#ifndef RAILS_RAILSCTL_HEALTH_CLIENT_H_
#define RAILS_RAILSCTL_HEALTH_CLIENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rails::ctl {

// As grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class ServingStatus { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
const char* ServingStatusName(ServingStatus status);  // "SERVING", ...

// Asks at client.sock in `socket_dir`. `service` empty: the whole server. UNAVAILABLE, DEADLINE_EXCEEDED: no answer.
// NOT_FOUND: the server does not know the service. INVALID_ARGUMENT: the service's name is too long.
absl::StatusOr<ServingStatus> CheckHealth(const std::string& socket_dir, const std::string& service,
                                          absl::Duration timeout);

// Asks the HTTP port of a daemon on any machine, at `address` ("HOST:PORT", its metrics.listen): /healthz if `service`
// is "live", /readyz if it is empty. UNAVAILABLE: no answer, or not that of railsd. INVALID_ARGUMENT: the address is
// malformed, or `service` is another one.
absl::StatusOr<ServingStatus> CheckHealthOverHttp(const std::string& address, const std::string& service,
                                                  absl::Duration timeout);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_HEALTH_CLIENT_H_
