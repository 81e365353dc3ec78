// Version of this build.
#ifndef RAILSD_DAEMON_VERSION_H_
#define RAILSD_DAEMON_VERSION_H_

#include "absl/strings/string_view.h"

namespace railsd {
inline constexpr absl::string_view kVersion = RAILSD_VERSION;
}  // namespace railsd

#endif  // RAILSD_DAEMON_VERSION_H_
