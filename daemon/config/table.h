// The configuration's keys, for its reference page.
#ifndef RAILSD_DAEMON_CONFIG_TABLE_H_
#define RAILSD_DAEMON_CONFIG_TABLE_H_

#include <string>

namespace railsd {

// Every key with its default and whether a running daemon takes over a change, as a table in Markdown.
std::string ConfigTableMarkdown();

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_TABLE_H_
