// Reports for programs, in base units: bytes and seconds. A time that never comes is null in JSON and empty in CSV.
#ifndef RAILSD_SIM_REPORT_EXPORT_H_
#define RAILSD_SIM_REPORT_EXPORT_H_

#include <string>

#include "sim/report/results.h"

namespace railsd::sim {

std::string RenderJson(const Report& report);
// A line for each policy at each point, after a line of names.
std::string RenderCsv(const Report& report);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_EXPORT_H_
