// The first bytes of a connection to a gRPC server: pure, of hostile input.
#ifndef RAILSD_DAEMON_SERVICE_BEGINNING_H_
#define RAILSD_DAEMON_SERVICE_BEGINNING_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace railsd {

enum class Beginning {
  kMore,   // as far as it goes it may become whole
  kWhole,  // the server can go on with it
  kWrong,
};

// So many bytes tell.
inline constexpr size_t kMaxBeginning = 5 + (16 << 10);

// `tls`: a whole first record of a handshake; else HTTP/2's preface and the header of the SETTINGS that must follow it.
Beginning LookAtBeginning(absl::string_view bytes, bool tls);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_BEGINNING_H_
