// The first bytes of a connection to a gRPC server, or of a lane (daemon/peer/lanes.h), which comes by the same port:
// pure, of hostile input.
#ifndef RAILSD_DAEMON_SERVICE_BEGINNING_H_
#define RAILSD_DAEMON_SERVICE_BEGINNING_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace railsd {

enum class Beginning {
  kMore,   // as far as it goes it may become whole
  kWhole,  // the server can go on with it
  kLane,   // a whole greeting of a lane
  kWrong,
};

// So many bytes tell.
inline constexpr size_t kMaxBeginning = 5 + (16 << 10);

// Neither HTTP/2 nor a record of TLS begins with its first byte.
inline constexpr absl::string_view kLaneMagic = "\1RSLANE1";
inline constexpr size_t kLaneGreetingBytes = 72;

// `tls`: a whole first record of a handshake; else HTTP/2's preface and the header of the SETTINGS that must follow it.
// `lanes`: or the greeting of a lane.
Beginning LookAtBeginning(absl::string_view bytes, bool tls, bool lanes = false);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_BEGINNING_H_
