// TLS handshakes that failed. gRPC tells nobody but its log of those of the server.
#ifndef RAILSD_DAEMON_TLS_HANDSHAKES_H_
#define RAILSD_DAEMON_TLS_HANDSHAKES_H_

#include <spdlog/fwd.h>

#include <cstdint>
#include <memory>

namespace railsd {

// From here on gRPC's log goes to `log`, for the life of the process, and handshakes that fail are counted. gRPC has
// one log for the process, so this is the one for all. Once only.
void WatchHandshakes(std::shared_ptr<spdlog::logger> log);

// Since then: of the control port and of this node's dials.
uint64_t FailedHandshakes();

}  // namespace railsd

#endif  // RAILSD_DAEMON_TLS_HANDSHAKES_H_
