// How the log writes a value. Every text from a client, a peer or the system goes through it, so that such a text
// cannot add lines or fields to the log.
#ifndef RAILSD_AGENT_BASE_LOG_VALUE_H_
#define RAILSD_AGENT_BASE_LOG_VALUE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace railsd {

// `value` as the log writes it behind "key=": quoted and escaped unless it is one plain word.
std::string LogValue(absl::string_view value);

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_LOG_VALUE_H_
