// The report as one HTML page that needs no network and no script.
#ifndef RAILSD_SIM_REPORT_PAGE_H_
#define RAILSD_SIM_REPORT_PAGE_H_

#include <cstddef>
#include <string>

#include "sim/report/results.h"

namespace railsd::sim {

// Points with plots of their own; results of others need no details.
inline constexpr size_t kMostDetailedPoints = 6;

std::string RenderPage(const Report& report);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_PAGE_H_
