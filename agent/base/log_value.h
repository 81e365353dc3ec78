// How the log writes a value. Whatever a client, a peer or the system said goes through it, so that nobody writes lines
// or fields of his own into the log.
#ifndef RAILSD_AGENT_BASE_LOG_VALUE_H_
#define RAILSD_AGENT_BASE_LOG_VALUE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace railsd {

// As it stands behind "key=": quoted and escaped when it is not one plain word.
std::string LogValue(absl::string_view value);

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_LOG_VALUE_H_
