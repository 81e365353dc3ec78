// Why a link between two daemons is down, from the text that the daemon gives.
#ifndef RAILS_RAILSCTL_DOCTOR_PEER_CAUSE_H_
#define RAILS_RAILSCTL_DOCTOR_PEER_CAUSE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace rails::ctl::doctor {

enum class PeerCause : uint8_t {
  kUnknown,
  kTwoDaemons,       // two daemons have one name, or one boot id
  kOwnPause,         // the daemon of this node did not run
  kTls,              // mutual TLS at one end, plain text at the other
  kCertificateName,  // a certificate of another node
  kCertificate,      // one end does not accept the other's certificate
  kName,             // the address belongs to another node
  kNotListed,        // the other node does not list this one
  kVersion,
  kSettings,    // settings that must be alike differ
  kLookup,      // its host name has no address
  kRefused,     // its machine answers, its daemon does not run
  kNotReached,  // its machine does not answer
  kNoAnswer,    // its machine takes connections, its daemon says nothing
  kEnded,       // its daemon has ended the connection
};

// Finds the cause in `why`: PeerStatus.why, or the reason of a log line.
PeerCause CauseOf(absl::string_view why);

struct PeerHint {
  const char* means;
  const char* fix;
};
const PeerHint& HintOf(PeerCause cause);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_PEER_CAUSE_H_
