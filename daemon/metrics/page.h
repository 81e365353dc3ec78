// The page for people. The build embeds page.html in the program.
#ifndef RAILSD_DAEMON_METRICS_PAGE_H_
#define RAILSD_DAEMON_METRICS_PAGE_H_

#include <string>

namespace railsd {

std::string Page();

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_PAGE_H_
